"""Sums over the rows of files of raw and refined, from a few narrow columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.lateness import AT_ONCE, EARLY, GREATEST_SECONDS, LatenessSketch, merged
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.contest import cells_of, group_numbers, neighbours
from pipeline_assets.transforms.event_hashes import (
    IDS,
    EventHashes,
    Longs,
    Mask,
    are_among,
    are_null,
    hash_types,
    hashed_rows,
    longs,
    named,
    whole,
)
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.keys import FIRST_HALF, KeyRows, halves_of, occurring_twice

LINEAGE = "p1"
_LINEAGE_MASK = (1 << 64) - 1
_Hashes = np.ndarray[Any, np.dtype[np.uint64]]
_GREATEST = np.array(GREATEST_SECONDS)
_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_RECEIVED = EXPORT_FORMAT.received_column
_DAY_MICROS = 86_400_000_000


@dataclass(frozen=True)
class ArrivedRows:
    """Sums over rows of one event day that arrived on one day; additive."""

    digest: Digest = EMPTY
    places: tuple[int, int] = (0, 0)
    """Sums of both halves of a hash of each row's content, object and line, modulo 2**64."""
    lateness: LatenessSketch = field(default_factory=LatenessSketch)

    @property
    def batch_day(self) -> BatchDay:
        """As the ledger records it."""
        first, second = self.places
        return BatchDay(self.digest, f"{LINEAGE}:{first:x}:{second:x}", self.lateness)


def arrived(parts: Iterable[ArrivedRows]) -> ArrivedRows:
    """The sums over the rows of all parts."""
    every = list(parts)
    first, second = (sum(part.places[half] for part in every) & _LINEAGE_MASK for half in (0, 1))
    digest = sum((part.digest for part in every), EMPTY)
    return ArrivedRows(digest, (first, second), merged(part.lateness for part in every))


@dataclass(frozen=True)
class SummingRaw:
    """Sums the rows of a file of raw: a `RowsOf`."""

    checked: EventHashes | None = None
    """Recomputes every hash from its row; None takes the stored ones."""

    @property
    def types(self) -> dict[str, str]:
        """Column to read -> Spark type."""
        lines = {"_object_key": "string", "_line_number": "int", "_arrival_date": "date"}
        return {**hash_types(self.checked), **lines, EVENT_TIME: "timestamp", _RECEIVED: "timestamp"}

    def __call__(self, file: SliceFile, tables: Iterator[pa.Table]) -> tuple[Slice, dict[date | None, ArrivedRows]]:
        """The slice, and arrival day (None for rows that another program wrote without one) -> sums of its rows."""
        found: dict[date | None, list[ArrivedRows]] = {}
        for rows in tables:
            for arrival, part in self._sums(file.key, rows):
                found.setdefault(arrival, []).append(part)
        return file.key, {day: arrived(parts) for day, parts in found.items()}

    def _sums(self, key: Slice, rows: pa.Table) -> Iterator[tuple[date | None, ArrivedRows]]:
        hashed = hashed_rows(self.checked, rows, key.project_id)
        objects, lines = whole(rows.column("_object_key")), longs(rows.column("_line_number"))
        places = _place_hashes(objects, lines, hashed.first, hashed.second)
        received, happened = rows.column(_RECEIVED), rows.column(EVENT_TIME)
        # Negative if a clock was ahead.
        seconds, are_unknown = (longs(received) - longs(happened)) // 1_000_000, are_null(received) | are_null(happened)
        days = whole(rows.column("_arrival_date")).dictionary_encode(null_encoding="encode")
        of_row, arrivals = days.indices.to_numpy(), days.dictionary.to_pylist()
        for number, arrival in enumerate(arrivals):
            chosen: Mask | slice = slice(None) if len(arrivals) == 1 else of_row == number
            first, second = (int(half[chosen].sum()) for half in places)
            sketch = _sketch_of(seconds[chosen], are_unknown[chosen])
            yield arrival, ArrivedRows(hashed.digest(chosen), (first, second), sketch)


def _place_hashes(objects: pa.Array, lines: Longs, first: Longs, second: Longs) -> tuple[_Hashes, _Hashes]:
    """Both halves (uint64) of each row's object, line and content; two sets of rows share sums with a chance of 2**-128."""
    names = objects.dictionary_encode(null_encoding="encode")
    known = b"".join(
        hashlib.sha256(b"" if name is None else b"." + name.encode()).digest()[:16]
        for name in names.dictionary.to_pylist()
    )
    halves = np.frombuffer(known, np.uint64).reshape(-1, 2)[names.indices.to_numpy()]
    steps = lines.view(np.uint64) * _STEP
    places = [_mixed(halves[:, at] + steps) for at in (0, 1)]
    return _mixed(places[0] ^ first.view(np.uint64)), _mixed(places[1] ^ second.view(np.uint64))


def _mixed(values: _Hashes) -> _Hashes:
    """A bijection of 64 bits in which each bit depends on every other (the finalizer of SplitMix64)."""
    values = (values ^ values >> np.uint64(30)) * _FIRST
    values = (values ^ values >> np.uint64(27)) * _SECOND
    return np.asarray(values ^ values >> np.uint64(31))


def _sketch_of(seconds: Longs, are_unknown: Mask) -> LatenessSketch:
    known = seconds[~are_unknown]
    if not len(known):
        return LatenessSketch(unknown=len(seconds))
    later = np.searchsorted(_GREATEST, known)
    numbers, counts = np.unique(np.where(known < 0, EARLY, np.where(known < 1, AT_ONCE, later)), return_counts=True)
    bins = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    return LatenessSketch(bins, len(seconds) - len(known), int(known.min()), int(known.max()))


class ObjectRows(NamedTuple):
    """The rows that raw holds of one object."""

    rows: int
    etag: str | None
    """The greatest version that a row names."""


