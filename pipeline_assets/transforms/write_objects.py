"""Objects to data files, written by the tasks that read the objects: rows to files of raw, refused lines to raw.quarantine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import Source
from pipeline_assets.domain.spool import naming_the_disk
from pipeline_assets.transforms.clusters import DayClusters
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, SEND_ID, EventHashes
from pipeline_assets.transforms.parse import ObjectWork
from pipeline_assets.transforms.parsed_batches import Summary
from pipeline_assets.transforms.spread import Share

_ENOUGH_ROWS = 2000


@dataclass(frozen=True)
class Written:
    """The result of a task. Its files exist; of a task that fails none does."""

    files: list[str] = field(default_factory=list)
    """As `data_file` (data_files.py) describes them."""
    summaries: list[Summary] = field(default_factory=list)
    """One for each share of an object."""
    rows: int = 0
    bytes: int = 0
    """Of its rows in memory."""
    rows_without_id: int = 0
    """Rows without a send id."""


@dataclass(frozen=True)
class WritingRows:
    """The function of a task that reads objects, in the order of `shares` (spread.py), and writes their rows to files of raw."""

    work: ObjectWork
    hashes: EventHashes
    layout: FileLayout
    store: Store

    def __call__(self, group: Sequence[Share]) -> Written:
        """Raises the TidemarkError of what the task reads and writes."""
        summaries: list[Summary] = []
        files: list[str] = []
        with DataFileWriter(self.layout, self.store) as writer, naming_the_disk():
            task = _Rows(self.hashes, self.layout, writer)
            with closing(task.days):
                for found in self.work.read(group):
                    summaries += found.summaries
                    if found.rows is not None:
                        files += task.add(found.rows)
                files += task.finish()
        return Written(files, summaries, writer.rows, writer.bytes, task.rows_without_id)


@dataclass(frozen=True)
class WritingRefused:
    """The function of a task that reads objects and writes refused lines, and refused objects, to files of raw.quarantine."""

    work: ObjectWork
    layout: FileLayout
    store: Store
    accepted: Collection[BatchKey]
    """Batches whose good lines are loaded: `is_batch_accepted` of the refused ones."""

    def __call__(self, group: Sequence[Share]) -> Written:
        """Raises the TidemarkError of what the task reads and writes."""
        summaries: list[Summary] = []
        files: list[str] = []
        with DataFileWriter(self.layout, self.store) as writer, naming_the_disk():
            for found in self.work.read(group):
                summaries += found.summaries
                if found.refused is not None:
                    files += writer.add(self._told(found.refused))
            files += writer.finish()
        return Written(files, summaries, writer.rows, writer.bytes)

    def _told(self, refused: pa.RecordBatch) -> pa.RecordBatch:
        source, day, project = (refused[name][0].as_py() for name in ("source", "arrival_date", "project_id"))
        is_accepted = BatchKey(Source(source), project, day) in self.accepted
        return refused.append_column("is_batch_accepted", pa.repeat(is_accepted, refused.num_rows))


class _Rows:
    """Hashes and groups the rows of one task, and passes them on to its writer."""

    def __init__(self, hashes: EventHashes, layout: FileLayout, writer: DataFileWriter) -> None:
        self._hashes = hashes
        self._names = list(layout.field_ids)
        self._parsed = [name for name in self._names if name not in HASH_COLUMNS]
        self._writer = writer
        # Rows are grouped by day, because an open file per day would need memory in proportion to the number of days.
        self.days = DayClusters()
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self.rows_without_id = 0

    def add(self, rows: pa.RecordBatch) -> Iterable[str]:
        """Take rows of one arrival day; small batches are held until there are enough rows to be worth a batch's calls."""
        self.rows_without_id += rows[SEND_ID].null_count
        parsed = rows.select(self._parsed)
        if self._held and self._held[0]["project_id"][0] != parsed["project_id"][0]:
            yield from self._pass_on()
        self._held.append(parsed)
        self._held_rows += parsed.num_rows
        if self._held_rows >= _ENOUGH_ROWS:
            yield from self._pass_on()

    def finish(self) -> Iterable[str]:
        """Write all remaining rows and finish the files."""
        if self._held:
            yield from self._pass_on()
        # Rows held back may be of the day whose file is open, and have come before those in it.
        yield from self._writer.finish()
        for rows in self.days.rest():
            yield from self._writer.add(rows)
        yield from self._writer.finish()

    def _pass_on(self) -> Iterable[str]:
        rows = self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held)
        self._held, self._held_rows = [], 0
        made = self._hashes.of(rows)
        columns = [made[name] if name in made else rows.column(name) for name in self._names]
        for part in self.days.add(pa.RecordBatch.from_arrays(columns, names=self._names)):
            yield from self._writer.add(part)
