"""raw.quarantine: refused lines and objects, each with its position and reason."""

from __future__ import annotations

from pipeline_assets.tables.kinds import DELIVERED
from pipeline_assets.tables.table import PROJECT_ID, Table, TableColumn

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
        TableColumn("reason", "string", "one of domain/quarantine_reasons.py"),
        TableColumn("detail", "string"),
        TableColumn("sample", "binary", "a bounded prefix of the bytes"),
        TableColumn("is_batch_accepted", "boolean", "whether the rest of the batch was loaded"),
    ),
    write_order=("object_key", "line_number"),
    kind=DELIVERED,
    day_column="arrival_date",
)
