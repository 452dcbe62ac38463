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

from pipeline_assets.domain.slices import Digest

HASH_A, HASH_B = "_hash_a", "_hash_b"
_WIDE = "decimal(38,0)"


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
    """Aggregates for `rows`, `sum_a`, `sum_b` over `_hash_a`, `_hash_b`.

    Sums are decimals because a sum of 64-bit hashes overflows a long, which fails the job in ANSI mode.
    """
    return [
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.col(HASH_A).cast(_WIDE)).alias("sum_a"),
        F.sum(F.col(HASH_B).cast(_WIDE)).alias("sum_b"),
    ]


def digest_of(row: Mapping[str, Any]) -> Digest:
    """The digest in a collected row of `digest_aggregates`."""
    return Digest(int(row["rows"]), int(row["sum_a"] or 0), int(row["sum_b"] or 0))


def digests(frame: DataFrame, columns: Sequence[str], by: Sequence[str]) -> DataFrame:
    """`by`, rows, sum_a, sum_b: one row per group."""
    return with_row_hashes(frame, columns).groupBy(*by).agg(*digest_aggregates())


def batch_day_digests(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """project_id, _arrival_date, event_date, rows, sum_a, sum_b, sum_lineage: one row per batch and event day."""
    lineage = F.xxhash64(F.col(HASH_A), F.col("_object_key")).cast(_WIDE)
    by = ["project_id", "_arrival_date", "event_date"]
    return with_row_hashes(frame, columns).groupBy(*by).agg(*digest_aggregates(), F.sum(lineage).alias("sum_lineage"))


def lineage_of(row: Mapping[str, Any]) -> str:
    """The digest of which object holds which row, in a collected row of `batch_day_digests`."""
    return f"{int(row['sum_lineage'] or 0) & ((1 << 128) - 1):x}"


def number(value: Any) -> float:
    """A collected figure as a number that the ledger and Dagster can hold."""
    if value is None:
        return 0
    return float(value) if isinstance(value, (Decimal, float)) else int(value)
