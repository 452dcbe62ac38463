"""From daily snapshots to intervals: from when until when an id had a status.

Contains: making intervals, and reading them as of days.
Add here: another view of snapshots over days.
Does not contain: the tables (tables/dimension.py), which day stands for which (load/staleness/as_of.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession, Window


def intervals_of(snapshots: DataFrame) -> DataFrame:
    """validity_month, id, status, active_start_date, active_end_date: one row per stretch of days with one status.

    Of snapshot_date, id, status. A day without a snapshot, or on which the id is missing, ends a stretch; so does a month. An
    interval covers only days that a snapshot tells of.
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


def days_of_items(spark: SparkSession, as_of: Mapping[date, date]) -> DataFrame:
    """event_date, as_of_date: which day's items stand for those of a day."""
    rows = sorted(as_of.items())
    columns = {
        "event_date": pa.array([day for day, _ in rows], pa.date32()),
        "as_of_date": pa.array([other for _, other in rows], pa.date32()),
    }
    return F.broadcast(spark.createDataFrame(pa.table(columns)))


def items_by_snapshot(snapshots: DataFrame, days: DataFrame) -> DataFrame:
    """event_date, id, status: the items of the snapshots that stand for these days (`days_of_items`)."""
    joined = snapshots.join(days, on=F.col("snapshot_date") == F.col("as_of_date"), how="inner")
    return joined.select("event_date", "id", "status")


def items_by_interval(validity: DataFrame, days: DataFrame) -> DataFrame:
    """The same from intervals that hold the days."""
    holds = F.col("as_of_date").between(F.col("active_start_date"), F.col("active_end_date"))
    return validity.join(days, on=holds, how="inner").select("event_date", "id", "status")
