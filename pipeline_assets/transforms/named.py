"""Values that name something, as domain/identity.py reads them: an empty or blank id, user or currency names nothing.

Contains: the Spark form of `named`.
Add here: what every use of a delivered name needs.
Does not contain: which columns are ids (formats/).
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.formats.registry import EXPORT_FORMAT

_SEND_ID, _ROW_ID = EXPORT_FORMAT.identity.send_id, EXPORT_FORMAT.identity.row_id


def named(text: str | Column) -> Column:
    """The text (a column's name, or an expression), null where nothing in it can be seen."""
    value = F.col(text) if isinstance(text, str) else text
    return F.when(value.rlike(SOMETHING_TO_SEE), value)


def named_sender() -> dict[str, Column]:
    """Column -> its value, of the columns that say who sent an event; a blank text is null."""
    types = EXPORT_FORMAT.spark_types
    return {name: named(name) if types[name] == "string" else F.col(name) for name in EXPORT_FORMAT.identity.sender}


def is_nameless() -> Column:
    """Whether an event has no id at all: neither that of its sending nor that of its row."""
    return named(_SEND_ID).isNull() & named(_ROW_ID).isNull()


def has_blank_id() -> Column:
    """Whether an id was delivered that names nothing."""
    return (F.col(_SEND_ID).isNotNull() & named(_SEND_ID).isNull()) | (
        F.col(_ROW_ID).isNotNull() & named(_ROW_ID).isNull()
    )
