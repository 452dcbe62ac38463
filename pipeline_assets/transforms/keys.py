"""Keys of rows in files: which occur twice, which days exchange or would lose some, and how those of a slice change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.contest import cells_of, group_numbers, neighbours, numbers_of
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_hashes import (
    IDS,
    KEY,
    NO_LONGS,
    Longs,
    Mask,
    are_among,
    are_null,
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
    """Both halves of keys (int64, as bytes) of rows of a slice in one of several states."""

    key: Slice
    first: bytes
    second: bytes
    state: int = 0

    @property
    def halves(self) -> tuple[Longs, Longs]:
        """As arrays."""
        return np.frombuffer(self.first, np.int64), np.frombuffer(self.second, np.int64)


def first_halves(_: SliceFile, tables: Iterator[pa.Table]) -> bytes:
    """The first half of each key of a file (int64): a `RowsOf` for FIRST_HALF."""
    return b"".join(halves_of(rows).tobytes() for rows in tables)


def halves_of(rows: pa.Table) -> Longs:
    """The first half of each key, without rows of another program that have none."""
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


def keys_among(wanted: bytes | None, file: SliceFile, tables: Iterator[pa.Table]) -> KeyRows:
    """The keys of a file's rows whose first half is wanted (sorted int64; None: all): a `RowsOf` for KEY_TYPES."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for rows in tables:
        halves = both_halves(rows)
        chosen = slice(None) if wanted is None else are_among(halves[0], np.frombuffer(wanted, np.int64))
        for half, part in zip(halves, parts, strict=True):
            part.append(half[chosen].tobytes())
    return KeyRows(file.key, b"".join(parts[0]), b"".join(parts[1]))


def keys_by_range(
    stores: Mapping[str, Store], ranges: int, items: Sequence[tuple[int, SliceFile] | KeyRows]
) -> Iterator[tuple[int, KeyRows]]:
    """Range of keys (at most a million) -> rows of one file: an exchange of more keys than one process should hold."""
    for item in items:
        if isinstance(item, KeyRows):
            key, state, halves = item.key, item.state, iter([item.halves])
        else:
            (state, file), key = item, item[1].key
            halves = map(both_halves, narrow_rows(stores[file.table], file.path, KEY_TYPES))
        for first, second in halves:
            places = part_of(first, ranges)
            for number in np.unique(places).tolist():
                chosen = places == number
                yield number, KeyRows(key, first[chosen].tobytes(), second[chosen].tobytes(), state)


class _Held:
    def __init__(self, rows: Iterable[KeyRows], window_days: int) -> None:
        parts = list(rows)
        self.window_days = window_days
        self.slices = slices = sorted({part.key for part in parts})
        projects = sorted({key.project_id for key in slices})
        number_of = {key: number for number, key in enumerate(slices)}
        halves = [np.zeros((2, 0), np.int64), *(np.stack(part.halves) for part in parts)]
        counts = [half.shape[1] for half in halves[1:]]
        slice_of = np.repeat(np.asarray([number_of[part.key] for part in parts], np.int64), counts)
        states = np.repeat(np.asarray([1 << part.state for part in parts], np.int64), counts)
        first, second = np.concatenate(halves, axis=1)
        # Most keys belong to one slice alone.
        order = np.argsort(first)
        ordered, holders = first[order], slice_of[order]
        are_shared = (ordered[1:] == ordered[:-1]) & (holders[1:] != holders[:-1])
        chosen = are_among(first, np.unique(ordered[1:][are_shared]))
        first, second, slice_of, states = (column[chosen] for column in (first, second, slice_of, states))
        days = np.asarray([key.event_date.toordinal() for key in slices], np.int64)
        of_project = np.asarray([projects.index(key.project_id) for key in slices], np.int64)
        keys = group_numbers(second, first, of_project[slice_of])
        self.cells, at, of_rows = np.unique(
            cells_of(keys, days[slice_of], window_days), return_index=True, return_inverse=True
        )
        self.slice_of, self.keys = slice_of[at], keys[at]
        self._states = np.zeros(len(self.cells), dtype=np.int64)
        np.bitwise_or.at(self._states, of_rows, states)

    def are_in(self, state: int) -> Mask:
        return np.asarray(self._states >> state & 1, dtype=np.bool_)

    def are_of(self, slices: Set[Slice]) -> Mask:
        return np.asarray([key in slices for key in self.slices], dtype=np.bool_)[self.slice_of]

    def whose_key_is(self, are_chosen: Mask) -> Mask:
        found = np.zeros(int(self.keys.max(initial=-1)) + 1, dtype=np.bool_)
        found[self.keys[are_chosen]] = True
        return np.asarray(found[self.keys])

    def near(self) -> Iterator[tuple[slice, slice, Mask]]:
        return neighbours(self.cells, self.window_days)


