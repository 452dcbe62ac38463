"""Raw rows to outcomes and winners: the rule of domain/identity.py in Spark; tests prove that both agree."""

from __future__ import annotations

from collections.abc import Sequence

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.identity import RowFate
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.cross_day_keys import competing_columns, is_shared
from pipeline_assets.transforms.digests import HASH_A, HASH_B
from pipeline_assets.transforms.event_keys import KEY, ROW_ID, day_number, key_window
from pipeline_assets.transforms.hot_keys import apart, with_best
from pipeline_assets.transforms.named import is_nameless, named

LINE = ("_source", "_object_key", "_line_number")
"""Columns that identify a raw row within its event day and project."""
UNREAD = "_is_unread"
"""Column of `outcomes`: whether the time that ranks rows second could not be read; false where the rows do not have it."""
_RANK = EXPORT_FORMAT.rank_columns


def outcomes(
    raw: DataFrame, precedence: Sequence[Source], dedupe_window_days: int, hot_keys: DataFrame | None = None
) -> DataFrame:
    """One narrow row per raw row: event_date, project_id, LINE, outcome (string), rival, is_by_unread (`Defeat.by_unread`).

    `raw` holds the rows of both raw tables for the days to decide and `dedupe_window_days` on either side: event_date,
    project_id, LINE, IDENTITY, `_hash_a`, `_hash_b`, and UNREAD if known.
    `rival` (struct of `cross_day_keys.competing_columns`) is null except for rows whose key occurs on several days.
    `hot_keys` (KEY) have too many rows for one task to hold; they are compared in another way, with the same outcome.
    """
    order = F.create_map(*[part for i, s in enumerate(precedence) for part in (F.lit(s.value), F.lit(-i))])
    narrow = raw.select(
        "event_date",
        "project_id",
        *KEY,
        *LINE,
        named(ROW_ID).alias(ROW_ID),
        is_nameless().alias("_is_nameless"),
        day_number().alias("_day"),
        # Within a struct, a null is lower than any value, so a maximum picks nulls last.
        F.struct(
            *_RANK,
            order[F.col("_source")],
            HASH_A,
            HASH_B,
            "_object_key",
            "_line_number",
            # Ranks no rows, since these differ before: it only tells how the best one compares.
            (F.col(UNREAD) if UNREAD in raw.columns else F.lit(False)).alias(UNREAD),
        ).alias("_rank"),
    )
    near, same_row = key_window(dedupe_window_days), key_window(dedupe_window_days, ROW_ID)

    def by_windows(rows: DataFrame) -> DataFrame:
        return rows.withColumns(
            {
                "_best": F.max(F.struct(F.col("_rank").alias("rank"), F.col("_day").alias("day"))).over(near),
                "_best_same_row": F.max("_rank").over(same_row),
                "_is_shared": is_shared(near),
            }
        )

    compared = apart(narrow, hot_keys, by_windows, lambda rows: with_best(rows, dedupe_window_days, is_shared))
    ranked = compared.withColumns({name: F.col("_rank")[name] for name in _RANK})
    is_same_row = (F.col("_rank") < F.col("_best_same_row")) & (F.col(ROW_ID).isNotNull() | F.col("_is_nameless"))
    outcome = (
        F.when(F.col("_rank") == F.col("_best.rank"), RowFate.WINNER.value)
        .when(is_same_row, RowFate.DELIVERY_DUPLICATE.value)
        .when(F.col("_best.day") == F.col("_day"), RowFate.SEND_DUPLICATE.value)
        .otherwise(RowFate.SUPERSEDED_BY_OTHER_DAY.value)
    )
    own, better = F.col("_rank"), F.when(is_same_row, F.col("_best_same_row")).otherwise(F.col("_best.rank"))
    is_equal = (better[HASH_A] == own[HASH_A]) & (better[HASH_B] == own[HASH_B])
    by_unread = better[_RANK[0]].eqNullSafe(own[_RANK[0]]) & ~is_equal & (better[UNREAD] | own[UNREAD])
    rival = F.when(F.col("_is_shared"), F.struct(*competing_columns()))
    decided = {"outcome": outcome, "rival": rival, "is_by_unread": by_unread}
    return ranked.select("event_date", "project_id", *LINE, *[one.alias(name) for name, one in decided.items()])


def winners(raw: DataFrame, decided: DataFrame, *, do_few_lose: bool = True) -> DataFrame:
    """The raw rows that won. If few rows lose (`do_few_lose`), the losers are broadcast and the wide rows are not shuffled."""
    # Object and line identify a row only within a slice: another day may still hold rows of an older version of the object.
    names = ["event_date", "project_id", *LINE]
    losers = decided.where(F.col("outcome") != RowFate.WINNER.value).select(*names)
    return raw.join(F.broadcast(losers) if do_few_lose else losers, on=names, how="left_anti")
