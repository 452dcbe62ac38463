"""The tasks of a contest: find keys that occur twice, read their rows, decide ranges of keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date, timedelta

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.identity import with_tie
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source
from pipeline_assets.transforms import contest
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_hashes import (
    KEY,
    NO_LONGS,
    ROW_ID,
    Longs,
    Mask,
    are_among,
    hashes_of,
    part_of,
    whole,
)
from pipeline_assets.transforms.file_rows import SliceFile, as_bytes, by_number, from_bytes, narrow_rows
from pipeline_assets.transforms.keys import halves_of

_RIVAL = {
    "_day": "int",
    **dict.fromkeys(KEY, "bigint"),
    ROW_ID: "string",
    contest.RECEIVED: "timestamp",
    contest.PROCESSED: "timestamp",
    "_source": "string",
}
"""Columns that competing rows compare. Content only decides ties, and a slice with a tie never counts as unchanged."""
_HALF = 32
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class CompetingSum:
    """Sums over rows of other days within the window whose key the slice holds; additive."""

    digest: Digest = EMPTY
    is_tied: bool = False

    def __add__(self, other: CompetingSum) -> CompetingSum:
        """Of disjoint sets of competing rows."""
        return CompetingSum(self.digest + other.digest, self.is_tied or other.is_tied)

    def __str__(self) -> str:
        """The text in a slice's record."""
        return with_tie(str(self.digest)) if self.is_tied else str(self.digest)


def competing_sums(
    rows: pa.Table, precedence: Sequence[Source], window_days: int, is_guest: Mask | None = None
) -> dict[Slice, CompetingSum]:
    """Slice -> its competing rows among these (SCHEMA); equal rows count once, guests only show that a day holds the key."""
    counted = np.ones(rows.num_rows, dtype=np.bool_) if is_guest is None else ~is_guest
    is_beside = _are_beside(contest.key_numbers(rows), contest.numbers_of(rows["_day"]), window_days)
    if not is_beside.any():
        return {}
    rows, counted = rows.filter(pa.array(is_beside)).combine_chunks(), counted[is_beside]
    keys = contest.key_numbers(rows)
    is_one = _one_of_equals(rows, keys, precedence, counted)
    rows, counted, keys = rows.filter(pa.array(is_one)).combine_chunks(), counted[is_one], keys[is_one]
    days = contest.numbers_of(rows["_day"])
    cells, first, at = np.unique(contest.cells_of(keys, days, window_days), return_index=True, return_inverse=True)
    of_cells = _sums(rows, at, counted, len(cells))
    projects = whole(rows["project_id"]).dictionary_encode()
    slices = contest.group_numbers(days, projects.indices.to_numpy().astype(np.int64))
    slice_of_cell = slices[first]
    found = np.zeros((int(slices.max()) + 1, of_cells.shape[1]), dtype=np.int64)
    for left, right, is_near in contest.neighbours(cells, window_days):
        for own, other in ((left, right), (right, left)):
            np.add.at(found, slice_of_cell[own][is_near], of_cells[other][is_near])
    tied = set(slices[_tied(rows, keys, days, window_days)].tolist())
    told = {}
    for number, place in zip(*np.unique(slices, return_index=True), strict=True):
        count, *halves = found[number].tolist()
        digest = Digest(count, *((high << _HALF) + low for high, low in zip(halves[::2], halves[1::2], strict=True)))
        if count or number in tied:
            key = Slice(_EPOCH + timedelta(days=int(days[place])), rows["project_id"][int(place)].as_py())
            told[key] = CompetingSum(digest, int(number) in tied)
    return told


def _sums(rows: pa.Table, cells: Longs, is_counted: Mask, count: int) -> Longs:
    """For each cell the number of its counted rows, and the high and low halves of the sums of both hashes."""
    chosen = rows.filter(pa.array(is_counted)).combine_chunks()
    sums = np.zeros((count, 5), dtype=np.int64)
    if not chosen.num_rows:
        return sums
    hashes = hashes_of(chosen, _RIVAL)
    parts: list[Longs] = [np.ones(chosen.num_rows, dtype=np.int64)]
    for half in map(contest.numbers_of, hashes):
        # By halves, because the sum of 64-bit hashes overflows.
        parts += [half >> _HALF, half & ((1 << _HALF) - 1)]
    np.add.at(sums, cells[is_counted], np.stack(parts, axis=1))
    return sums


def _one_of_equals(rows: pa.Table, keys: Longs, precedence: Sequence[Source], is_counted: Mask) -> Mask:
    equal = contest.equal_numbers(rows, keys)
    order = np.lexsort((contest.source_places(rows, precedence), equal, ~is_counted))
    is_one = np.ones(len(order), dtype=np.bool_)
    is_one[order[1:]] = (equal[order[1:]] != equal[order[:-1]]) | ~is_counted[order[1:]]
    return is_one


def _tied(rows: pa.Table, keys: Longs, days: Longs, window_days: int) -> Mask:
    sources = whole(rows["_source"]).dictionary_encode().indices.to_numpy().astype(np.int64)
    orders = contest.group_numbers(
        keys, sources, contest.numbers_of(rows[contest.PROCESSED]), contest.numbers_of(rows[contest.RECEIVED])
    )
    return _are_beside(orders, days, window_days)


def _are_beside(groups: Longs, days: Longs, window_days: int) -> Mask:
    return contest.best_near(contest.cells_of(groups, days, window_days), groups, window_days)[1]


