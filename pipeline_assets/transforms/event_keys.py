"""The event key in Spark, equal to `RawRow.key` of domain/identity.py by test.

Lives here: the key's columns and windows over it. Put here: what every question about keys needs. Keep out: those questions.
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, Window, WindowSpec

from pipeline_assets.transforms.measure import HASH_A, HASH_B
from pipeline_assets.transforms.named import is_nameless, named
from pipeline_assets.transforms.row_hash import row_hashes

KEY_TYPES = {
    "project_id": "string", "_key_kind": "string", "_key_app": "bigint", "_key_device": "string", "_key_id": "string",
}  # fmt: skip
KEY = tuple(KEY_TYPES)


def with_key(frame: DataFrame) -> DataFrame:
    """Adds the event key: `_key_kind`, `_key_id` (strings), `_key_app` (long), `_key_device` (string).

    Expects the columns of IDENTITY and the row hashes.
    """
    return _with_key(frame, F.concat_ws(":", F.col(HASH_A).cast("string"), F.col(HASH_B).cast("string")))


def _with_key(frame: DataFrame, content: Column) -> DataFrame:
    insert_id, uuid = named("insert_id"), named("uuid")
    by_insert = insert_id.isNotNull()
    kind = F.when(by_insert, F.lit("insert_id")).when(uuid.isNotNull(), F.lit("uuid")).otherwise("content")
    return frame.withColumns(
        {
            "_key_kind": kind,
            "_key_app": F.when(by_insert, F.col("app")),
            "_key_device": F.when(by_insert, named("device_id")),
            "_key_id": F.coalesce(insert_id, uuid, content),
        }
    )


def day_number() -> Column:
    """Days since 1970 of `event_date`; a range window needs a number."""
    return F.datediff(F.col("event_date"), F.lit("1970-01-01").cast("date"))


def key_window(dedupe_window_days: int, *also: str) -> WindowSpec:
    """Rows of one key (and of one value of the columns `also`), at most so many event days away."""
    by_key = Window.partitionBy(*KEY, *also).orderBy("_day")
    return by_key.rangeBetween(-dedupe_window_days, dedupe_window_days)


def contested(events: DataFrame) -> DataFrame:
    """project_id, `_key_a`, `_key_b`: the keys of several rows.

    Reads the columns of IDENTITY alone. Rows without any id are left out.
    """
    first, second = row_hashes(KEY_TYPES)
    keys = identified(events).select("project_id", first.alias("_key_a"), second.alias("_key_b"))
    return keys.groupBy("project_id", "_key_a", "_key_b").count().where("count > 1").drop("count")


def with_contested_keys(events: DataFrame, keys: DataFrame) -> DataFrame:
    """The events of contested keys, and those without any id: the only ones that may share their key with another."""
    first, second = row_hashes(KEY_TYPES)
    at = ["project_id", "_key_a", "_key_b"]
    hashed = identified(events).withColumns({"_key_a": first, "_key_b": second})
    found = hashed.join(keys, on=at, how="left_semi").select(*events.columns)
    return found.unionByName(events.where(is_nameless()))


def identified(events: DataFrame) -> DataFrame:
    """The rows that have an id, with key and `_day`; needs project_id, event_date and the four id columns, no content."""
    named_ones = events.where(~is_nameless())
    return _with_key(named_ones, F.lit(None).cast("string")).withColumn("_day", day_number())
