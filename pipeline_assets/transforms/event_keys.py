"""The event key in Spark: two stored columns (event_hashes.py), equal exactly if `RawRow.key` (domain/identity.py) is."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.named import named, named_sender

KEY = ("_key_a", "_key_b")
"""Both halves (long) of a 128-bit hash over project, kind of key and ids, or over the content if an event has no id."""
ROW_ID = EXPORT_FORMAT.identity.row_id
"""Rows with the same value are re-deliveries of one row."""
KEY_TYPES = {
    "project_id": "string",
    "_kind": "string",
    **{f"_key_{name}": EXPORT_FORMAT.spark_types[name] for name in EXPORT_FORMAT.identity.sender},
    "_key_id": "string",
}
"""Columns that the key is hashed from: project_id and `key_parts`."""


def key_parts(hash_a: str, hash_b: str) -> dict[str, Column]:
    """Column -> expression of the parts that a key is hashed from (KEY_TYPES without project_id), as in `RawRow.key`.

    Expects the exporter's ids; `hash_a` and `hash_b` name the columns with the hashes of the content.
    """
    identity = EXPORT_FORMAT.identity
    send_id, row_id = named(identity.send_id), named(identity.row_id)
    is_sent, has_row_id = send_id.isNotNull(), row_id.isNotNull()
    content = F.concat_ws(":", F.col(hash_a).cast("string"), F.col(hash_b).cast("string"))
    return {
        "_kind": F.when(is_sent, identity.send_id).when(has_row_id, identity.row_id).otherwise("content"),
        **{f"_key_{name}": F.when(is_sent, value) for name, value in named_sender().items()},
        "_key_id": F.coalesce(send_id, row_id, content),
    }


def unread_text() -> Column:
    """The delivered text of a time that ranks rows second, where it could not be read; else null."""
    later = EXPORT_FORMAT.rank_columns[1]
    return F.when(F.col(later).isNull(), F.get_json_object(EXTRA_COLUMN, f"$.{later}"))
