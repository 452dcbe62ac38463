"""How an event identifies its user, for every table that counts users (such as tables/active_users.py).

Contains: reading a user from an event.
Add here: another id that identifies users.
Does not contain: counting them (tables/).
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.transforms.named import named

USER_COLUMNS = ("amplitude_id", "user_id", "device_id")
"""Columns from which a user is read."""


def user() -> Column:
    """The user: `amplitude_id`, else `user_id`, else `device_id`, with a prefix for the kind of id; null without any.

    A blank id counts as missing.
    """
    return F.coalesce(
        F.concat(F.lit("a:"), F.col("amplitude_id").cast("string")),
        F.concat(F.lit("u:"), named("user_id")),
        F.concat(F.lit("d:"), named("device_id")),
    )
