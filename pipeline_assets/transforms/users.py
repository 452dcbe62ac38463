"""Who a user is, as every table counts users (tables/active_users.py, tables/event_counts.py).

Contains: how a user is read from an event.
Add here: another id that tells users apart.
Does not contain: counting them (tables/).
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.transforms.named import named

USER_COLUMNS = ("amplitude_id", "user_id", "device_id")
"""Columns that a user is read from."""


def user() -> Column:
    """A user: `amplitude_id`, else `user_id`, else `device_id`, told apart by a prefix; null where none is given.

    A blank id is none.
    """
    return F.coalesce(
        F.concat(F.lit("a:"), F.col("amplitude_id").cast("string")),
        F.concat(F.lit("u:"), named("user_id")),
        F.concat(F.lit("d:"), named("device_id")),
    )
