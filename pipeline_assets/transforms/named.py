"""Ids, names and keys of events in Spark, read as domain/identity.py reads them."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.event_hashes import ROW_ID, SEND_ID


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
    return named(SEND_ID).isNull() & named(ROW_ID).isNull()


def unread_text() -> Column:
    """The delivered text of a time that ranks rows second, where it could not be read; else null."""
    later = EXPORT_FORMAT.rank_columns[1]
    return F.when(F.col(later).isNull(), F.get_json_object(EXTRA_COLUMN, f"$.{later}"))
