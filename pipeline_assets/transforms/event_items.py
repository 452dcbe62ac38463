"""The item of an event, as its properties name it."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.property_paths import property_path
from pipeline_assets.domain.settings import Settings
from pipeline_assets.transforms.named import named

PROPERTIES = ("event_properties",)
"""Columns from which an item is read."""


def with_item(events: DataFrame, settings: Settings) -> DataFrame:
    """The events (with `event_properties`) plus item_id (string): the first property present, or null if none names an item."""
    found = [F.get_json_object(*PROPERTIES, property_path(name)) for name in settings.item_properties]
    return events.withColumn("item_id", named(F.coalesce(*found, F.lit(None).cast("string"))))
