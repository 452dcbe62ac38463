"""Keys of rows in files: the first halves find those that may occur twice, both halves of these decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.contest import cells_of, group_numbers, neighbours
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_hashes import KEY, Longs, Mask, are_among, longs, part_of
from pipeline_assets.transforms.file_rows import SliceFile, narrow_rows

KEY_TYPES = dict.fromkeys(KEY, "bigint")
FIRST_HALF = dict.fromkeys(KEY[:1], "bigint")


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


@dataclass(frozen=True)
class Held:
    """Cells: each distinct key of each slice once, with the states in which the slice holds it; of keys that several hold."""

    slices: list[Slice]
    slice_of: Longs
    """The place of each cell's slice."""
    keys: Longs
    """A number of each cell's key; keys of two projects have two numbers."""
    cells: Longs
    """As `contest.cells_of`, sorted."""
    states: Longs
    """Bits."""
    window_days: int

    @staticmethod
    def of(rows: Iterable[StateKeys], window_days: int) -> Held:
        """The cells of these rows, which hold all rows of their keys in the slices and states to compare."""
        parts = list(rows)
        slices = sorted({part.keys.key for part in parts})
        projects = sorted({key.project_id for key in slices})
        number_of = {key: number for number, key in enumerate(slices)}
        halves = [np.zeros((2, 0), np.int64), *(np.stack(part.keys.halves) for part in parts)]
        counts = [half.shape[1] for half in halves[1:]]
        slice_of = np.repeat(np.asarray([number_of[part.keys.key] for part in parts], np.int64), counts)
        states = np.repeat(np.asarray([1 << part.state for part in parts], np.int64), counts)
        first, second = np.concatenate(halves, axis=1)
        # Most keys are held by one slice alone; those say nothing.
        order = np.argsort(first)
        ordered, holders = first[order], slice_of[order]
        are_shared = (ordered[1:] == ordered[:-1]) & (holders[1:] != holders[:-1])
        chosen = are_among(first, np.unique(ordered[1:][are_shared]))
        first, second, slice_of, states = (column[chosen] for column in (first, second, slice_of, states))
        days = np.asarray([key.event_date.toordinal() for key in slices], np.int64)
        of_project = np.asarray([projects.index(key.project_id) for key in slices], np.int64)
        keys = group_numbers(second, first, of_project[slice_of])
        cells, at, of_rows = np.unique(
            cells_of(keys, days[slice_of], window_days), return_index=True, return_inverse=True
        )
        bits = np.zeros(len(cells), dtype=np.int64)
        np.bitwise_or.at(bits, of_rows, states)
        return Held(slices, slice_of[at], keys[at], cells, bits, window_days)

    def are_in(self, state: int) -> Mask:
        """Which cells are held in a state."""
        return np.asarray(self.states >> state & 1, dtype=np.bool_)

    def are_of(self, slices: Set[Slice]) -> Mask:
        """Which cells are of these slices."""
        return np.asarray([key in slices for key in self.slices], dtype=np.bool_)[self.slice_of]

    def whose_key_is(self, are_chosen: Mask) -> Mask:
        """Which cells have the key of a chosen one."""
        found = np.zeros(int(self.keys.max(initial=-1)) + 1, dtype=np.bool_)
        found[self.keys[are_chosen]] = True
        return np.asarray(found[self.keys])

    def near(self) -> Iterator[tuple[slice, slice, Mask]]:
        """Pairs of cells of one key on two days within the window, as `contest.neighbours` gives them."""
        return neighbours(self.cells, self.window_days)


BEFORE, BUILT, RAW = range(3)


@dataclass(frozen=True)
class Linking:
    """Finds the pairs of slices that must be published together, or events would be lost or doubled.

    States: refined as published (BEFORE), the built slices (BUILT), both raw tables (RAW). A key that leaves a built slice links
    it to the slices that are to gain the key: their raw rows hold it and their published rows do not. A key on two days
    afterwards links a built slice to one not built.
    """

    built: Set[Slice]
    window_days: int

    def __call__(self, _: int, rows: Iterable[StateKeys]) -> set[tuple[Slice, Slice]]:
        """Each pair once, from all rows of some keys: what an exchange collects."""
        held = Held.of(rows, self.window_days)
        are_built, before = held.are_of(self.built), held.are_in(BEFORE)
        after = np.where(are_built, held.are_in(BUILT), before)
        left = are_built & before & ~after
        moved = left | (held.are_in(RAW) & ~before & held.whose_key_is(left))
        links: set[tuple[int, int]] = set()
        for one, other, are_near in held.near():
            on_two_days = after[one] & after[other] & (are_built[one] != are_built[other])
            chosen = are_near & (on_two_days | (moved[one] & moved[other]))
            ends = (held.slice_of[one][chosen], held.slice_of[other][chosen])
            links.update(zip(*(end.tolist() for end in np.unique(np.stack(ends), axis=1)), strict=True))
        return {(held.slices[one], held.slices[other]) for one, other in links}


THEN, NOW = range(2)


@dataclass(frozen=True)
class Tearing:
    """Counts the keys that a rollback of the chosen slices alone would break, by the slices beside these that hold or held them.

    States: THEN and NOW, of the chosen slices and those beside. A key is doubled if a chosen slice gets it back while one beside
    holds it now. It is lost if a slice beside held it then and only a chosen one holds it now.
    """

    chosen: Set[Slice]
    window_days: int

    def __call__(self, _: int, rows: Iterable[StateKeys]) -> Counter[Slice]:
        """The slices beside with such keys, from all rows of some keys: what an exchange collects."""
        held = Held.of(rows, self.window_days)
        are_chosen, then, now = held.are_of(self.chosen), held.are_in(THEN), held.are_in(NOW)
        given_back, kept = are_chosen & then, ~are_chosen & now
        doubled, taken = np.zeros((2, len(held.cells)), dtype=np.bool_)
        for pair in held.near():
            for own, other in (pair[:2], pair[1::-1]):
                doubled[own] |= pair[2] & kept[own] & given_back[other]
                taken[own] |= pair[2] & ~are_chosen[own] & then[own] & are_chosen[other] & now[other]
        lost = taken & ~held.whose_key_is(kept | given_back)
        return Counter(held.slices[place] for place in held.slice_of[doubled | lost].tolist())
