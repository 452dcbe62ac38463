"""aggregates.active_item_events: events of items that were active on the day of the event."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.property_paths import property_path
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.item import ITEM
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AsOfTable, Measure, TableColumn
from pipeline_assets.transforms.digests import named

PROPERTIES = ("event_properties",)
"""Columns from which an item is read."""


def with_item(events: DataFrame, settings: Settings) -> DataFrame:
    """The events (with `event_properties`) plus item_id (string): the first property present, or null if none names an item."""
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
