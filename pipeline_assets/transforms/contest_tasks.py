"""Functions of the tasks that decide a contest: they find keys that occur twice, read their rows, and decide ranges of keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.transforms.competing import CompetingSum, competing_sums
from pipeline_assets.transforms.contest import best_of_days, decide
from pipeline_assets.transforms.contested_columns import (
    PROCESSED,
    READ_TYPES,
    RECEIVED,
    SCHEMA,
    contested_rows,
    numbers_of,
)
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_hashes import whole
from pipeline_assets.transforms.event_keys import ROW_ID
from pipeline_assets.transforms.file_rows import SliceFile, narrow_rows
from pipeline_assets.transforms.key_halves import halves_of
from pipeline_assets.transforms.longs import Longs, Mask, are_among, part_of
from pipeline_assets.transforms.refine_task import as_bytes, from_bytes
from pipeline_assets.transforms.row_hash_arrow import Encoded

_COPY = {"_key_b": "bigint", ROW_ID: "string"}
_ORDER = {"_key_b": "bigint", RECEIVED: "timestamp", PROCESSED: "timestamp"}


@dataclass(frozen=True)
class HeavyHalves:
    """The first halves with at least so many rows in a file, and their rows: a `RowsOf` for FIRST_HALF."""

    least: int

    def __call__(self, _: SliceFile, tables: Iterator[pa.Table]) -> dict[int, int]:
        """Half -> rows."""
        halves, counts = np.unique(np.concatenate([_NONE, *map(halves_of, tables)]), return_counts=True)
        is_heavy = counts >= self.least
        return dict(zip(halves[is_heavy].tolist(), counts[is_heavy].tolist(), strict=True))


_NONE: Longs = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class RowsAmong:
    """The rows of a file, with `contested_columns.SCHEMA`, whose first half is among some: a `RowsOf` for READ_TYPES."""

    sources: Mapping[str, str]
    """Key of a raw table -> its source."""
    halves: bytes | None
    """Sorted int64; None for all rows."""
    precedence: Sequence[Source] | None = None
    """To keep only the best row of each key."""

    def __call__(self, file: SliceFile, tables: Iterator[pa.Table]) -> bytes:
        """The rows, as `as_bytes` has them."""
        found = SCHEMA.empty_table()
        for rows in self.batches(file, tables):
            found = pa.concat_tables([found, rows])
            if self.precedence is not None:
                found = best_of_days(found, self.precedence)
        return as_bytes(found) or b""

    def batches(self, file: SliceFile, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The rows, in batches."""
        wanted = None if self.halves is None else np.frombuffer(self.halves, np.int64)
        for rows in tables:
            there = rows if wanted is None else rows.filter(pa.array(are_among(numbers_of(rows["_key_a"]), wanted)))
            if there.num_rows:
                yield contested_rows(there, file.key, self.sources[file.table])


@dataclass(frozen=True)
class Ranges:
    """How rows are divided among tasks, so that none holds all rows of a hot key.

    Rows of hot keys are divided twice: deliveries of one row stay together where fates are decided, rows of equal times where
    competing rows are summed. These parts also get the best row of each hot key and day.
    """

    usual: int
    """Ranges of keys; at most a million."""
    hot: int
    """Parts of each of the two divisions."""
    hot_halves: bytes
    """First halves (int64, sorted) of the hot keys."""

    @property
    def parts(self) -> int:
        """All parts: ranges of keys, parts where fates are decided, parts where competing rows are summed."""
        return self.usual + 2 * self.hot

    def divided(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The parts that get these rows."""
        is_hot = are_among(numbers_of(rows["_key_a"]), np.frombuffer(self.hot_halves, np.int64))
        usual, hot = rows.filter(pa.array(~is_hot)), rows.filter(pa.array(is_hot))
        yield from _by_part(usual, part_of(numbers_of(usual["_key_a"]), self.usual), 0)
        if hot.num_rows:
            yield from _by_part(hot, part_of(_hashed(hot, _COPY), self.hot), self.usual)
            yield from _by_part(hot, part_of(_hashed(hot, _ORDER), self.hot), self.usual + self.hot)


def _hashed(rows: pa.Table, types: Mapping[str, str]) -> Longs:
    return numbers_of(Encoded({name: whole(rows[name]) for name in types}, types).hashes()[0])


def _by_part(rows: pa.Table, places: Longs, first: int) -> Iterator[tuple[int, pa.Table]]:
    for place in np.unique(places).tolist():
        yield first + place, rows.filter(pa.array(places == place))


@dataclass(frozen=True)
class Dividing:
    """The function of an exchange: part -> rows, as `as_bytes` has them."""

    among: RowsAmong
    stores: Mapping[str, Store]
    """Key of a raw table -> the objects below its location."""
    ranges: Ranges

    def __call__(self, items: Sequence[SliceFile | bytes]) -> Iterator[tuple[int, bytes]]:
        """The rows of files, or rows that were read before."""
        for item in items:
            for rows in self._rows(item):
                for part, of_part in self.ranges.divided(rows):
                    yield part, as_bytes(of_part) or b""

    def _rows(self, item: SliceFile | bytes) -> Iterator[pa.Table]:
        if isinstance(item, bytes):
            return iter([from_bytes(item)])
        return self.among.batches(item, narrow_rows(self.stores[item.table], item.path, READ_TYPES))


@dataclass
class Outcome:
    """What a contest says of some slices; parts that share no row add up."""

    reasons: dict[Slice, Counter[str]] = field(default_factory=dict)
    """Slice -> fate, or LOST_UNREAD -> number of rows, of the rows that took part."""
    losers: dict[tuple[Slice, str], list[pa.Table]] = field(default_factory=dict)
    """Slice and source -> the losing rows, with the schema `contest.LOSERS`."""
    competing: dict[Slice, CompetingSum] = field(default_factory=dict)
    """Slices without competing rows are left out."""

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
    """Decides rows: what an exchange collects for each part, or one process for all rows."""

    slices: Set[Slice]
    """Whose outcome is asked for; rows of others take part in the contest."""
    precedence: Sequence[Source]
    window_days: int
    ranges: Ranges = Ranges(1, 0, b"")
    guests: bytes | None = None
    """The best rows of each hot key and day, from `RowsAmong`."""

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
            decided = decide(rows, self.precedence, self.window_days).take(~is_guest)
            outcome.reasons = {key: one for key, one in decided.reasons().items() if key in self.slices}
            outcome.losers = {at: [one] for at, one in decided.losers().items() if at[0] in self.slices}
        if part < self.ranges.usual or part >= self.ranges.usual + self.ranges.hot:
            found = competing_sums(rows, self.precedence, self.window_days, is_guest)
            outcome.competing = {key: one for key, one in found.items() if key in self.slices}
        return outcome
