"""Compares keys with very many rows without one task holding all rows of a key: each task first finds its own best rows."""

from __future__ import annotations

from collections.abc import Callable

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, WindowSpec

from pipeline_assets.transforms.event_keys import KEY, ROW_ID, key_window


def apart(
    rows: DataFrame,
    hot_keys: DataFrame | None,
    usual: Callable[[DataFrame], DataFrame],
    hot: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Apply `hot` to the rows of `hot_keys` (KEY; few) and `usual` to all other rows; return the union.

    Both functions return the same columns.
    """
    if hot_keys is None:
        return usual(rows)
    keys = F.broadcast(hot_keys.select(*KEY))
    return usual(rows.join(keys, on=list(KEY), how="left_anti")).unionByName(
        hot(rows.join(keys, on=list(KEY), how="left_semi"))
    )


def with_best(rows: DataFrame, dedupe_window_days: int, is_shared: Callable[[WindowSpec], Column]) -> DataFrame:
    """The rows plus `_best` (struct of rank and day), `_best_same_row` (a rank) and `_is_shared`, as windows would return them.

    Expects KEY, ROW_ID, `_day` and `_rank`. Each task first reduces its rows to one per key and day, and one per key, ROW_ID
    and day; the rows are compared with these few, so that little is shuffled.
    """
    by_row = rows.groupBy(*KEY, ROW_ID, "_day").agg(F.max("_rank").alias("_rank"), F.count(F.lit(1)).alias("_count"))
    by_day = by_row.groupBy(*KEY, "_day").agg(F.max("_rank").alias("_rank"))
    near, same_row = key_window(dedupe_window_days), key_window(dedupe_window_days, ROW_ID)
    days = by_day.withColumns(
        {
            "_best": F.max(F.struct(F.col("_rank").alias("rank"), F.col("_day").alias("day"))).over(near),
            "_is_shared": is_shared(near),
        }
    ).drop("_rank")
    # A row that is alone with its ROW_ID needs no entry; if a key is re-sent often, most of its rows are.
    same = by_row.withColumns(
        {"_best_same_row": F.max("_rank").over(same_row), "_count": F.sum("_count").over(same_row)}
    ).where("_count > 1")
    row, other = rows.alias("row"), same.alias("other")
    is_same = F.col(f"row.{ROW_ID}").eqNullSafe(F.col(f"other.{ROW_ID}"))
    for name in (*KEY, "_day"):
        is_same &= F.col(f"row.{name}") == F.col(f"other.{name}")
    best = F.coalesce(F.col("other._best_same_row"), F.col("row._rank")).alias("_best_same_row")
    return row.join(other, on=is_same, how="left").select("row.*", best).join(F.broadcast(days), on=[*KEY, "_day"])


def with_shared(rows: DataFrame, dedupe_window_days: int, is_shared: Callable[[WindowSpec], Column]) -> DataFrame:
    """The rows plus `_is_shared`; expects KEY and `_day`."""
    days = rows.select(*KEY, "_day").distinct().withColumn("_is_shared", is_shared(key_window(dedupe_window_days)))
    return rows.join(F.broadcast(days), on=[*KEY, "_day"])
