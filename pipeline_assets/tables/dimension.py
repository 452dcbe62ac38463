"""Declares the two tables of every dimension: daily snapshots, and validity intervals."""

from __future__ import annotations

import re

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.json_members import property_path
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.table import (
    EVENT_DATE,
    PROJECT_ID,
    SNAPSHOT,
    VALIDITY,
    AsOfTable,
    Dimension,
    Measure,
    Table,
    TableColumn,
)
from pipeline_assets.transforms.digests import named

_PROJECT = TableColumn("project_id", "string", "`all`: a dimension belongs to no project", is_required=True)
_ID = TableColumn("id", "string", "as the delivery spells it, without white space around it")


def dimension(name: str, description: str) -> Dimension:
    """Return the dimension delivered below `dimensions/{name}/`; raise ValueError if `name` is not a valid table name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        msg = f"dimension {name[:50]!r} is not a name of small letters, digits and _"
        raise ValueError(msg)
    snapshot = Table(
        key=f"dimensions/{name}_snapshot",
        description=f"{description} One row per day and id, as delivered below `dimensions/{name}/`.",
        columns=(
            TableColumn("snapshot_date", "date", "UTC day that the snapshot is of; the partition", is_required=True),
            _PROJECT,
            _ID,
            TableColumn("name", "string"),
            TableColumn("status", "string", "as the delivery spells it, without white space around it"),
            TableColumn("attributes", "string", "JSON text of the further columns, keys sorted; null without any"),
            TableColumn("_object_key", "string", "the delivery of the row"),
            TableColumn("_object_etag", "string", "its version when it was read"),
            TableColumn("_line_number", "int", "line in the object, from 1"),
        ),
        write_order=("id",),
        kind=SNAPSHOT,
        version="2",
        day_column="snapshot_date",
        checks=(Check.SNAPSHOT_IS_WHOLE, Check.COUNT_IS_EXPECTED),
        measures={"rows": Measure(lambda: F.count(F.lit(1)))},
        recovery="Correct the snapshot in landing and load the day again, or accept its count with a reason.",
    )
    validity = Table(
        key=f"dimensions/{name}_validity",
        description=f"{description} From when until when each id had which status, month by month.",
        columns=(
            TableColumn("validity_month", "date", "first day of the month; the partition", is_required=True),
            _PROJECT,
            _ID,
            TableColumn("status", "string"),
            TableColumn(
                "active_start_date", "date", "first day with this status, or of the month", sources=("snapshot_date",)
            ),
            TableColumn("active_end_date", "date", "last day that a delivery says so", sources=("snapshot_date",)),
            TableColumn("attributes", "string", "JSON text of the further columns of delivered intervals, keys sorted"),
        ),
        write_order=("id", "active_start_date"),
        kind=VALIDITY,
        day_column="validity_month",
        upstream=(snapshot.key,),
        # Version 2 adds `attributes`.
        version="2",
        checks=(Check.RECONCILES_WITH_SNAPSHOTS, Check.INTERVALS_ARE_WHOLE),
        measures={"rows": Measure(lambda: F.count(F.lit(1)))},
        recovery=(
            f"Recover {snapshot.key} for the days of the month; this table follows. Delivered intervals: correct the newest "
            "delivery in landing and load its day again, or accept its counts with a reason."
        ),
    )
    return Dimension(name, snapshot, validity)


ITEM = dimension("item", "The items that events name, as they were on each day.")


PROPERTIES = ("event_properties",)


def with_item(events: DataFrame, settings: Settings) -> DataFrame:
    """The events plus item_id (string): the first property present, or null. Reads `event_properties`."""
    found = [F.get_json_object(*PROPERTIES, property_path(name)) for name in settings.item_properties]
    return events.withColumn("item_id", named(F.coalesce(*found, F.lit(None).cast("string"))))


_DAY_AND_ITEM = ["event_date", "item_id"]


def _narrow(refined: DataFrame, settings: Settings) -> DataFrame:
    items = with_item(refined, settings).where(F.col("item_id").isNotNull())
    return items.groupBy("event_date", "project_id", "item_id").agg(F.count(F.lit(1)).alias("events"))


def _build(narrow: DataFrame, items: DataFrame, settings: Settings) -> DataFrame:
    active = items.where(F.col("status").isin(*settings.active_statuses))
    return narrow.join(active.withColumnRenamed("id", "item_id"), on=_DAY_AND_ITEM, how="inner").select(
        "event_date", "project_id", "item_id", "events"
    )


def _controls(narrow: DataFrame, items: DataFrame, settings: Settings) -> DataFrame:
    joined = narrow.join(items.withColumnRenamed("id", "item_id"), on=_DAY_AND_ITEM, how="left")
    is_known, is_active = F.col("status").isNotNull(), F.col("status").isin(*settings.active_statuses)
    return joined.groupBy("event_date", "project_id").agg(
        F.sum("events").alias("events_with_item"),
        F.sum(F.when(~is_known, F.col("events")).otherwise(0)).alias("events_of_unknown_items"),
        F.sum(F.when(is_known & ~is_active, F.col("events")).otherwise(0)).alias("events_of_inactive_items"),
    )


ACTIVE_ITEM_EVENTS = AsOfTable(
    key="aggregates/active_item_events",
    description="Events per day, project and item, of items that were active on the day of the event.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("item_id", "string", "as the event spells it", sources=PROPERTIES),
        TableColumn("events", "bigint"),
    ),
    write_order=("item_id",),
    key_columns=("item_id",),
    settings_read=("item_properties", "active_statuses"),
    upstream=("refined/events", *(table.key for table in ITEM.tables)),
    checks=(Check.ITEMS_ARE_KNOWN, Check.METHODS_AGREE, Check.CHANGE_IS_EXPLAINED),
    recovery="Recover refined/events and dimensions/item_snapshot for the day; this table follows.",
    measures={"events": Measure(lambda: F.sum("events"))},
    dimension=ITEM,
    narrow=_narrow,
    build=_build,
    controls=_controls,
)
