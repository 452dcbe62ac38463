"""One narrow pass over files of refined: sums, ids, lateness and keys of their rows; and which rows share a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.event_hashes import (
    IDS,
    EventHashes,
    HashSource,
    Longs,
    Mask,
    are_among,
    are_null,
    longs,
    named,
    whole,
)
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.key_halves import FIRST_HALF, KeyRows, StateKeys, halves_of, occurring_twice

_DAY_MICROS = 86_400_000_000
_RECEIVED = EXPORT_FORMAT.received_column


@dataclass(frozen=True)
class RefinedSums:
    """Sums over rows of one slice; they add up in any order."""

    digest: Digest = EMPTY
    false_hashes: int = 0
    """Rows whose stored hashes do not match their content."""
    rows_without_id: int = 0
    rows_with_blank_id: int = 0
    late_rows: int = 0
    """Rows received after the event's day."""
    received: int | None = None
    """The latest time, in microseconds since 1970; None where no row has one."""
    happened: int | None = None
    """The same for the time of the event."""

    def __add__(self, other: RefinedSums) -> RefinedSums:
        """The sums over the rows of both."""
        return RefinedSums(
            self.digest + other.digest,
            self.false_hashes + other.false_hashes,
            self.rows_without_id + other.rows_without_id,
            self.rows_with_blank_id + other.rows_with_blank_id,
            self.late_rows + other.late_rows,
            _later(self.received, other.received),
            _later(self.happened, other.happened),
        )


@dataclass(frozen=True)
class RefinedFile:
    """What one file holds."""

    key: Slice
    sums: RefinedSums
    keys: bytes
    """The first half of each row's key (int64); empty unless asked for."""


@dataclass(frozen=True)
class SummingRefined:
    """Sums the rows of a file of refined: a `RowsOf`."""

    checked: EventHashes | None = None
    """Computes every hash again from its row; None takes the stored ones."""
    has_keys: bool = True
    """Whether the keys are asked for."""

    @property
    def types(self) -> dict[str, str]:
        """Column to read -> Spark type."""
        names = {**dict.fromkeys(IDS, "string"), EVENT_TIME: "timestamp", _RECEIVED: "timestamp"}
        return {**HashSource(self.checked).types, **names, **(FIRST_HALF if self.has_keys else {})}

    def __call__(self, file: SliceFile, tables: Iterator[pa.Table]) -> RefinedFile:
        """The sums of the file's rows, which come in batches with the columns of `types`."""
        sums, keys = RefinedSums(), []
        for rows in tables:
            sums += self._sums(file.key, rows)
            if self.has_keys:
                keys.append(halves_of(rows).tobytes())
        return RefinedFile(file.key, sums, b"".join(keys))

    def _sums(self, key: Slice, rows: pa.Table) -> RefinedSums:
        hashed = HashSource(self.checked).of(rows, key.project_id)
        ids = [whole(rows.column(name)) for name in IDS]
        there = [~are_null(one) for one in ids]
        seen = [~are_null(named(one)) for one in ids]
        received, happened = (longs(rows.column(name)) for name in (_RECEIVED, EVENT_TIME))
        is_received, has_happened = (~are_null(rows.column(name)) for name in (_RECEIVED, EVENT_TIME))
        of_day = key.event_date.toordinal() - _EPOCH_DAY
        return RefinedSums(
            digest=hashed.digest(),
            false_hashes=int(hashed.are_false.sum()),
            rows_without_id=int((~seen[0] & ~seen[1]).sum()),
            rows_with_blank_id=int(((there[0] & ~seen[0]) | (there[1] & ~seen[1])).sum()),
            late_rows=int(((received // _DAY_MICROS > of_day) & is_received).sum()),
            received=_latest(received[is_received]),
            happened=_latest(happened[has_happened]),
        )


_EPOCH_DAY = 719_163
"""The ordinal of 1970-01-01."""


def _latest(times: Longs) -> int | None:
    return int(times.max()) if len(times) else None


def _later(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


# -- keys that rows share ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Twice:
    """Rows of a slice that share their key with another row."""

    keys_twice: int = 0
    """With one at most the dedupe window away."""
    keys_twice_a_day: int = 0
    """With one of the same day."""

    def __add__(self, other: Twice) -> Twice:
        """The rows of both, which share no key."""
        return Twice(self.keys_twice + other.keys_twice, self.keys_twice_a_day + other.keys_twice_a_day)


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
        count = int(chosen.sum())
        found = (first[chosen], second[chosen], np.full(count, number_of[part.key], np.int64))
        for column, values in zip(columns, found, strict=True):
            column.append(values)
    first, second, number = map(np.concatenate, columns)
    day = np.array([key.event_date.toordinal() for key in slices], np.int64)[number]
    order = np.lexsort((day, second, first))
    first, second, number, day = first[order], second[order], number[order], day[order]
    gap = np.where((first[1:] == first[:-1]) & (second[1:] == second[:-1]), day[1:] - day[:-1], np.iinfo(np.int64).max)
    near, same = (_either_side(gap <= most) for most in (window_days, 0))
    counts = [np.bincount(number[chosen], minlength=len(slices)).tolist() for chosen in (near, same)]
    return {key: Twice(*both) for key, *both in zip(slices, *counts, strict=True) if any(both)}


def _either_side(pairs: Mask) -> Mask:
    """Which rows belong to a chosen pair of adjacent ones."""
    return np.asarray(np.r_[pairs, False] | np.r_[False, pairs])


@dataclass(frozen=True)
class TwiceInRange:
    """`keys_twice` of the rows of one range of keys: what an exchange collects."""

    window_days: int

    def __call__(self, _: int, rows: Iterable[StateKeys]) -> dict[Slice, Twice]:
        """The slices with such rows."""
        return keys_twice((one.keys for one in rows), self.window_days)
