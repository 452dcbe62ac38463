"""Compares the keys of slices in two states: kept, added, removed, changed, moved to or from another day."""

from __future__ import annotations

from collections.abc import Sequence

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.transforms.digests import HASH_A, HASH_B, MEANING_HASH, with_row_hashes
from pipeline_assets.transforms.named import KEY, is_nameless

KEPT, ADDED, REMOVED, CHANGED = "kept", "added", "removed", "changed"
_AT = ("event_date", "project_id", *KEY)


def with_event_keys(events: DataFrame) -> DataFrame:
    """The events with the hash of their meaning as `_hash_a`, and as key where they have no id; needs both ids."""
    meaning, nothing = F.col(MEANING_HASH), F.lit(0).cast("long")
    keys = {
        "_key_a": F.when(is_nameless(), meaning).otherwise(F.col("_key_a")),
        "_key_b": F.when(is_nameless(), nothing).otherwise(F.col("_key_b")),
    }
    return events.withColumns({HASH_A: meaning, HASH_B: nothing, **keys})


def with_keys(rows: DataFrame, key_columns: Sequence[str]) -> DataFrame:
    """The rows plus `_key_a`, `_key_b`: a hash of project_id and the columns that identify a row within its slice."""
    return with_row_hashes(rows, ("project_id", *key_columns), KEY)


def event_contents(events: DataFrame) -> DataFrame:
    """event_date, project_id, `_key_a`, `_key_b`, `_hash_a`, `_hash_b` of `with_event_keys`: one narrow row per event."""
    return with_event_keys(events).select(*_AT, HASH_A, HASH_B)


def held_keys(events: DataFrame) -> DataFrame:
    """event_date, project_id, KEY of events.

    The key of an event without any id is its content, which includes its time, so no other day holds that key.
    """
    return events.select(*_AT)


def row_contents(rows: DataFrame, key_columns: Sequence[str], content_columns: Sequence[str]) -> DataFrame:
    """The same columns as `event_contents`, for a table whose rows are identified by columns of its own."""
    return with_row_hashes(with_keys(rows, key_columns), content_columns).select(*_AT, HASH_A, HASH_B)


def key_changes(
    before: DataFrame, after: DataFrame, before_near: DataFrame, after_near: DataFrame, window_days: int
) -> DataFrame:
    """`_AT`, change (string), is_moved (boolean): one row per key of `before` or `after` (contents of the same slices).

    `before_near` and `after_near` hold event_date, project_id, `_key_a`, `_key_b` of nearby slices. An added key has moved if
    another day at most `window_days` away held it before; a removed key has moved if such a day holds it afterwards.
    """
    left = before.select(*_AT, F.struct(HASH_A, HASH_B).alias("_before"))
    right = after.select(*_AT, F.struct(HASH_A, HASH_B).alias("_after"))
    change = (
        F.when(F.col("_before").isNull(), ADDED)
        .when(F.col("_after").isNull(), REMOVED)
        .when(F.col("_before") == F.col("_after"), KEPT)
        .otherwise(CHANGED)
    )
    joined = left.join(right, on=list(_AT), how="full_outer").select(*_AT, change.alias("change"))
    moved = moved_keys(joined, before_near, after_near, window_days).withColumn("is_moved", F.lit(True))
    return joined.join(moved, on=list(_AT), how="left").withColumn("is_moved", F.coalesce("is_moved", F.lit(False)))


def moved_keys(changes: DataFrame, before_near: DataFrame, after_near: DataFrame, window_days: int) -> DataFrame:
    """`_AT` of the keys in `changes` (`_AT`, change) that moved; for the other arguments see `key_changes`."""
    names = ["project_id", *KEY]
    was = before_near.select(*names, F.col("event_date").alias("_was_day"), F.lit(ADDED).alias("change"))
    is_now = after_near.select(*names, F.col("event_date").alias("_was_day"), F.lit(REMOVED).alias("change"))
    elsewhere = was.unionByName(is_now)
    return (
        changes.join(elsewhere, on=[*names, "change"])
        .where(F.abs(F.datediff("_was_day", "event_date")).between(1, window_days))
        .select(*_AT)
        .distinct()
    )
