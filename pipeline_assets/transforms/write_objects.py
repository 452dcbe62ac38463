"""Writes objects to data files in the tasks that read them: rows to raw, refused lines to raw.quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.machine import a_spool_on_disk, naming_the_disk
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, EventHashes
from pipeline_assets.transforms.object_text import Share, Summary
from pipeline_assets.transforms.parse import ObjectWork

_HELD_BYTES = 32 * 1024**2
"""Held rows are sorted and spilled at this size; sorting needs the same amount again."""
_PART_BYTES = 1024**2
_OUT_BYTES = 8 * 1024**2
_OUT_ROWS = 10_000
_MANY_ROWS = 1000
"""Rows of a batch for which another day is opened: they are worth a file of their own."""
_KEY = ["project_id", "event_date"]
_Key = tuple[str, date]


class _Part(NamedTuple):
    """Consecutive rows of a sorted run: a batch in memory, or the number of a batch in the spill file."""

    first: _Key
    last: _Key
    place: pa.RecordBatch | int


class DayClusters:
    """Groups a task's rows by (project_id, event_date), so that the writer needs one open file for any number of days.

    Rows of one open day pass at once, others are held; no day is opened twice. Each group keeps the order of arrival.
    """

    def __init__(self, most_bytes: int = _HELD_BYTES) -> None:
        self._most_bytes = most_bytes
        self._open: _Key | None = None
        self._opened: set[_Key] = set()
        self._held: list[pa.RecordBatch] = []
        self._parts: list[_Part] = []
        self._weights: Counter[_Key] = Counter()
        self._spill: tuple[IO[bytes], Any] | None = None
        """A nameless file, which the system frees with the process, and its batch writer."""
        self._spilled = 0
        self.held_bytes = self.spilled_bytes = 0

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
        """Yield all held rows; nothing may be added afterwards."""
        self._parts += [_part(batch, batch) for batch in self._sorted()]
        spilled: Any = None
        if self._spill is not None:
            file, writer = self._spill
            writer.close()
            file.flush()
            file.seek(0)
            spilled = pa.ipc.open_file(file)
        for first, last in self._windows():
            found = (
                _between(
                    part.place if isinstance(part.place, pa.RecordBatch) else spilled.get_batch(part.place), first, last
                )
                for part in self._parts
                if part.first <= last and first <= part.last
            )
            some = (batch for batch in found if batch.num_rows)
            # Runs keep the order of arrival, so a single day is never sorted or in memory as a whole.
            yield from some if first == last else _in_order(list(some))

    def close(self) -> None:
        """Release all held rows and the spill file."""
        self._held.clear()
        self._parts.clear()
        if self._spill is not None:
            self._spill[0].close()

    def _hold(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes < self._most_bytes:
            return
        if self._spill is None:
            file, options = a_spool_on_disk(), pa.ipc.IpcWriteOptions(compression="lz4")
            self._spill = file, pa.ipc.new_file(file, batch.schema, options=options)
        for part in self._sorted():
            self._spill[1].write_batch(part)
            self._parts.append(_part(part, self._spilled))
            self._spilled += 1
        self.spilled_bytes += self.held_bytes
        self._held, self.held_bytes = [], 0

    def _sorted(self) -> list[pa.RecordBatch]:
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
        window: list[_Key] = []
        weight = 0
        for key in sorted(self._weights):
            own = self._weights[key]
            if window and (window[0][0] != key[0] or weight + own > _OUT_BYTES):
                yield window[0], window[-1]
                window, weight = [], 0
            window.append(key)
            weight += own
        if window:
            yield window[0], window[-1]


def _most_frequent(days: pa.Array) -> tuple[date, int]:
    (found,) = pc.mode(days.cast(pa.int32()))
    return pa.scalar(found["mode"].as_py(), pa.int32()).cast(pa.date32()).as_py(), found["count"].as_py()


def _part(batch: pa.RecordBatch, place: pa.RecordBatch | int) -> _Part:
    first, last = ((batch["project_id"][at].as_py(), batch["event_date"][at].as_py()) for at in (0, -1))
    return _Part(first, last, place)


def _in_order(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    rows = pa.Table.from_batches(batches).combine_chunks()
    order = pc.sort_indices(rows.select(_KEY), sort_keys=[(name, "ascending") for name in _KEY])
    return list(rows.take(order).to_batches())


def _between(batch: pa.RecordBatch, first: _Key, last: _Key) -> pa.RecordBatch:
    days = batch["event_date"]
    is_in = pc.and_(pc.greater_equal(days, first[1]), pc.less_equal(days, last[1]))
    is_in = pc.and_(pc.equal(batch["project_id"], first[0]), is_in)
    return batch.slice(max(0, is_in.index(True).as_py()), is_in.true_count)


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