_COPY = {"_key_b": "bigint", ROW_ID: "string"}
_ORDER = {"_key_b": "bigint", contest.RECEIVED: "timestamp", contest.PROCESSED: "timestamp"}


def heavy_halves(least: int, _: SliceFile, tables: Iterator[pa.Table]) -> dict[int, int]:
    """First half with at least so many rows in a file -> its rows: a `RowsOf` for FIRST_HALF."""
    halves, counts = np.unique(np.concatenate([NO_LONGS, *map(halves_of, tables)]), return_counts=True)
    is_heavy = counts >= least
    return dict(zip(halves[is_heavy].tolist(), counts[is_heavy].tolist(), strict=True))


@dataclass(frozen=True)
class RowsAmong:
    """The rows of a file (SCHEMA, `as_bytes`) whose first half is among `halves` (sorted int64; None: all): a `RowsOf`."""

    sources: Mapping[str, str]
    halves: bytes | None
    precedence: Sequence[Source] | None = None
    """If set, only the best row of each key is kept."""

    def __call__(self, file: SliceFile, tables: Iterator[pa.Table]) -> bytes:
        """The rows, in batches."""
        found = contest.SCHEMA.empty_table()
        for rows in self.batches(file, tables):
            found = pa.concat_tables([found, rows])
            if self.precedence is not None:
                found = contest.best_of_days(found, self.precedence)
        return as_bytes(found)

    def batches(self, file: SliceFile, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The rows, in batches."""
        wanted = None if self.halves is None else np.frombuffer(self.halves, np.int64)
        for rows in tables:
            there = (
                rows if wanted is None else rows.filter(pa.array(are_among(contest.numbers_of(rows["_key_a"]), wanted)))
            )
            if there.num_rows:
                yield contest.contested_rows(there, file.key, self.sources[file.table])


@dataclass(frozen=True)
class Ranges:
    """Division of rows among tasks, so that none holds all rows of a hot key.

    Rows of hot keys are divided twice: by row to decide fates, by times to sum competing rows.
    """

    usual: int
    """Ranges of keys; at most a million."""
    hot: int
    hot_halves: bytes

    @property
    def parts(self) -> int:
        """Ranges of keys, plus both divisions of hot keys."""
        return self.usual + 2 * self.hot

    def divided(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The parts that get these rows."""
        is_hot = are_among(contest.numbers_of(rows["_key_a"]), np.frombuffer(self.hot_halves, np.int64))
        usual, hot = rows.filter(pa.array(~is_hot)), rows.filter(pa.array(is_hot))
        yield from by_number(usual, part_of(contest.numbers_of(usual["_key_a"]), self.usual))
        if hot.num_rows:
            for first, columns in ((self.usual, _COPY), (self.usual + self.hot, _ORDER)):
                yield from by_number(hot, first + part_of(contest.numbers_of(hashes_of(hot, columns)[0]), self.hot))


def divided_rows(
    among: RowsAmong, stores: Mapping[str, Store], ranges: Ranges, items: Sequence[SliceFile | bytes]
) -> Iterator[tuple[int, bytes]]:
    """Part -> rows of files or `as_bytes`: an exchange's divide step. `stores`: key of a table -> objects below its location."""
    for item in items:
        if isinstance(item, bytes):
            found = iter([from_bytes(item)])
        else:
            found = among.batches(item, narrow_rows(stores[item.table], item.path, contest.READ_TYPES))
        for rows in found:
            for part, of_part in ranges.divided(rows):
                yield part, as_bytes(of_part)


@dataclass
class Outcome:
    """A contest's result for some slices; parts that share no row add up."""

    reasons: dict[Slice, Counter[str]] = field(default_factory=dict)
    losers: dict[tuple[Slice, str], list[pa.Table]] = field(default_factory=dict)
    competing: dict[Slice, CompetingSum] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Take in another part."""
        for key, told in other.reasons.items():
            self.reasons.setdefault(key, Counter()).update(told)
        for at, rows in other.losers.items():
            self.losers.setdefault(at, []).extend(rows)
        for key, told_sum in other.competing.items():
            self.competing[key] = self.competing.get(key, CompetingSum()) + told_sum


@dataclass(frozen=True)
class Deciding:
    """Decides rows: the collect step of an exchange for each part, or one process for all rows."""

    slices: Set[Slice]
    """Slices to answer about; rows of others take part in the contest."""
    precedence: Sequence[Source]
    window_days: int
    ranges: Ranges = Ranges(1, 0, b"")
    guests: bytes | None = None

    def __call__(self, part: int, told: Iterable[bytes]) -> Outcome:
        """The outcome of the rows of one part."""
        rows = pa.concat_tables(map(from_bytes, told))
        own = rows.num_rows
        if self.guests is not None and part >= self.ranges.usual:
            rows = pa.concat_tables([rows, from_bytes(self.guests)])
        rows = rows.combine_chunks()
        is_guest: Mask = np.arange(rows.num_rows) >= own
        outcome = Outcome()
        if part < self.ranges.usual + self.ranges.hot:
            decided = contest.decide(rows, self.precedence, self.window_days).take(~is_guest)
            outcome.reasons = {key: one for key, one in decided.reasons().items() if key in self.slices}
            outcome.losers = {at: [one] for at, one in decided.losers().items() if at[0] in self.slices}
        if part < self.ranges.usual or part >= self.ranges.usual + self.ranges.hot:
            found = competing_sums(rows, self.precedence, self.window_days, is_guest)
            outcome.competing = {key: one for key, one in found.items() if key in self.slices}
        return outcome
