"""The digest of rows of an event table, from the hashes stored with them, or from their content where these are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.slices import UNMEASURABLE, Digest
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, EventHashes, whole

Longs = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
_HALF = 32
"""Bits. A sum of 64-bit hashes overflows a long; a sum of their halves does not below two billion rows."""


@dataclass(frozen=True)
class HashedRows:
    """Both halves of the hash of each row, and which rows are not what their stored hashes say."""

    first: Longs
    second: Longs
    are_false: Mask

    def digest(self, chosen: Mask | slice = slice(None)) -> Digest:
        """Of all rows or some; with a row whose stored hash is false it equals none of sound rows."""
        first, second, are_false = self.first[chosen], self.second[chosen], self.are_false[chosen]
        version = UNMEASURABLE if are_false.any() else ROW_HASH_VERSION
        return Digest(len(first), exact_sum(first), exact_sum(second), version)


@dataclass(frozen=True)
class HashSource:
    """Where the hashes of rows come from: what is stored, or what `checked` makes of all columns, compared with it."""

    checked: EventHashes | None = None

    @property
    def types(self) -> Mapping[str, str]:
        """Column to read -> Spark type."""
        if self.checked is None:
            return dict.fromkeys(HASH_COLUMNS[:2], "bigint")
        return {**self.checked.types, **dict.fromkeys(HASH_COLUMNS, "bigint")}

    def of(self, rows: pa.Table, project_id: str) -> HashedRows:
        """The hashes of rows with the columns of `types`, all of one project."""
        if self.checked is None:
            first, second = (longs(rows.column(name)) for name in HASH_COLUMNS[:2])
            return HashedRows(first, second, np.zeros(rows.num_rows, np.bool_))
        of_project = pa.repeat(pa.scalar(project_id, pa.string()), rows.num_rows)
        names = [name for name in self.checked.types if name != "project_id"]
        made = self.checked.of(rows.select(names).append_column("project_id", of_project))
        are_false = np.zeros(rows.num_rows, np.bool_)
        for name, values in made.items():
            is_equal = pc.fill_null(pc.equal(rows.column(name), values), False)
            are_false |= ~is_equal.to_numpy()
        return HashedRows(longs(made[HASH_COLUMNS[0]]), longs(made[HASH_COLUMNS[1]]), are_false)


def longs(column: pa.Array | pa.ChunkedArray) -> Longs:
    """The column's values as 64-bit integers; a null is 0, a time is in microseconds, a date in days, since 1970."""
    values = whole(column)
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    values = values.cast(pa.int64())
    return np.asarray(values.fill_null(0).to_numpy() if values.null_count else values.to_numpy())


def are_null(column: pa.Array | pa.ChunkedArray) -> Mask:
    """Which values are null."""
    return np.asarray(whole(column).is_null().to_numpy(zero_copy_only=False))


def exact_sum(values: Longs) -> int:
    """The sum, exact for fewer than two billion values."""
    return (int((values >> _HALF).sum()) << _HALF) + int((values & ((1 << _HALF) - 1)).sum())
