"""Measuring staged data: content digests and figures per slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.slices import UNMEASURABLE, Digest, Slice
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.event_keys import KEY_TYPES, key_parts
from pipeline_assets.transforms.row_hash import row_hashes

HASH_A, HASH_B, MEANING_HASH = "_hash_a", "_hash_b", "_meaning_hash"
"""Event tables store these columns; for other tables they are computed on demand."""
_STORED_A, _STORED_B = "_stored_a", "_stored_b"
FALSE_HASHES = "false_hashes"
"""Figure of `checked_hashes`: the number of rows whose stored hash does not match their content."""
_MADE_KEY = ("_made_key_a", "_made_key_b")
_HALF = 32
"""Bits. A sum of 64-bit hashes overflows a long; a sum of their halves does not below two billion rows."""


def with_row_hashes(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The frame plus `_hash_a` and `_hash_b` (long) over the given columns; these replace stored hashes."""
    types = dict(frame.dtypes)
    first, second = row_hashes({name: types[name] for name in columns})
    return frame.withColumns({HASH_A: first, HASH_B: second})


def digest_aggregates() -> list[Column]:
    """Aggregates that `digest_of` reads: `rows`, and sums over `_hash_a` and `_hash_b`."""
    return [F.count(F.lit(1)).alias("rows"), *_sums(F.col(HASH_A), "a"), *_sums(F.col(HASH_B), "b")]


def digest_of(row: Mapping[str, Any]) -> Digest:
    """The digest in a collected row of `digest_aggregates`, and of `checked_hashes` if stored hashes were checked."""
    known = UNMEASURABLE if row.get(FALSE_HASHES) else ROW_HASH_VERSION
    return Digest(int(row["rows"]), _sum_of(row, "a"), _sum_of(row, "b"), known)


def checked_hashes(frame: DataFrame, columns: Sequence[str]) -> tuple[DataFrame, list[Column]]:
    """The frame with hashes computed from its content, and an aggregate FALSE_HASHES if the frame stores hashes too."""
    if not {HASH_A, HASH_B} <= set(frame.columns):
        return with_row_hashes(frame, columns), []
    types = dict(frame.dtypes)
    hashed = with_row_hashes(frame.withColumns({_STORED_A: F.col(HASH_A), _STORED_B: F.col(HASH_B)}), columns)
    meaning = row_hashes({name: types[name] for name in columns if name not in EXPORT_FORMAT.transport_columns})[0]
    pairs = {_STORED_A: F.col(HASH_A), _STORED_B: F.col(HASH_B), MEANING_HASH: meaning}
    made = hashed.withColumns(key_parts(HASH_A, HASH_B)).withColumns(
        dict(zip(_MADE_KEY, row_hashes(KEY_TYPES), strict=True))
    )
    pairs |= {stored: F.col(name) for stored, name in zip(("_key_a", "_key_b"), _MADE_KEY, strict=True)}
    are_equal = reduce(Column.__and__, [F.col(stored).eqNullSafe(value) for stored, value in pairs.items()])
    return made, [F.count_if(~are_equal).alias(FALSE_HASHES)]


def _sums(hashes: Column, name: str) -> list[Column]:
    """The exact sum of longs, as two longs. A sum of decimals would take a tenth of the time of a whole audit."""
    low = F.sum(hashes.bitwiseAND(F.lit((1 << _HALF) - 1)))
    return [F.sum(F.shiftright(hashes, _HALF)).alias(f"sum_{name}_high"), low.alias(f"sum_{name}_low")]


def _sum_of(row: Mapping[str, Any], name: str) -> int:
    return (int(row[f"sum_{name}_high"] or 0) << _HALF) + int(row[f"sum_{name}_low"] or 0)


def digests(frame: DataFrame, columns: Sequence[str], by: Sequence[str]) -> DataFrame:
    """One row per group: the columns `by`, and the columns that `digest_of` reads."""
    hashed, also = checked_hashes(frame, columns)
    return hashed.groupBy(*by).agg(*digest_aggregates(), *also)


def slice_digests(frame: DataFrame, columns: Sequence[str], day_column: str) -> dict[Slice, Digest]:
    """Slice -> digest of its rows; the frame has `day_column` (date), project_id and `columns`."""
    rows = digests(frame, columns, [day_column, "project_id"]).collect()
    return {Slice(row[day_column], row["project_id"]): digest_of(row.asDict()) for row in rows}
