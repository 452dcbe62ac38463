"""Measures staged months of intervals: their content, the days that they cover, and overlaps."""

from __future__ import annotations

from dataclasses import dataclass

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Window

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes


@dataclass(frozen=True)
class MeasuredMonth:
    """The measurements of one month of intervals."""

    digest: Digest = EMPTY
    days: int = 0
    """The sum of the days of all intervals."""
    overlaps: int = 0
    """Number of intervals that begin before the previous one of their id has ended, or end before they begin."""


def measured_months(staged: DataFrame, table: Table) -> dict[Slice, MeasuredMonth]:
    """Month -> measurements of its staged intervals; months without rows are left out."""
    start, end = F.col("active_start_date"), F.col("active_end_date")
    by_id = Window.partitionBy(*table.partition_columns, "id").orderBy("active_start_date", "active_end_date")
    overlaps = F.coalesce(F.lag("active_end_date").over(by_id) >= start, F.lit(False)) | (end < start)
    hashed = with_row_hashes(staged.withColumn("_overlaps", overlaps), table.content_columns)
    figures = [F.sum(F.datediff(end, start) + 1).alias("days"), F.count_if("_overlaps").alias("overlaps")]
    return {
        Slice(row[table.day_column], row["project_id"]): MeasuredMonth(
            digest_of(row.asDict()), int(row["days"]), int(row["overlaps"])
        )
        for row in hashed.groupBy(*table.partition_columns).agg(*digest_aggregates(), *figures).collect()
    }


def evaluate_overlaps(month: MeasuredMonth) -> Evaluation:
    """The check `intervals_are_whole` of a staged month."""
    is_passed = not month.overlaps
    reason = (
        None if is_passed else f"{month.overlaps} of {month.digest.rows} intervals overlap with another of their id"
    )
    hint = None if is_passed else "This is a defect of Tidemark: report it with what the intervals are made of"
    figures = {"intervals": month.digest.rows, "overlaps": month.overlaps}
    return Evaluation(Check.INTERVALS_ARE_WHOLE, is_passed, reason, hint, figures)
