"""Keys of rows in files: the first halves find those that may occur twice, both halves of these decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.contest import cells_of, group_numbers, neighbours, numbers_of
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_hashes import (
    IDS,
    KEY,
    Longs,
    Mask,
    are_among,
    hashes_of,
    longs,
    named,
    part_of,
    whole,
)
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


KEYS_OF = (*KEY, "_meaning_hash", *IDS)
KEYS = pa.schema([*((name, pa.int64()) for name in KEY), ("is_added", pa.bool_())])
_Columns = tuple[Longs, Longs, Longs]
"""Both halves of the key, and the meaning, of each row."""


@dataclass(frozen=True)
class KeyDifference:
    """How the keys of one slice change."""

    kept: int
    changed: int
    differing: pa.Table
    """The keys that the slice gains or loses, with the schema KEYS."""

    def __add__(self, other: KeyDifference) -> KeyDifference:
        """Of two sets of rows of the slice that share no key."""
        differing = pa.concat_tables([self.differing, other.differing])
        return KeyDifference(self.kept + other.kept, self.changed + other.changed, differing)


@dataclass(frozen=True)
class EventContents:
    """Keys and meanings of events, as `key_changes.with_event_keys`: the meaning is the key of a row without an id."""

    @property
    def types(self) -> dict[str, str]:
        """Column to read -> Spark type."""
        return {name: "string" if name in IDS else "bigint" for name in KEYS_OF}

    def of(self, rows: pa.Table) -> _Columns:
        """Of rows with these columns."""
        are_named = np.logical_or(*(named(whole(rows[name])).is_valid().to_numpy(zero_copy_only=False) for name in IDS))
        first, second, meaning = (numbers_of(rows[name]) for name in (*KEY, "_meaning_hash"))
        return np.where(are_named, first, meaning), np.where(are_named, second, 0), meaning


@dataclass(frozen=True)
class NamedContents:
    """The same of rows that columns of their own identify."""

    keys: Mapping[str, str]
    """Column -> Spark type, of those that identify a row."""
    content: Mapping[str, str]
    """The same of those that it says something in."""

    @property
    def types(self) -> dict[str, str]:
        """Column to read -> Spark type."""
        return {**self.keys, **self.content}

    def of(self, rows: pa.Table) -> _Columns:
        """Of rows with these columns."""
        (first, second), (meaning, _) = (hashes_of(rows, kinds) for kinds in (self.keys, self.content))
        return numbers_of(first), numbers_of(second), numbers_of(meaning)


Contents = EventContents | NamedContents


@dataclass(frozen=True)
class TwoStates:
    """One part of the work of comparing a slice: the keys of one range of several."""

    key: Slice
    before: Sequence[SliceFile | bytes]
    """Its files, or what `ContentsOf` told of rows that only Spark can read."""
    after: Sequence[SliceFile | bytes]
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class ContentsOf:
    """The slice, and the keys and meanings of a file's rows (three columns of int64): a `RowsOf` for the types of `contents`."""

    contents: Contents

    def __call__(self, file: SliceFile, tables: Iterator[pa.Table]) -> tuple[Slice, bytes]:
        """Of the rows, which come in batches."""
        return file.key, np.stack(joined(map(self.contents.of, tables))).tobytes()


def joined(parts: Iterable[_Columns]) -> _Columns:
    """The columns of all parts."""
    nothing = np.zeros(0, dtype=np.int64)
    first, second, meaning = map(np.concatenate, zip((nothing, nothing, nothing), *parts, strict=True))
    return first, second, meaning