BEFORE, BUILT, RAW = range(3)


def linked(built: Set[Slice], window_days: int, _: int, rows: Iterable[KeyRows]) -> set[tuple[Slice, Slice]]:
    """Pairs of slices that must be published together, or events would be lost or doubled; from all rows of some keys.

    States: refined as published (BEFORE), the built slices (BUILT), both raw tables (RAW). A key that leaves a built slice links
    it to slices that gain it from raw; a key on two days afterwards links a built slice to one not built.
    """
    held = _Held(rows, window_days)
    are_built, before = held.are_of(built), held.are_in(BEFORE)
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


def torn(rolled_back: Set[Slice], window_days: int, _: int, rows: Iterable[KeyRows]) -> Counter[Slice]:
    """Slices beside -> their keys that a rollback of these slices alone would double or lose; from all rows of some keys.

    States: THEN and NOW. A key is doubled if one of these regains it while one beside holds it now, and lost if a slice beside
    held it then and only one of these holds it now.
    """
    held = _Held(rows, window_days)
    are_chosen, then, now = held.are_of(rolled_back), held.are_in(THEN), held.are_in(NOW)
    given_back, kept = are_chosen & then, ~are_chosen & now
    doubled, taken = np.zeros((2, len(held.cells)), dtype=np.bool_)
    for pair in held.near():
        for own, other in (pair[:2], pair[1::-1]):
            doubled[own] |= pair[2] & kept[own] & given_back[other]
            taken[own] |= pair[2] & ~are_chosen[own] & then[own] & are_chosen[other] & now[other]
    lost = taken & ~held.whose_key_is(kept | given_back)
    return Counter(held.slices[place] for place in held.slice_of[doubled | lost].tolist())


# -- how the keys of a slice change --------------------------------------------------------------------------------

KEYS_OF = (*KEY, "_meaning_hash", *IDS)
KEYS = pa.schema([*((name, pa.int64()) for name in KEY), ("is_added", pa.bool_())])
Columns = tuple[Longs, Longs, Longs]


@dataclass(frozen=True)
class Contents:
    """The columns of a row's key and meaning."""

    types: Mapping[str, str]
    of: Callable[[pa.Table], Columns]


def _event_contents(rows: pa.Table) -> Columns:
    are_named = np.logical_or(*(~are_null(named(whole(rows[name]))) for name in IDS))
    first, second, meaning = (numbers_of(rows[name]) for name in (*KEY, "_meaning_hash"))
    return np.where(are_named, first, meaning), np.where(are_named, second, 0), meaning


EVENT_CONTENTS = Contents({name: "string" if name in IDS else "bigint" for name in KEYS_OF}, _event_contents)


def named_contents(keys: Mapping[str, str], content: Mapping[str, str]) -> Contents:
    """The same for rows with identifying columns of their own; both: column -> Spark type."""
    return Contents({**keys, **content}, partial(_named, keys, content))


def _named(keys: Mapping[str, str], content: Mapping[str, str], rows: pa.Table) -> Columns:
    first, second = hashes_of(rows, keys)
    return longs(first), longs(second), longs(hashes_of(rows, content)[0])


@dataclass(frozen=True)
class KeyDifference:
    """How the keys of one slice change."""

    kept: int
    changed: int
    differing: pa.Table

    def __add__(self, other: KeyDifference) -> KeyDifference:
        """Of two sets of rows of the slice that share no key."""
        differing = pa.concat_tables([self.differing, other.differing])
        return KeyDifference(self.kept + other.kept, self.changed + other.changed, differing)


