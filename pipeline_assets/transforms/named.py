"""Ids, names and keys of events in Spark, read as domain/identity.py reads them."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT

_SEND_ID, _ROW_ID = EXPORT_FORMAT.identity.send_id, EXPORT_FORMAT.identity.row_id


def named(text: str | Column) -> Column:
    """The text (a column's name, or an expression), with null for empty and blank ones."""
    value = F.col(text) if isinstance(text, str) else text
    return F.when(value.rlike(SOMETHING_TO_SEE), value)


def named_sender() -> dict[str, Column]:
    """Column -> expression, for the columns that identify the sender of an event; blank texts are null."""
    types = EXPORT_FORMAT.spark_types
    return {name: named(name) if types[name] == "string" else F.col(name) for name in EXPORT_FORMAT.identity.sender}


def is_nameless() -> Column:
    """Whether an event has neither a send id nor a row id."""
    return named(_SEND_ID).isNull() & named(_ROW_ID).isNull()


KEY = ("_key_a", "_key_b")
"""Both halves (long) of a 128-bit hash over project, kind of key and ids, or over the content if an event has no id."""
ROW_ID = EXPORT_FORMAT.identity.row_id
"""Rows with the same value are re-deliveries of one row."""


def unread_text() -> Column:
    """The delivered text of a time that ranks rows second, where it could not be read; else null."""
    later = EXPORT_FORMAT.rank_columns[1]
    return F.when(F.col(later).isNull(), F.get_json_object(EXTRA_COLUMN, f"$.{later}"))
