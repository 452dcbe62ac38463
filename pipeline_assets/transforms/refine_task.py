"""The task that writes files of refined from files of raw; for a slice already in refined, only the difference."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms import file_rows
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, NO_LONGS, EventHashes, Longs, Mask, longs, whole
from pipeline_assets.transforms.keys import EVENT_CONTENTS, KEYS_OF, Columns, KeyDifference, compared, joined

NAMES = ("_object_key", "_line_number", "_hash_a")
"""Identify a row of one source and its content (half of the hash, 64 bits, suffices)."""
_SEPARATOR = "\x00"
_LINE_BITS = 32


class RowNumbers:
    """Assigns numbers to rows: the same line of the same object of the same source gets the same number."""

    def __init__(self) -> None:
        self._objects: dict[str, int] = {}

    def of(self, sources: pa.Array | pa.Scalar, rows: pa.Table) -> Longs:
        """A number for each row (with NAMES); `sources`: one per row, or one for all."""
        joined = pc.binary_join_element_wise(sources, whole(rows["_object_key"]), _SEPARATOR)
        # Only rows of another program lack an object. They share a number, so HeldRows finds them not distinct.
        names = pc.fill_null(joined, "").dictionary_encode()
        codes = [self._objects.setdefault(name, len(self._objects)) for name in names.dictionary.to_pylist()]
        at = np.asarray(codes, dtype=np.int64)[names.indices.to_numpy(zero_copy_only=False)]
        return np.asarray(at << _LINE_BITS | longs(rows["_line_number"]))


class HeldRows:
    """The rows that a slice holds and keeps: call `meet` with all rows of raw, then `lacks` with winners that it did not find."""

    def __init__(self, numbers: Longs, hashes: Longs) -> None:
        self._order = np.argsort(numbers, kind="stable")
        self._numbers, self._hashes = numbers[self._order], hashes[self._order]
        self._is_wanted, self._is_in_raw = np.zeros((2, len(numbers)), dtype=np.bool_)

    @property
    def are_distinct(self) -> bool:
        """Whether each row occurs once; otherwise rows cannot be compared."""
        return bool((self._numbers[1:] != self._numbers[:-1]).all())

    def meet(self, numbers: Longs, hashes: Longs, is_winner: Mask) -> Mask:
        """A mask of the winning rows that the slice does not hold under their own names."""
        if not len(self._numbers):
            return is_winner
        at = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
        is_held: Mask = (self._numbers[at] == numbers) & (self._hashes[at] == hashes)
        self._is_in_raw[at[is_held]] = True
        self._is_wanted[at[is_held & is_winner]] = True
        return is_winner & ~is_held

    def lacks(self, hashes: Longs) -> Mask:
        """A mask of the winners (by `_hash_a`) to write; none if equal rows go: lineage alone is not published."""
        others = np.flatnonzero(self._is_in_raw & ~self._is_wanted)
        held, first = np.unique(self._hashes[others], return_index=True)
        is_new: Mask = ~np.isin(hashes, held)
        self._is_wanted[others[first[np.isin(held, hashes)]]] = True
        if np.array_equal(np.sort(hashes[is_new]), np.sort(self._hashes[~self._is_wanted])):
            self._is_wanted[:] = True
            is_new[:] = False
        return is_new

    @property
    def is_wanted(self) -> Mask:
        """A mask of the held rows that stay, in the constructor's order."""
        found = np.empty_like(self._is_wanted)
        found[self._order] = self._is_wanted
        return found


RECEIVED = EXPORT_FORMAT.received_column
"""The time that decides a row's arrival day. Refined holds it too, unlike `_arrival_date`."""
_DAY = 24 * 60 * 60 * 1_000_000
_LEAST_ROWS = 10_000
"""Opening a smaller file repeatedly costs more than copying its rows."""
_MOST_SHARES = 8
"""Most files of a whole slice, less one, however many days its rows arrived on."""
_BATCH_ROWS = 10_000
_SAMPLED_ROWS = 200
_MOST_TOLD_KEYS = 200_000
"""Most gained, and most lost, keys of a slice that a task reports to the driver."""


