"""Values that name something, as domain/identity.py reads them: an empty or blank id, user or currency names nothing.

Contains: the Spark form of `named`.
Add here: what every use of a delivered name needs.
Does not contain: which columns are ids.
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.identity import SOMETHING_TO_SEE


def named(text: str | Column) -> Column:
    """The text (a column's name, or an expression), null where nothing in it can be seen."""
    value = F.col(text) if isinstance(text, str) else text
    return F.when(value.rlike(SOMETHING_TO_SEE), value)


def is_nameless() -> Column:
    """Whether an event has no id at all: neither insert_id nor uuid."""
    return named("insert_id").isNull() & named("uuid").isNull()


def has_blank_id() -> Column:
    """Whether an id was delivered that names nothing."""
    return (F.col("insert_id").isNotNull() & named("insert_id").isNull()) | (
        F.col("uuid").isNotNull() & named("uuid").isNull()
    )
