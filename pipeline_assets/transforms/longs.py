"""Columns as arrays of 64-bit integers, which numpy sorts, groups and sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pipeline_assets.transforms.event_hashes import whole

Longs = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
LOWEST = int(np.iinfo(np.int64).min)
_HALF = 32
"""Bits. A sum of 64-bit hashes overflows a long; a sum of their halves does not below two billion rows."""


def longs(column: pa.Array | pa.ChunkedArray, null: int = 0) -> Longs:
    """The column's values; a null is `null`, a time is in microseconds, a date in days, since 1970."""
    values = whole(column)
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    values = values.cast(pa.int64())
    return np.asarray(values.fill_null(null).to_numpy() if values.null_count else values.to_numpy())


def are_null(column: pa.Array | pa.ChunkedArray) -> Mask:
    """Which values are null."""
    return np.asarray(whole(column).is_null().to_numpy(zero_copy_only=False))


def exact_sum(values: Longs) -> int:
    """The sum, exact for fewer than two billion values."""
    return (int((values >> _HALF).sum()) << _HALF) + int((values & ((1 << _HALF) - 1)).sum())


def are_among(values: Longs, wanted: Longs) -> Mask:
    """Which values are among the wanted ones, which are sorted."""
    if not len(wanted):
        return np.zeros(len(values), dtype=np.bool_)
    return np.asarray(wanted[np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)] == values)


def part_of(hashes: Longs, parts: int) -> Longs:
    """The number of the range, of `parts` of equal width, that each hash lies in; at most a million parts."""
    # The upper 40 bits, so that the product stays within 64.
    found = (hashes.view(np.uint64) >> np.uint64(24)) * np.uint64(max(1, parts)) >> np.uint64(40)
    return found.astype(np.int64)
