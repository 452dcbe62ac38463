"""Groups the rows of one task by day in bounded memory, so that the writer needs one open file for any number of days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.spool import a_spool_on_disk

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
