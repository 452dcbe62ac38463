"""How an event identifies its user, for every table that counts users (such as tables/active_users.py)."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.transforms.named import named

USER_COLUMNS = ("data", EXTRA_COLUMN, "amplitude_id", "user_id", "device_id")
"""Columns from which a user is read."""
MERGED = "users that the vendor merged count twice where events bring no `merged_amplitude_id`"
_MERGED_ID = "merged_amplitude_id"


def user() -> Column:
    """The user: `merged_amplitude_id`, else `amplitude_id`, else `user_id`, else `device_id`, with a prefix for the kind of id.

    Null without any; a blank id counts as missing. The vendor names the user that an id was merged into in `data` (Amazon S3
    export, event table schema); exports of warehouses have a key of their own for it. Its files of merged ids are not loaded.
    """
    merged = [
        F.when(F.contains(column, F.lit(_MERGED_ID)), F.get_json_object(column, f"$.{_MERGED_ID}").try_cast("bigint"))
        for column in USER_COLUMNS[:2]
    ]
    return F.coalesce(
        F.concat(F.lit("a:"), F.coalesce(*merged, "amplitude_id").cast("string")),
        F.concat(F.lit("u:"), named("user_id")),
        F.concat(F.lit("d:"), named("device_id")),
    )