OBJECT_TYPES = {"_arrival_date": "date", "_object_key": "string", "_object_etag": "string"}
Objects = dict[tuple[str, date | None, str | None], ObjectRows]
_COUNTED = ("_arrival_date", "_object_key", "count_all", "_object_etag_max")


def objects_of(file: SliceFile, tables: Iterator[pa.Table]) -> Objects:
    """The objects of a file's rows: a `RowsOf` for the columns of OBJECT_TYPES."""
    found: list[Objects] = []
    for rows in tables:
        counted = rows.group_by([*_COUNTED[:2]]).aggregate([([], "count_all"), ("_object_etag", "max")])
        each = zip(*(counted.column(name).to_pylist() for name in _COUNTED), strict=True)
        found.append({(file.key.project_id, day, key): ObjectRows(count, etag) for day, key, count, etag in each})
    return objects_together(found)


def objects_together(parts: Iterable[Objects]) -> Objects:
    """The objects of all parts."""
    every: Objects = {}
    for part in parts:
        for key, more in part.items():
            held = every.get(key, ObjectRows(0, None))
            every[key] = ObjectRows(held.rows + more.rows, max(filter(None, (held.etag, more.etag)), default=None))
    return every


@dataclass(frozen=True)
class RefinedSums:
    """Sums over rows of one slice; additive."""

    digest: Digest = EMPTY
    false_hashes: int = 0
    rows_without_id: int = 0
    rows_with_blank_id: int = 0
    late_rows: int = 0
    """Rows received after the event's day."""
    received: int | None = None
    """The latest time, in microseconds since 1970; None without any."""
    happened: int | None = None

    def __add__(self, other: RefinedSums) -> RefinedSums:
        """The sums over the rows of both."""
        names = ("false_hashes", "rows_without_id", "rows_with_blank_id", "late_rows")
        counts = {name: getattr(self, name) + getattr(other, name) for name in names}
        times = ((self.received, other.received), (self.happened, other.happened))
        received, happened = (max((time for time in pair if time is not None), default=None) for pair in times)
        return RefinedSums(self.digest + other.digest, **counts, received=received, happened=happened)


class RefinedFile(NamedTuple):
    """The content of one file."""

    key: Slice
    sums: RefinedSums
    keys: bytes


@dataclass(frozen=True)
class SummingRefined:
    """Sums the rows of a file of refined: a `RowsOf`."""

    checked: EventHashes | None = None
    has_keys: bool = True

    @property
    def types(self) -> dict[str, str]:
        """Column to read -> Spark type."""
        names = {**dict.fromkeys(IDS, "string"), EVENT_TIME: "timestamp", _RECEIVED: "timestamp"}
        return {**hash_types(self.checked), **names, **(FIRST_HALF if self.has_keys else {})}

    def __call__(self, file: SliceFile, tables: Iterator[pa.Table]) -> RefinedFile:
        """The sums of the file's rows."""
        sums, keys = RefinedSums(), []
        for rows in tables:
            sums += self._sums(file.key, rows)
            if self.has_keys:
                keys.append(halves_of(rows).tobytes())
        return RefinedFile(file.key, sums, b"".join(keys))

    def _sums(self, key: Slice, rows: pa.Table) -> RefinedSums:
        hashed = hashed_rows(self.checked, rows, key.project_id)
        ids = [whole(rows.column(name)) for name in IDS]
        there, seen = ([~are_null(one) for one in texts] for texts in (ids, map(named, ids)))
        received, happened = (longs(rows.column(name).drop_null()) for name in (_RECEIVED, EVENT_TIME))
        of_day = (key.event_date - date(1970, 1, 1)).days
        return RefinedSums(
            digest=hashed.digest(),
            false_hashes=int(hashed.are_false.sum()),
            rows_without_id=int((~seen[0] & ~seen[1]).sum()),
            rows_with_blank_id=int(((there[0] & ~seen[0]) | (there[1] & ~seen[1])).sum()),
            late_rows=int((received // _DAY_MICROS > of_day).sum()),
            received=int(received.max()) if len(received) else None,
            happened=int(happened.max()) if len(happened) else None,
        )


class Twice(NamedTuple):
    """Rows of a slice that share their key with another row."""

    keys_twice: int = 0
    """Of these, rows that share it at most the dedupe window away."""
    keys_twice_a_day: int = 0


def keys_twice(rows: Iterable[KeyRows], window_days: int) -> dict[Slice, Twice]:
    """Slice -> its rows that share both halves of their key with another of these rows; slices without one are left out."""
    parts = list(rows)
    suspected, _ = occurring_twice([part.first for part in parts])
    if not len(suspected):
        return {}
    slices = sorted({part.key for part in parts})
    number_of = {key: number for number, key in enumerate(slices)}
    columns: list[list[Longs]] = [[], [], []]
    for part in parts:
        first, second = part.halves
        chosen = are_among(first, suspected)
        columns[0].append(first[chosen])
        columns[1].append(second[chosen])
        columns[2].append(np.full(int(chosen.sum()), number_of[part.key], np.int64))
    first, second, number = map(np.concatenate, columns)
    days = np.array([key.event_date.toordinal() for key in slices], np.int64)[number]
    cells, at, counts = np.unique(
        cells_of(group_numbers(second, first), days, window_days), return_inverse=True, return_counts=True
    )
    same = counts > 1
    near = same.copy()
    for left, right, are_near in neighbours(cells, window_days):
        near[left] |= are_near
        near[right] |= are_near
    found = [np.bincount(number[chosen[at]], minlength=len(slices)).tolist() for chosen in (near, same)]
    return {key: Twice(*both) for key, *both in zip(slices, *found, strict=True) if any(both)}