@dataclass(frozen=True)
class ArrivalParts:
    """Consecutive arrival days with files of their own: usually the day with most rows, and all later days."""

    ends: Longs
    """The last day of each part but the last one, since 1970; a row without a time is of day 0."""

    @staticmethod
    def of(rows: int, narrow: Iterable[pa.Table]) -> ArrivalParts:
        """Parts of an eighth of the rows and at least _LEAST_ROWS, by whole days; `narrow`: rows with RECEIVED, read if many."""
        if rows <= _LEAST_ROWS:
            return ArrivalParts(NO_LONGS)
        found, counts = np.unique(np.concatenate([_days(of) for of in narrow]), return_counts=True)
        least = max(_LEAST_ROWS, -(-rows // _MOST_SHARES))
        ends, held = [], 0
        for day, count in zip(found.tolist(), counts.tolist(), strict=True):
            held += count
            if held >= least:
                ends.append(day)
                held = 0
        return ArrivalParts(np.asarray(ends, dtype=np.int64))

    def divide(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Number of a part -> its rows (with RECEIVED), if any."""
        at = np.searchsorted(self.ends, _days(rows))
        return file_rows.by_number(rows, at)


def _days(rows: pa.Table) -> Longs:
    return longs(rows[RECEIVED]) // _DAY


class Input(NamedTuple):
    """Files of a raw table with rows of one slice."""

    table: str
    paths: Sequence[str]
    losers: bytes | None = None
    """Rows to leave out: `as_bytes` of `_object_key` (string) and `_line_number` (int); None without any."""


class SliceWork(NamedTuple):
    """A task's work for one slice of refined."""

    key: Slice
    inputs: Sequence[Input]
    rows: int
    held: Sequence[str] = ()


@dataclass(frozen=True)
class Refined:
    """The result of a task, or of all."""

    files: list[str] = field(default_factory=list)
    wrong: dict[Slice, str] = field(default_factory=dict)
    """Slices with a row whose hash does not match -> the row."""
    gone: dict[Slice, Sequence[str]] = field(default_factory=dict)
    """Slices written as a difference -> their files to replace, relative to the table's location."""
    keys: dict[Slice, KeyDifference] = field(default_factory=dict)
    """How the keys of these slices change, unless very many differ."""
    tasks: list[int] = field(default_factory=list)
    """For each task, the rows that it wrote."""


@dataclass(frozen=True)
class Refining:
    """The function of a task: files of refined from files of raw."""

    stores: Mapping[str, Store]
    sources: Mapping[str, str]
    hashes: EventHashes
    layout: FileLayout
    target: Store

    def __call__(self, part: Sequence[SliceWork]) -> Refined:
        """Raises TidemarkError for failures to read or write."""
        refined = Refined()
        with DataFileWriter(self.layout, self.target) as writer:
            for work in part:
                if work.held:
                    self._difference(work, writer, refined)
                else:
                    self._whole(work, writer, refined)
            refined.files.extend(writer.finish())
        refined.tasks.append(writer.rows)
        return refined

    def _whole(self, work: SliceWork, writer: DataFileWriter, refined: Refined) -> None:
        inputs = list(self._inputs(work))
        parts = self._parts(work.rows, [(file, None) for file, _ in inputs])
        for file, is_lost in inputs:
            for rows in self._rows(file, work.key, refined):
                _add(writer, parts, rows.filter(pa.array(~is_lost.of(rows))), refined)

    def _difference(self, work: SliceWork, writer: DataFileWriter, refined: Refined) -> None:
        files = [_File(self.target, path, None) for path in work.held]
        numbers = RowNumbers()
        held, counts = self._held(numbers, files)
        if not held.are_distinct:
            # Another program wrote these files, so all of them are replaced.
            self._whole(work, writer, refined)
            refined.gone[work.key] = work.held
            return
        new = self._new(numbers, held, work)
        ends = np.cumsum(counts)
        stays = zip(files, np.split(held.is_wanted, ends[:-1]), strict=True)
        replaced = [(file, is_wanted) for file, is_wanted in stays if not is_wanted.all()]
        opened = [(file, is_chosen) for file, is_chosen in (*new, *replaced) if is_chosen.any()]
        parts = self._parts(sum(int(is_chosen.sum()) for _, is_chosen in opened), opened)
        added: list[Columns] = []
        gone: list[Columns] = []
        for file, is_chosen in opened:
            for rows in self._rows(file, work.key, refined, is_chosen):
                if file.source is not None:
                    _take(added, rows)
                _add(writer, parts, rows, refined)
        for file, is_wanted in replaced:
            for rows in self._narrow(file, KEYS_OF, ~is_wanted):
                _take(gone, rows)
        refined.gone[work.key] = [file.path for file, _ in replaced]
        if max(_count(added), _count(gone)) <= _MOST_TOLD_KEYS:
            change = compared(joined(gone), joined(added))
            refined.keys[work.key] = replace(change, kept=change.kept + int(ends[-1]) - _count(gone))

    def _parts(self, rows: int, chosen: Iterable[tuple[_File, Mask | None]]) -> ArrivalParts:
        narrow = (of for file, is_chosen in chosen for of in self._narrow(file, (RECEIVED,), is_chosen))
        return ArrivalParts.of(rows, narrow)

    def _inputs(self, work: SliceWork) -> Iterator[tuple[_File, _Losers]]:
        for given in work.inputs:
            is_lost = _Losers(given.losers)
            for path in given.paths:
                yield _File(self.stores[given.table], path, self.sources[given.table]), is_lost

    def _narrow(self, file: _File, columns: Iterable[str], is_chosen: Mask | None = None) -> Iterator[pa.Table]:
        types = {name: self.layout.types[name] for name in columns}
        return file_rows.narrow_rows(file.store, file.path, types, is_chosen=is_chosen)

    def _held(self, numbers: RowNumbers, files: Sequence[_File]) -> tuple[HeldRows, list[int]]:
        found, hashes, counts = [NO_LONGS], [NO_LONGS], []
        for file in files:
            counts.append(0)
            for rows in self._narrow(file, ("_source", *NAMES)):
                found.append(numbers.of(whole(rows["_source"]), rows))
                hashes.append(longs(rows["_hash_a"]))
                counts[-1] += rows.num_rows
        return HeldRows(np.concatenate(found), np.concatenate(hashes)), counts

    def _new(self, numbers: RowNumbers, held: HeldRows, work: SliceWork) -> list[tuple[_File, Mask]]:
        """The raw files of a slice, each with a mask of the rows that refined lacks."""
        inputs, counts = list(self._inputs(work)), []
        masks, hashes = [NO_LONGS.astype(np.bool_)], [NO_LONGS]
        for file, is_lost in inputs:
            counts.append(0)
            for rows in self._narrow(file, NAMES):
                contents = rows["_hash_a"].to_numpy()
                masks.append(held.meet(numbers.of(pa.scalar(file.source), rows), contents, ~is_lost.of(rows)))
                hashes.append(contents[masks[-1]])
                counts[-1] += rows.num_rows
        is_new = np.concatenate(masks)
        is_new[is_new] = held.lacks(np.concatenate(hashes))
        return list(zip((file for file, _ in inputs), np.split(is_new, np.cumsum(counts)), strict=False))

    def _rows(self, file: _File, key: Slice, refined: Refined, is_chosen: Mask | None = None) -> Iterator[pa.Table]:
        wanted = [name for name in self.layout.field_ids if name != "_source" or file.source is None]
        for rows in file_rows.rows_of(file.store, file.path, wanted, _BATCH_ROWS, is_chosen):
            # A column added to raw after this file is null.
            placed = file_rows.with_columns(rows, self.layout.types)
            if file.source is not None:
                sources = pa.repeat(pa.scalar(file.source), rows.num_rows)
                placed = placed.set_column(placed.column_names.index("_source"), "_source", sources)
            if key not in refined.wrong and (wrong := self._wrong(placed)):
                refined.wrong[key] = f"{file.store.url}/{file.path} {wrong}"
            yield placed

    def _wrong(self, rows: pa.Table) -> str | None:
        """A sampled row whose hash does not match its content; None if all match."""
        start = int.from_bytes(os.urandom(4)) % max(1, rows.num_rows - _SAMPLED_ROWS + 1)
        sample = rows.slice(start, _SAMPLED_ROWS)
        if not sample.num_rows:
            return None
        made = self.hashes.of(sample)
        are_as_parsed = [pc.fill_null(pc.equal(made[name], whole(sample.column(name))), False) for name in HASH_COLUMNS]
        at = pc.index(reduce(pc.and_, are_as_parsed), False).as_py()
        if at < 0:
            return None
        line, key = sample.column("_line_number")[at], sample.column("_object_key")[at]
        return f"holds line {line} of {key} with another hash than its own"


class _File(NamedTuple):
    store: Store
    path: str
    source: str | None


class _Losers:
    def __init__(self, told: bytes | None) -> None:
        self._keys: pa.Array | None = None
        if told is not None:
            rows = file_rows.from_bytes(told)
            names = whole(rows.column("_object_key")).cast(pa.string())
            self._keys = names.unique()
            self._places = _place(pc.index_in(names, self._keys), rows.column("_line_number"))

    def of(self, rows: pa.Table) -> Mask:
        if self._keys is None:
            return np.zeros(rows.num_rows, dtype=np.bool_)
        at = _place(pc.fill_null(pc.index_in(rows.column("_object_key"), self._keys), -1), rows.column("_line_number"))
        return np.isin(at, self._places)


def _place(objects: pa.Array | pa.ChunkedArray, lines: pa.ChunkedArray) -> Longs:
    return longs(objects) << _LINE_BITS | longs(lines)


def _take(keys: list[Columns], rows: pa.Table) -> None:
    if _count(keys) <= _MOST_TOLD_KEYS:
        keys.append(EVENT_CONTENTS.of(rows))


def _count(keys: list[Columns]) -> int:
    return sum(len(first) for first, *_ in keys)


def _add(writer: DataFileWriter, parts: ArrivalParts, rows: pa.Table, refined: Refined) -> None:
    for number, of_part in parts.divide(rows):
        for batch in of_part.to_batches():
            refined.files.extend(writer.add(batch, number))


_FILE_COST_BYTES = 256 * 1024
"""The cost of opening a file and beginning another one, in bytes written."""
_NARROW = 0.15
"""The cost of comparing a byte, as a share of the cost of writing it."""
_SPLIT_BYTES = 16 * 1024**2
"""Smaller slices are not divided among tasks, because each would write a small file."""


def rows_to_files(layout: FileLayout, target: Store, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Writes rows with the table's columns, sorted by slice; returns files (one column, string): a function of `mapInArrow`."""
    files: list[str] = []
    with DataFileWriter(layout, target) as writer:
        for rows in batches:
            for placed in file_rows.with_columns(pa.Table.from_batches([rows]), layout.types).to_batches():
                files.extend(writer.add(placed))
        files.extend(writer.finish())
    yield pa.RecordBatch.from_pydict({"file": pa.array(files, pa.string())})


Losers = Mapping[tuple[Slice, str], pa.Table]
"""Slice and source -> `_object_key` (string, or a dictionary) and `_line_number` (int) of the rows to leave out."""


def work_of(
    parts: Sequence[Sequence[file_rows.SliceFile]], losers: Losers, held: Mapping[Slice, Sequence[file_rows.SliceFile]]
) -> list[list[SliceWork]]:
    """The work of each task; `losers`: by key of the raw table; `held`: slices to write as a difference -> files in refined."""
    told = {at: file_rows.as_bytes(rows) for at, rows in losers.items()}
    work: list[list[SliceWork]] = []
    for part in parts:
        work.append([])
        for key, same in groupby(part, lambda file: file.key):
            files = list(same)
            inputs = [
                Input(table, [file.path for file in of_table], told.get((key, table)))
                for table, of_table in groupby(files, lambda file: file.table)
            ]
            rows = sum(file.rows for file in files)
            work[-1].append(SliceWork(key, inputs, rows, [file.path for file in held.get(key, ())]))
    return work


def together(results: Iterable[Refined]) -> Refined:
    """The result of all tasks."""
    told = Refined()
    for one in results:
        told.files.extend(one.files)
        told.wrong.update(one.wrong)
        told.gone.update(one.gone)
        told.keys.update(one.keys)
        told.tasks.extend(one.tasks)
    return told


def weight_of(file: file_rows.SliceFile, compared: Collection[Slice]) -> float:
    """The weight of a file: a fixed cost plus its bytes, which count less if its slice is only compared."""
    return file.size_bytes * (_NARROW if file.key in compared else 1) + _FILE_COST_BYTES


def file_parts(
    files: Sequence[file_rows.SliceFile], parallelism: int, compared: Collection[Slice] = ()
) -> list[list[file_rows.SliceFile]]:
    """Parts of about equal weight, one for each task; a slice's files stay together unless it is large and not in `compared`."""
    ordered = sorted(files, key=lambda file: (file.key.project_id, file.key.event_date, file.table, file.path))
    slices = [list(group) for _, group in groupby(ordered, lambda file: file.key)]

    weights = {file: weight_of(file, compared) for file in ordered}
    share = sum(weights.values()) / max(1, parallelism)
    parts: list[list[file_rows.SliceFile]] = [[]]
    weight = 0.0
    for same in slices:
        if weight and weight + sum(weights[file] for file in same) > 1.5 * share:
            parts.append([])
            weight = 0.0
        is_whole = same[0].key in compared or sum(weights[file] for file in same) < _SPLIT_BYTES
        for file in same:
            if weight >= share and (file is same[0] or not is_whole):
                parts.append([])
                weight = 0.0
            parts[-1].append(file)
            weight += weights[file]
    return [part for part in parts if part]