class TwoStates(NamedTuple):
    """A part of comparing a slice: one of several ranges of keys."""

    key: Slice
    before: Sequence[SliceFile | bytes]
    """Its files, or values of `contents_of` for rows that only Spark can read."""
    after: Sequence[SliceFile | bytes]
    part: int = 0
    parts: int = 1


def contents_of(contents: Contents, file: SliceFile, tables: Iterator[pa.Table]) -> tuple[Slice, bytes]:
    """The slice, and the keys and meanings of a file's rows (three columns of int64): a `RowsOf` for the types of `contents`."""
    return file.key, np.stack(joined(map(contents.of, tables))).tobytes()


def joined(parts: Iterable[Columns]) -> Columns:
    """The columns of all parts."""
    first, second, meaning = map(np.concatenate, zip([NO_LONGS] * 3, *parts, strict=True))
    return first, second, meaning


def compared_states(store: Store, contents: Contents, items: Sequence[TwoStates]) -> list[tuple[Slice, KeyDifference]]:
    """How the keys of slices change: a task's work. Parts of a slice add up; `store`: of their table."""

    def state(item: TwoStates, files: Sequence[SliceFile | bytes]) -> Columns:
        parts = (one for file in files for one in columns(file))
        are_chosen = ((one[0].view(np.uint64) % np.uint64(item.parts) == item.part, one) for one in parts)
        return joined(
            (first[chosen], second[chosen], meaning[chosen]) for chosen, (first, second, meaning) in are_chosen
        )

    def columns(file: SliceFile | bytes) -> Iterable[Columns]:
        if isinstance(file, bytes):
            first, second, meaning = np.frombuffer(file, np.int64).reshape(3, -1)
            return [(first, second, meaning)]
        return map(contents.of, narrow_rows(store, file.path, contents.types))

    return [(item.key, compared(state(item, item.before), state(item, item.after))) for item in items]


def compared(before: Columns, after: Columns) -> KeyDifference:
    """How the keys change: equal key and meaning are kept, other rows with an equal key are changed, pair by pair."""
    first, second, meaning = (np.concatenate(pair) for pair in zip(before, after, strict=True))
    keys = group_numbers(second, first)
    rows = group_numbers(meaning, keys)
    is_after = np.arange(len(first)) >= len(before[0])
    row_count, key_count = (int(numbers.max(initial=-1)) + 1 for numbers in (rows, keys))
    was, is_now = (np.bincount(rows[which], minlength=row_count) for which in (~is_after, is_after))
    kept = np.minimum(was, is_now)
    key_of_row = np.zeros(row_count, dtype=np.int64)
    key_of_row[rows] = keys
    left, came = np.zeros((2, key_count), dtype=np.int64)
    np.add.at(left, key_of_row, was - kept)
    np.add.at(came, key_of_row, is_now - kept)
    changed = np.minimum(left, came)
    place = np.zeros(key_count, dtype=np.int64)
    place[keys] = np.arange(len(keys))
    added, removed = (np.repeat(place, counts - changed) for counts in (came, left))
    at = np.concatenate([added, removed])
    differing = pa.Table.from_arrays(
        [pa.array(first[at]), pa.array(second[at]), pa.array(np.arange(len(at)) < len(added))], schema=KEYS
    )
    return KeyDifference(int(kept.sum()), int(changed.sum()), differing)


def moved(key: Slice, differing: pa.Table, held: Mapping[bool, Iterable[KeyRows]], window_days: int) -> dict[bool, int]:
    """How many keys of a slice were added from (True) and removed to (False) another day; `held`: keys before and after."""
    counts = {}
    for is_added, of_side in held.items():
        own = differing.filter(pa.array(whole(differing["is_added"]).to_numpy(zero_copy_only=False) == is_added))
        others = [np.zeros((2, 0), dtype=np.int64)]
        for rows in of_side:
            distance = abs((rows.key.event_date - key.event_date).days)
            if rows.key.project_id == key.project_id and 0 < distance <= window_days:
                others.append(np.stack(rows.halves))
        halves = zip((longs(own[name]) for name in KEY), np.concatenate(others, axis=1), strict=True)
        codes = group_numbers(*map(np.concatenate, halves))
        counts[is_added] = int(np.isin(codes[: own.num_rows], codes[own.num_rows :]).sum())
    return counts