@dataclass(frozen=True)
class Comparing:
    """The function of a task: how the keys of slices change."""

    store: Store
    """Of their table."""
    contents: Contents

    def __call__(self, items: Sequence[TwoStates]) -> list[tuple[Slice, KeyDifference]]:
        """Parts of a slice add up."""
        return [(item.key, compared(self._state(item, item.before), self._state(item, item.after))) for item in items]

    def _state(self, item: TwoStates, files: Sequence[SliceFile | bytes]) -> _Columns:
        return joined(columns for file in files for columns in self._columns(item, file))

    def _columns(self, item: TwoStates, file: SliceFile | bytes) -> Iterator[_Columns]:
        if isinstance(file, bytes):
            first, second, meaning = np.frombuffer(file, np.int64).reshape(3, -1)
            yield _of_part(item, (first, second, meaning))
            return
        for rows in narrow_rows(self.store, file.path, self.contents.types):
            yield _of_part(item, self.contents.of(rows))


def _of_part(item: TwoStates, columns: _Columns) -> _Columns:
    is_chosen = columns[0].view(np.uint64) % np.uint64(item.parts) == item.part
    first, second, meaning = (column[is_chosen] for column in columns)
    return first, second, meaning


def compared(before: _Columns, after: _Columns) -> KeyDifference:
    """How the keys change: rows with an equal key and meaning are kept, others with an equal key are changed, pair by pair."""
    first, second, meaning = (np.concatenate(pair) for pair in zip(before, after, strict=True))
    if not len(first):
        return KeyDifference(0, 0, KEYS.empty_table())
    keys = group_numbers(second, first)
    rows = group_numbers(meaning, keys)
    is_after = np.arange(len(first)) >= len(before[0])
    was, is_now = (np.bincount(rows[which], minlength=int(rows.max()) + 1) for which in (~is_after, is_after))
    kept = np.minimum(was, is_now)
    key_of_row = np.zeros(len(kept), dtype=np.int64)
    key_of_row[rows] = keys
    left, came = np.zeros((2, int(keys.max()) + 1), dtype=np.int64)
    np.add.at(left, key_of_row, was - kept)
    np.add.at(came, key_of_row, is_now - kept)
    changed = np.minimum(left, came)
    place = np.zeros(len(left), dtype=np.int64)
    place[keys] = np.arange(len(keys))
    added, removed = (np.repeat(place, counts - changed) for counts in (came, left))
    at = np.concatenate([added, removed])
    differing = [first[at], second[at], np.arange(len(at)) < len(added)]
    table = pa.Table.from_arrays([pa.array(column) for column in differing], schema=KEYS)
    return KeyDifference(int(kept.sum()), int(changed.sum()), table)


@dataclass
class HeldKeys:
    """Keys that slices hold, collected from `KeysAmong`."""

    of_slices: dict[Slice, list[Longs]] = field(default_factory=dict)

    def add(self, rows: KeyRows) -> None:
        """Take in those of one file."""
        self.of_slices.setdefault(rows.key, []).append(np.stack(rows.halves))

    def near(self, key: Slice, window_days: int) -> Longs:
        """Those of other days of the project within the window, in two columns."""
        found = [np.zeros((2, 0), dtype=np.int64)]
        for other, parts in self.of_slices.items():
            if other.project_id == key.project_id and 0 < abs((other.event_date - key.event_date).days) <= window_days:
                found += parts
        return np.concatenate(found, axis=1)


def moved(key: Slice, differing: pa.Table, held: Mapping[bool, HeldKeys], window_days: int) -> dict[bool, int]:
    """How many added (True) and removed (False) keys of a slice another day within the window gave or got.

    `differing`: of the schema KEYS; `held`: True -> keys that were held before, False -> keys that are held afterwards.
    """
    counts = {}
    for is_added, of_side in held.items():
        own = differing.filter(pa.array(_is_side(differing, is_added)))
        others = of_side.near(key, window_days)
        codes = group_numbers(
            *(np.concatenate([numbers_of(own[name]), half]) for name, half in zip(KEY, others, strict=True))
        )
        counts[is_added] = int(np.isin(codes[: own.num_rows], codes[own.num_rows :]).sum())
    return counts


def _is_side(differing: pa.Table, is_added: bool) -> Mask:
    found: Mask = whole(differing["is_added"]).to_numpy(zero_copy_only=False) == is_added
    return found
