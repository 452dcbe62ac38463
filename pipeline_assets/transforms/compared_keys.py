"""Compares the keys of a slice in two states, by tasks over its files, and finds which of them moved between days."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.contest import group_numbers, numbers_of
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_hashes import IDS, KEY, Longs, Mask, hashes_of, named, whole
from pipeline_assets.transforms.file_rows import SliceFile, narrow_rows
from pipeline_assets.transforms.key_halves import KeyRows

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
