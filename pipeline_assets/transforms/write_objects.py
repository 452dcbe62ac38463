"""Objects to data files, written by the tasks that read the objects: rows to files of raw, refused lines to raw.quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.machine import a_spool_on_disk, naming_the_disk
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, SEND_ID, EventHashes
from pipeline_assets.transforms.object_text import Share
from pipeline_assets.transforms.parse import ObjectWork
from pipeline_assets.transforms.parsed_batches import Summary

HELD_BYTES = 32 * 1024**2
"""Held rows are sorted and spilled at this size; sorting needs the same amount again."""
_PART_BYTES = 1024**2
"""How much of a spilled run is read back at a time."""
_OUT_BYTES = 8 * 1024**2
_OUT_ROWS = 10_000
_MANY_ROWS = 1000
"""Rows of a batch for which another day is opened: they are worth a file of their own."""
_KEY = ["project_id", "event_date"]
_Key = tuple[str, date]


@dataclass(frozen=True)
class _Part:
    """Consecutive rows of a sorted run: a batch in memory, or the number of a batch in the spill file."""

    first: _Key
    last: _Key
    place: pa.RecordBatch | int


class _Spill:
    """A file without a name, so that the system frees it when the process ends."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file, self._count = a_spool_on_disk(), 0
        self._writer = pa.ipc.new_file(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def write(self, batch: pa.RecordBatch) -> int:
        """Append a batch; return its number."""
        self._writer.write_batch(batch)
        self._count += 1
        return self._count - 1

    def reader(self) -> pa.ipc.RecordBatchFileReader:
        """Return a reader of all batches; nothing can be written afterwards."""
        self._writer.close()
        self._file.flush()
        self._file.seek(0)
        return pa.ipc.open_file(self._file)

    def close(self) -> None:
        """Free the disk."""
        self._file.close()


class DayClusters:
    """Yields rows grouped by (project_id, event_date).

    Most rows that arrive on a day are of one event day. They are not held back: the first day with most rows of a batch is the
    open one, until a batch of many rows has another such day. No day is opened twice, so a day's rows come out in at most two
    groups, while it is open and at the end, each in its order of arrival.
    """

    def __init__(self, most_bytes: int = HELD_BYTES) -> None:
        """`most_bytes` bounds the rows held in memory."""
        self._most_bytes = most_bytes
        self._open: _Key | None = None
        self._opened: set[_Key] = set()
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self._parts: list[list[_Part]] = []
        self._weights: Counter[_Key] = Counter()
        self._spill: _Spill | None = None
        self.spilled_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows of one project; yield those that need not be held back."""
        project, days = batch["project_id"][0].as_py(), batch["event_date"]
        day, rows = _most_frequent(days)
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
        """Yield all rows that were held back; nothing may be added afterwards."""
        if not self._held and not self._parts:
            return
        if self._held:
            self._parts.append([_part(batch, batch) for batch in self._sorted()])
        file: Any = self._spill.reader() if self._spill is not None else None
        for first, last in self._windows():
            found = (
                _between(batch, first, last)
                for run in self._parts
                for part in run
                if part.first <= last and first <= part.last
                for batch in [part.place if isinstance(part.place, pa.RecordBatch) else file.get_batch(part.place)]
            )
            some = (batch for batch in found if batch.num_rows)
            # Runs keep the order of arrival, so a single day needs no sorting and is never in memory as a whole.
            yield from some if first == last else _in_order(list(some))

    def close(self) -> None:
        """Release all held rows and the spill file."""
        self._held.clear()
        self._parts.clear()
        if self._spill is not None:
            self._spill.close()

    def _hold(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes < self._most_bytes:
            return
        self._spill = self._spill or _Spill(batch.schema)
        self._parts.append([_part(part, self._spill.write(part)) for part in self._sorted()])
        self.spilled_bytes += self.held_bytes
        self._held, self.held_bytes = [], 0

    def _sorted(self) -> list[pa.RecordBatch]:
        """The held rows, sorted and cut into small parts."""
        parts = []
        for batch in _in_order(self._held):
            rows = max(1, batch.num_rows * _PART_BYTES // max(1, batch.nbytes))
            parts += [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]
        for part in parts:
            counted = pa.table({name: part[name] for name in _KEY}).group_by(_KEY, use_threads=False)
            for entry in counted.aggregate([([], "count_all")]).to_pylist():
                share = entry["count_all"] / part.num_rows
                self._weights[entry["project_id"], entry["event_date"]] += int(
                    share * max(part.nbytes, part.num_rows * _OUT_BYTES // _OUT_ROWS)
                )
        return parts

    def _windows(self) -> Iterator[tuple[_Key, _Key]]:
        """First and last key of the days to merge together: several small days of one project, or one day."""
        first: _Key | None = None
        last: _Key | None = None
        weight = 0
        for key in sorted(self._weights):
            own = self._weights[key]
            if first is not None and last is not None and (first[0] != key[0] or weight + own > _OUT_BYTES):
                yield first, last
                first, weight = None, 0
            first, last, weight = first or key, key, weight + own
        if first is not None and last is not None:
            yield first, last


def _most_frequent(days: pa.Array) -> tuple[date, int]:
    (found,) = pc.mode(days.cast(pa.int32()))
    return pa.scalar(found["mode"].as_py(), pa.int32()).cast(pa.date32()).as_py(), found["count"].as_py()


def _part(batch: pa.RecordBatch, place: pa.RecordBatch | int) -> _Part:
    first, last = ((batch["project_id"][at].as_py(), batch["event_date"][at].as_py()) for at in (0, -1))
    return _Part(first, last, place)


def _in_order(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows sorted by project and day; rows of one day keep their order because Arrow's sort is stable."""
    rows = pa.Table.from_batches(batches).combine_chunks()
    order = pc.sort_indices(rows.select(_KEY), sort_keys=[(name, "ascending") for name in _KEY])
    return list(rows.take(order).to_batches())


def _between(batch: pa.RecordBatch, first: _Key, last: _Key) -> pa.RecordBatch:
    """The rows of a sorted batch within these days of one project, without copying."""
    days = batch["event_date"]
    is_in = pc.and_(
        pc.equal(batch["project_id"], first[0]),
        pc.and_(pc.greater_equal(days, first[1]), pc.less_equal(days, last[1])),
    )
    start = is_in.index(True).as_py()
    return batch.slice(max(0, start), is_in.true_count)


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
