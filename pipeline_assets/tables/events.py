"""raw.regular_events, raw.backfill_events: every parsed line as delivered; raw.quarantine; refined.events: one row per event."""

from __future__ import annotations

import pyspark.sql.functions as F

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import EVENT_TIME, EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.tables.table import DELIVERED, EVENT_DATE, PROJECT_ID, REFINED, Measure, Table, TableColumn
from pipeline_assets.transforms.event_hashes import EventHashes

VENDOR = tuple(TableColumn(column.name, column.type.spark_type, column.description) for column in EXPORT_FORMAT.columns)
EXTRA = TableColumn(EXTRA_COLUMN, "string", "JSON text of keys without a column, and of values that could not be read")

HASHES = (
    TableColumn(
        "_hash_a", "bigint", "first half of the hash of the vendor's columns and `_extra`, made when it was parsed"
    ),
    TableColumn("_hash_b", "bigint", "its second half"),
    TableColumn("_meaning_hash", "bigint", "the same, in 64 bits, without how the row travelled"),
    TableColumn(
        "_key_a", "bigint", "first half of the hash of what tells events apart: project and ids, else the content"
    ),
    TableColumn("_key_b", "bigint", "its second half"),
)

_COLUMNS = (
    EVENT_DATE,
    PROJECT_ID,
    *VENDOR,
    EXTRA,
    TableColumn("_object_key", "string", "the delivery of the row"),
    TableColumn("_object_etag", "string", "its version when it was parsed"),
    TableColumn("_line_number", "int", "line in the object, from 1"),
    TableColumn("_arrival_date", "date", "UTC date in the object's name"),
    *HASHES,
)


MANY_VALUED = (*(column.name for column in HASHES), *EXPORT_FORMAT.many_valued_columns)


def _raw(source: Source, prefix: str) -> Table:
    return Table(
        key=f"raw/{source.value}_events",
        description=f"Every parsed line of the {source.value} exports below `{prefix}/`; never de-duplicated.",
        columns=_COLUMNS,
        write_order=("_arrival_date", "_object_key", "_line_number"),
        kind=DELIVERED,
        checks=(Check.DELIVERY_RECONCILES, Check.DELIVERY_COMPLETE),
        many_valued=MANY_VALUED,
        version="2",
        settings_read=("max_object_bytes", "max_line_bytes"),
        recovery="Have the vendor export the named hours again, or recover the day with a backfill export.",
    )


REGULAR_EVENTS = _raw(Source.REGULAR, "{project}")
BACKFILL_EVENTS = _raw(Source.BACKFILL, "{project}-backfill")
RAW_TABLES = {Source.REGULAR: REGULAR_EVENTS, Source.BACKFILL: BACKFILL_EVENTS}


QUARANTINE = Table(
    key="raw/quarantine",
    description="Lines and objects that could not be loaded; replayed after a fix or a re-delivery.",
    columns=(
        TableColumn("source", "string", "regular or backfill", is_required=True),
        TableColumn("arrival_date", "date", "UTC date in the object's name; the partition", is_required=True),
        PROJECT_ID,
        TableColumn("object_key", "string"),
        TableColumn("object_etag", "string"),
        TableColumn("line_number", "int", "from 1; null for a whole object"),
        TableColumn("byte_offset", "bigint", "in the decompressed object"),
        TableColumn("byte_length", "bigint"),
        TableColumn("reason", "string", "one of domain/deliveries.py"),
        TableColumn("detail", "string"),
        TableColumn("sample", "binary", "a bounded prefix of the bytes"),
        TableColumn("is_batch_accepted", "boolean", "whether the rest of the batch was loaded"),
    ),
    write_order=("object_key", "line_number"),
    kind=DELIVERED,
    day_column="arrival_date",
)


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
