"""Keys of rows in files: the first halves find those that may occur twice, both halves of these decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_hashes import Longs, are_among, longs, part_of
from pipeline_assets.transforms.file_rows import SliceFile, narrow_rows

FIRST_HALF = {"_key_a": "bigint"}
KEY_TYPES = {**FIRST_HALF, "_key_b": "bigint"}


class KeyRows(NamedTuple):
    """Both halves of the keys (int64, as bytes) of some rows of a slice."""

    key: Slice
    first: bytes
    second: bytes

    @property
    def halves(self) -> tuple[Longs, Longs]:
        """As arrays."""
        return np.frombuffer(self.first, np.int64), np.frombuffer(self.second, np.int64)


class StateKeys(NamedTuple):
    """Keys that a slice holds in one of several states."""

    state: int
    keys: KeyRows


def first_halves(_: SliceFile, tables: Iterator[pa.Table]) -> bytes:
    """The first half of each key of a file (int64): a `RowsOf` for FIRST_HALF."""
    return b"".join(halves_of(rows).tobytes() for rows in tables)


def halves_of(rows: pa.Table) -> Longs:
    """The first half of each key; a row without one, which another program wrote, shares no key."""
    return longs(rows["_key_a"].drop_null())


def both_halves(rows: pa.Table) -> tuple[Longs, Longs]:
    """Both halves of each key, as `halves_of`."""
    there = rows.drop_null() if rows["_key_a"].null_count else rows
    first, second = (longs(there[name]) for name in KEY_TYPES)
    return first, second


def occurring_twice(halves: Sequence[bytes]) -> tuple[Longs, Longs]:
    """The numbers (int64, as bytes) that occur more than once, sorted, and how often each occurs."""
    every = np.sort(np.frombuffer(b"".join(halves), np.int64))
    twice = np.unique(every[1:][every[1:] == every[:-1]])
    return twice, np.searchsorted(every, twice, "right") - np.searchsorted(every, twice, "left")


@dataclass(frozen=True)
class KeysAmong:
    """The keys of a file's rows whose first half is among some: a `RowsOf` for KEY_TYPES."""

    first_halves: bytes | None
    """Sorted int64; None for all rows."""

    def __call__(self, file: SliceFile, tables: Iterator[pa.Table]) -> KeyRows:
        """Both halves of each."""
        wanted = None if self.first_halves is None else np.frombuffer(self.first_halves, np.int64)
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        for rows in tables:
            halves = both_halves(rows)
            chosen = slice(None) if wanted is None else are_among(halves[0], wanted)
            for half, part in zip(halves, parts, strict=True):
                part.append(half[chosen].tobytes())
        return KeyRows(file.key, *(b"".join(part) for part in parts))


@dataclass(frozen=True)
class RangesOfKeys:
    """The function of an exchange by ranges of keys: range -> rows of one file. For more keys than one process should hold."""

    stores: Mapping[str, Store]
    """Key of a table -> the objects below its location."""
    ranges: int
    """At most a million."""

    def __call__(self, items: Sequence[tuple[int, SliceFile | KeyRows]]) -> Iterator[tuple[int, StateKeys]]:
        """`items`: each with its state. Keys are hashes, so ranges of equal width hold about equally many."""
        for state, item in items:
            for first, second in self._halves(item):
                places = part_of(first, self.ranges)
                for number in np.unique(places).tolist():
                    chosen = places == number
                    yield number, StateKeys(state, KeyRows(item.key, first[chosen].tobytes(), second[chosen].tobytes()))

    def _halves(self, item: SliceFile | KeyRows) -> Iterator[tuple[Longs, Longs]]:
        if isinstance(item, KeyRows):
            yield item.halves
            return
        for rows in narrow_rows(self.stores[item.table], item.path, KEY_TYPES):
            yield both_halves(rows)
