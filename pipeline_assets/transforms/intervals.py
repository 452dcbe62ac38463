"""Intervals during which an id had a status, computed from daily snapshots or delivered as a history."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession, Window

from pipeline_assets.domain.slices import Digest
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes


def intervals_of(snapshots: DataFrame) -> DataFrame:
    """validity_month, id, status, active_start_date, active_end_date: one row per run of days with the same status.

    Expects snapshot_date, id, status. An interval ends before a day without a snapshot, before a day whose snapshot lacks the
    id, and at the end of a month. It covers only days with a snapshot.
    """
    days = snapshots.select("snapshot_date", "id", "status", F.trunc("snapshot_date", "month").alias("validity_month"))
    by_id = Window.partitionBy("validity_month", "id").orderBy("snapshot_date")
    goes_on = (F.lag("status").over(by_id) == F.col("status")) & (
        F.lag("snapshot_date").over(by_id) == F.date_sub("snapshot_date", 1)
    )
    numbered = days.withColumn("_begins", F.when(goes_on, 0).otherwise(1)).withColumn(
        "_stretch", F.sum("_begins").over(by_id)
    )
    return (
        numbered.groupBy("validity_month", "id", "status", "_stretch")
        .agg(F.min("snapshot_date").alias("active_start_date"), F.max("snapshot_date").alias("active_end_date"))
        .drop("_stretch")
    )


def intervals_by_month(intervals: DataFrame, first: date) -> DataFrame:
    """The intervals plus validity_month, cut where a month ends and at `first`; days before `first` are left out."""
    start, end = F.greatest("active_start_date", F.lit(first)), F.col("active_end_date")
    months = F.sequence(F.trunc(start, "month"), F.trunc(end, "month"), F.expr("INTERVAL 1 MONTH"))
    cut = intervals.where(end >= F.lit(first)).withColumn("validity_month", F.explode(months))
    return cut.withColumns(
        {
            "active_start_date": F.greatest(start, F.col("validity_month")),
            "active_end_date": F.least(end, F.last_day("validity_month")),
        }
    )


def digests_by_day(intervals: DataFrame, last: date) -> dict[date, Digest]:
    """Day -> digest of the items (id, status, attributes) whose intervals cover it, from the first interval's start to `last`.

    Digests are additive, so Spark aggregates only the days on which intervals begin or end.
    """
    ends = F.date_add("active_end_date", 1)
    hashed = with_row_hashes(intervals, ["id", "status", "attributes"]).withColumn(
        "_edge",
        F.explode(
            F.array(
                F.struct(F.col("active_start_date").alias("day"), F.lit(True).alias("begins")),
                F.struct(ends.alias("day"), F.lit(False).alias("begins")),
            )
        ),
    )
    edges = hashed.groupBy("_edge.day", "_edge.begins").agg(*digest_aggregates()).collect()
    changes: dict[date, list[tuple[int, Digest]]] = {}
    for row in edges:
        changes.setdefault(row["day"], []).append((1 if row["begins"] else -1, digest_of(row.asDict())))
    found: dict[date, Digest] = {}
    rows, sum_a, sum_b = 0, 0, 0
    first = min(changes, default=last + timedelta(days=1))
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        for sign, change in changes.get(day, ()):
            rows, sum_a, sum_b = rows + sign * change.rows, sum_a + sign * change.sum_a, sum_b + sign * change.sum_b
        found[day] = Digest(rows, sum_a, sum_b)
    return found


def days_of_items(spark: SparkSession, as_of: Mapping[date, date]) -> DataFrame:
    """event_date, as_of_date: the day whose items are used for the events of a day."""
    rows = sorted(as_of.items())
    columns = {
        "event_date": pa.array([day for day, _ in rows], pa.date32()),
        "as_of_date": pa.array([other for _, other in rows], pa.date32()),
    }
    return F.broadcast(spark.createDataFrame(pa.table(columns)))


def items_by_snapshot(snapshots: DataFrame, days: DataFrame) -> DataFrame:
    """event_date, id, status: the items from the snapshots used for these days (`days_of_items`)."""
    joined = snapshots.join(days, on=F.col("snapshot_date") == F.col("as_of_date"), how="inner")
    return joined.select("event_date", "id", "status")


def items_by_interval(validity: DataFrame, days: DataFrame) -> DataFrame:
    """The same columns, from the intervals that cover these days."""
    holds = F.col("as_of_date").between(F.col("active_start_date"), F.col("active_end_date"))
    return validity.join(days, on=holds, how="inner").select("event_date", "id", "status")
