"""Measuring staged data: content digests and figures per slice.

Lives here: the digest expressions and grouped measurements. Put here: a figure computed from rows. Keep out: comparing
figures with anything (domain/checks.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.slices import Digest, Slice

HASH_A, HASH_B = "_hash_a", "_hash_b"
_HALF = 32
"""Bits: a sum of 64-bit hashes overflows a long, one of their halves does not below two billion rows."""


def row_hashes(columns: Sequence[str]) -> tuple[Column, Column]:
    """Two independent 64-bit hashes of a row's columns.

    xxhash64 skips nulls, so (null, 'a') would equal ('a', null): a mask of the nulls is hashed along. The leading
    literal seeds the chain, which makes the two hashes independent.
    """
    # One expression in SQL: as Columns, 55 of them cost a thousand calls into the JVM each time a plan is made.
    names = [f"`{name}`" for name in columns]
    mask = ", ".join(f"if({name} IS NULL, '1', '0')" for name in names)
    first, second = (F.expr(f"xxhash64('{seed}', concat({mask}), {', '.join(names)})") for seed in "ab")
    return first, second


def with_row_hashes(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The frame plus `_hash_a` and `_hash_b` (long) over the given columns."""
    first, second = row_hashes(columns)
    return frame.withColumns({HASH_A: first, HASH_B: second})


def digest_aggregates() -> list[Column]:
    """Aggregates for `rows`, and the sums over `_hash_a`, `_hash_b` that `digest_of` reads."""
    return [F.count(F.lit(1)).alias("rows"), *_sums(F.col(HASH_A), "a"), *_sums(F.col(HASH_B), "b")]


def digest_of(row: Mapping[str, Any]) -> Digest:
    """The digest in a collected row of `digest_aggregates`."""
    return Digest(int(row["rows"]), _sum_of(row, "a"), _sum_of(row, "b"))


def _sums(hashes: Column, name: str) -> list[Column]:
    """Exact sum of longs as two longs. Decimals would hold it too, at a tenth of the time of a whole audit."""
    low = F.sum(hashes.bitwiseAND(F.lit((1 << _HALF) - 1)))
    return [F.sum(F.shiftright(hashes, _HALF)).alias(f"sum_{name}_high"), low.alias(f"sum_{name}_low")]


def _sum_of(row: Mapping[str, Any], name: str) -> int:
    return (int(row[f"sum_{name}_high"] or 0) << _HALF) + int(row[f"sum_{name}_low"] or 0)


def digests(frame: DataFrame, columns: Sequence[str], by: Sequence[str]) -> DataFrame:
    """`by` and `digest_aggregates`: one row per group."""
    return with_row_hashes(frame, columns).groupBy(*by).agg(*digest_aggregates())


def slice_digests(frame: DataFrame, columns: Sequence[str], day_column: str) -> dict[Slice, Digest]:
    """Slice -> digest of its rows; the frame has `day_column` (date), project_id and `columns`."""
    found = digests(frame, columns, [day_column, "project_id"]).collect()
    return {Slice(row[day_column], row["project_id"]): digest_of(row.asDict()) for row in found}


def batch_day_digests(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """project_id, _arrival_date, event_date, then `digest_aggregates` and `lineage_of`: one row per batch and event day."""
    lineage = F.xxhash64(F.col(HASH_A), F.col("_object_key"))
    by = ["project_id", "_arrival_date", "event_date"]
    return with_row_hashes(frame, columns).groupBy(*by).agg(*digest_aggregates(), *_sums(lineage, "lineage"))


def lineage_of(row: Mapping[str, Any]) -> str:
    """The digest of which object holds which row, in a collected row of `batch_day_digests`."""
    return f"{_sum_of(row, 'lineage') & ((1 << 128) - 1):x}"


def number(value: Any) -> float:
    """A collected figure as a number that the ledger and Dagster can hold."""
    if value is None:
        return 0
    return float(value) if isinstance(value, (Decimal, float)) else int(value)
