"""Writes objects to data files in the tasks that read them: rows to raw, refused lines to raw.quarantine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from mmap import ACCESS_READ, mmap
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.machine import a_spool_on_disk, naming_the_disk
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store, by_slice
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, EventHashes
from pipeline_assets.transforms.object_text import Share, Summary
from pipeline_assets.transforms.parse import ObjectWork

_HELD_BYTES = 32 * 1024**2
"""Held rows are sorted and spilled at this size; sorting needs the same amount again."""
_MANY_ROWS = 1000
"""Rows of a batch for which another day is opened: they are worth a file of their own."""
_Key = tuple[str, date]


class DayClusters:
    """Groups a task's rows by (project_id, event_date), so that the writer needs one open file for any number of days.

    Rows of one open day pass at once, others are held; no day is opened twice. Each group keeps the order of arrival.
    """

    def __init__(self, most_bytes: int = _HELD_BYTES) -> None:
        self._most_bytes = most_bytes
        self._open: _Key | None = None
        self._opened: set[_Key] = set()
        self._held: list[pa.RecordBatch] = []
        self._spill: tuple[IO[bytes], Any] | None = None
        """A nameless file, which the system frees with the process, and its batch writer."""
        self.held_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of one project; yield those that need not be held back."""
        project, days = batch["project_id"][0].as_py(), batch["event_date"]
        (most,) = pc.mode(days.cast(pa.int32()))
        day, rows = _EPOCH + timedelta(days=most["mode"].as_py()), most["count"].as_py()
        are_most = 2 * rows >= batch.num_rows >= _MANY_ROWS
        if self._open is None or (are_most and (project, day) not in self._opened):
            self._open = (project, day)
            self._opened.add(self._open)
        if self._open == (project, day) and rows == batch.num_rows:
            yield batch
            return
        is_open = pc.equal(days, self._open[1])
        if self._open[0] != project or not is_open.true_count:
            self._hold(batch)
            return
        yield batch.filter(is_open)
        self._hold(batch.filter(pc.invert(is_open)))

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all held rows; nothing may be added afterwards."""
        runs = _spilled(*self._spill) if self._spill is not None else []
        places: dict[_Key, list[tuple[pa.RecordBatch, int, int]]] = {}
        for run in [*runs, *_in_order(self._held)]:
            start = 0
            for part in by_slice(run, "event_date"):
                key = part["project_id"][0].as_py(), part["event_date"][0].as_py()
                places.setdefault(key, []).append((run, start, part.num_rows))
                start += part.num_rows
        for _, parts in sorted(places.items(), key=lambda entry: entry[0]):
            yield from (run.slice(start, rows) for run, start, rows in parts)

    def close(self) -> None:
        """Release all held rows and the spill file."""
        self._held.clear()
        if self._spill is not None:
            self._spill[0].close()

    def _hold(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes < self._most_bytes:
            return
        if self._spill is None:
            file = a_spool_on_disk()
            self._spill = file, pa.ipc.new_file(file, batch.schema)
        for run in _in_order(self._held):
            self._spill[1].write_batch(run)
        self._held, self.held_bytes = [], 0


_EPOCH = date(1970, 1, 1)


def _in_order(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    rows = pa.Table.from_batches(batches).combine_chunks()
    order = pc.sort_indices(rows, sort_keys=[("project_id", "ascending"), ("event_date", "ascending")])
    return list(rows.take(order).to_batches())


def _spilled(file: IO[bytes], writer: Any) -> list[pa.RecordBatch]:
    """The batches of a spill file, which stay there: only those pages are in memory that are read."""
    writer.close()
    file.flush()
    found = pa.ipc.open_file(pa.py_buffer(mmap(file.fileno(), 0, access=ACCESS_READ)))
    return [found.get_batch(number) for number in range(found.num_record_batches)]


# -- what tasks do -------------------------------------------------------------------------------------------------

_ENOUGH_ROWS = 2000


@dataclass(frozen=True)
class Written:
    """The result of a task. Its files exist; a failing task leaves none."""

    files: list[str]
    summaries: list[Summary]
    rows: int


def write_rows(
    work: ObjectWork, hashes: EventHashes, layout: FileLayout, store: Store, group: Sequence[Share]
) -> Written:
    """Read objects and write their rows to files of raw: a task's work. Raises TidemarkError for failures."""
    names = list(layout.field_ids)
    files: list[str] = []
    summaries: list[Summary] = []

    def parsed() -> Iterator[pa.RecordBatch]:
        for found in work.read(group):
            summaries.extend(found.summaries)
            if found.rows is not None:
                yield found.rows.select([name for name in names if name not in HASH_COLUMNS])

    with DataFileWriter(layout, store) as writer, naming_the_disk(), closing(DayClusters()) as days:
        for rows in _joined(parsed()):
            made = hashes.of(rows)
            columns = [made[name] if name in made else rows.column(name) for name in names]
            for part in days.add(pa.RecordBatch.from_arrays(columns, names=names)):
                files += writer.add(part)
        # Held rows may belong to the day whose file is open.
        files += writer.finish()
        for rows in days.rest():
            files += writer.add(rows)
        files += writer.finish()
    return Written(files, summaries, writer.rows)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    for rows in batches:
        if held and held[0]["project_id"][0] != rows["project_id"][0]:
            yield pa.concat_batches(held)
            held = []
        held.append(rows)
        if sum(one.num_rows for one in held) >= _ENOUGH_ROWS:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def write_refused(
    work: ObjectWork, layout: FileLayout, store: Store, accepted: Collection[BatchKey], group: Sequence[Share]
) -> Written:
    """The same for refused lines and objects, to raw.quarantine; `accepted`: batches whose good lines are loaded."""
    files: list[str] = []
    summaries: list[Summary] = []
    with DataFileWriter(layout, store) as writer, naming_the_disk():
        for found in work.read(group):
            summaries += found.summaries
            if (refused := found.refused) is not None:
                source, day, project = (refused[name][0].as_py() for name in ("source", "arrival_date", "project_id"))
                is_accepted = pa.repeat(BatchKey(Source(source), project, day) in accepted, refused.num_rows)
                files += writer.add(refused.append_column("is_batch_accepted", is_accepted))
        files += writer.finish()
    return Written(files, summaries, writer.rows)
