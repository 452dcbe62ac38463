"""What becomes of the keys of slices between two states: kept, added, removed, changed, moved to or from another day.

Contains: the comparison of two states by key.
Add here: another thing that may become of a key.
Does not contain: bounds (domain/change_rule.py) and what a key of a table is (tables/, event_keys.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.transforms.digests import HASH_A, HASH_B, MEANING_HASH, with_row_hashes
from pipeline_assets.transforms.event_keys import KEY
from pipeline_assets.transforms.named import is_nameless
from pipeline_assets.transforms.row_hash import row_hashes

KEPT, ADDED, REMOVED, CHANGED = "kept", "added", "removed", "changed"
_AT = ("event_date", "project_id", *KEY)


def with_event_keys(events: DataFrame) -> DataFrame:
    """The events with `_hash_a`, `_hash_b` of their meaning, and it for a key where they have no id; needs IDENTITY too."""
    meaning, nothing = F.col(MEANING_HASH), F.lit(0).cast("long")
    keys = {
        "_key_a": F.when(is_nameless(), meaning).otherwise(F.col("_key_a")),
        "_key_b": F.when(is_nameless(), nothing).otherwise(F.col("_key_b")),
    }
    return events.withColumns({HASH_A: meaning, HASH_B: nothing, **keys})


def with_keys(rows: DataFrame, key_columns: Sequence[str]) -> DataFrame:
    """The rows plus `_key_a`, `_key_b` of columns that name a row within its slice."""
    types = dict(rows.dtypes)
    first, second = row_hashes({name: types[name] for name in ("project_id", *key_columns)})
    return rows.withColumns({"_key_a": first, "_key_b": second})


def event_contents(events: DataFrame) -> DataFrame:
    """event_date, project_id, `_key_a`, `_key_b`, `_hash_a`, `_hash_b`: one narrow row per event, as `with_event_keys` has it."""
    return with_event_keys(events).select(*_AT, HASH_A, HASH_B)


def held_keys(events: DataFrame) -> DataFrame:
    """event_date, project_id, KEY of events.

    An event without any id has the key of its content, its time included, which no other day holds.
    """
    return events.select(*_AT)


def row_contents(rows: DataFrame, key_columns: Sequence[str], content_columns: Sequence[str]) -> DataFrame:
    """The same of a table whose rows are named by columns of its own."""
    return with_row_hashes(with_keys(rows, key_columns), content_columns).select(*_AT, HASH_A, HASH_B)


def key_changes(
    before: DataFrame, after: DataFrame, before_near: DataFrame, after_near: DataFrame, window_days: int
) -> DataFrame:
    """`_AT`, change (string), is_moved (boolean): one row per key of `before` or `after` (contents of the same slices).

    `before_near` and `after_near`: event_date, project_id, `_key_a`, `_key_b` of slices near them. An added key moved if another
    day, at most so many days away, held it before, a removed one if such a day holds it afterwards.
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
    """`_AT` of the keys among `changes` (`_AT`, change) that moved; the other two as `key_changes` takes them."""
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
