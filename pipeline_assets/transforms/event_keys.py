"""The event key in Spark: two stored columns (event_hashes.py), equal exactly if `RawRow.key` (domain/identity.py) is."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT

KEY = ("_key_a", "_key_b")
"""Both halves (long) of a 128-bit hash over project, kind of key and ids, or over the content if an event has no id."""
ROW_ID = EXPORT_FORMAT.identity.row_id
"""Rows with the same value are re-deliveries of one row."""


def unread_text() -> Column:
    """The delivered text of a time that ranks rows second, where it could not be read; else null."""
    later = EXPORT_FORMAT.rank_columns[1]
    return F.when(F.col(later).isNull(), F.get_json_object(EXTRA_COLUMN, f"$.{later}"))
