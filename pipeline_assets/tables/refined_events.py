"""refined.events: one row per event, the winner among all deliveries of both sources."""

from __future__ import annotations

import pyspark.sql.functions as F

from pipeline_assets.domain.checks import Check
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.tables.raw_events import EXTRA, HASHES, MANY_VALUED, RAW_TABLES, VENDOR
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, REFINED, Measure, Table, TableColumn
from pipeline_assets.transforms.event_hashes import EventHashes

REFINED_EVENTS = Table(
    key="refined/events",
    description="One row per event: re-sent, re-exported and recovered rows are resolved, the latest wins.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        *VENDOR,
        EXTRA,
        TableColumn("_source", "string", "source of the winner when last published"),
        TableColumn("_object_key", "string", "delivery of the winner when last published"),
        TableColumn("_line_number", "int", "line of the winner when last published"),
        *HASHES,
    ),
    write_order=("event_type", EVENT_TIME),
    kind=REFINED,
    many_valued=MANY_VALUED,
    version="2",
    settings_read=("dedupe_window_days", "source_precedence"),
    upstream=tuple(table.key for table in RAW_TABLES.values()),
    checks=(Check.UNIQUE_EVENT_KEY, Check.RECONCILES_WITH_RAW, Check.CHANGE_IS_EXPLAINED),
    recovery="Read the reason; correct the delivery and load the day again, or accept the change with a reason.",
    measures={"rows": Measure(lambda: F.count(F.lit(1)))},
)

_CONTENT_TYPES = {column.name: column.type for column in (*VENDOR, EXTRA)}
CONTENT = tuple(_CONTENT_TYPES)
"""Columns that the hash of a raw or refined row covers: the vendor's columns and `_extra`."""


def event_hashes() -> EventHashes:
    """The columns that the stored hashes of an event cover, with their types."""
    return EventHashes(_CONTENT_TYPES)
