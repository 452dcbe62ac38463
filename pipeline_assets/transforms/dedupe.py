"""Raw rows to outcomes and winners: DESIGN §6 in Spark, equal to domain/identity.py by test.

Lives here: key, rank and outcome as Spark expressions. Put here: how the rule is computed. Keep out: the rule itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Window

from pipeline_assets.domain.identity import Outcome
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.measure import HASH_A, HASH_B, with_row_hashes

ROW_ID = ("_source", "_object_key", "_line_number")
KEY = ("project_id", "_key_kind", "_key_app", "_key_device", "_key_id")


def with_key(frame: DataFrame) -> DataFrame:
    """Adds the event key: `_key_kind`, `_key_id` (strings), `_key_app` (long), `_key_device` (string).

    Expects the vendor's columns and the row hashes.
    """
    by_insert = F.col("insert_id").isNotNull()
    kind = F.when(by_insert, F.lit("insert_id")).when(F.col("uuid").isNotNull(), F.lit("uuid")).otherwise("content")
    content = F.concat_ws(":", F.col(HASH_A).cast("string"), F.col(HASH_B).cast("string"))
    return frame.withColumns(
        {
            "_key_kind": kind,
            "_key_app": F.when(by_insert, F.col("app")),
            "_key_device": F.when(by_insert, F.col("device_id")),
            "_key_id": F.coalesce(F.col("insert_id"), F.col("uuid"), content),
        }
    )


def outcomes(
    raw: DataFrame, content_columns: Sequence[str], precedence: Sequence[Source], dedupe_window_days: int
) -> DataFrame:
    """One narrow row per raw row: event_date, project_id, _source, _object_key, _line_number, outcome (string).

    `raw` is both raw tables' rows with `_source`, over the days to decide and `dedupe_window_days` on either side.
    """
    order = F.create_map(*[part for i, s in enumerate(precedence) for part in (F.lit(s.value), F.lit(-i))])
    narrow = with_row_hashes(raw, content_columns).transform(with_key)
    narrow = narrow.select(
        "event_date",
        *KEY,
        *ROW_ID,
        "uuid",
        F.datediff(F.col("event_date"), F.lit("1970-01-01").cast("date")).alias("_day"),
        # A null compares lower than any value inside a struct, which is "nulls last" for a maximum.
        F.struct(
            "server_upload_time",
            "processed_time",
            order[F.col("_source")],
            HASH_A,
            HASH_B,
            "_object_key",
            "_line_number",
        ).alias("_rank"),
    )
    near = Window.partitionBy(*KEY).orderBy("_day").rangeBetween(-dedupe_window_days, dedupe_window_days)
    same_row = Window.partitionBy(*KEY, "uuid").orderBy("_day").rangeBetween(-dedupe_window_days, dedupe_window_days)
    ranked = narrow.withColumns(
        {
            "_best": F.max(F.struct(F.col("_rank").alias("rank"), F.col("_day").alias("day"))).over(near),
            "_best_same_row": F.max("_rank").over(same_row),
        }
    )
    is_same_row = (F.col("_rank") < F.col("_best_same_row")) & (
        F.col("uuid").isNotNull() | (F.col("_key_kind") == "content")
    )
    outcome = (
        F.when(F.col("_rank") == F.col("_best.rank"), Outcome.WINNER.value)
        .when(is_same_row, Outcome.DELIVERY_DUPLICATE.value)
        .when(F.col("_best.day") == F.col("_day"), Outcome.SEND_DUPLICATE.value)
        .otherwise(Outcome.SUPERSEDED_BY_OTHER_DAY.value)
    )
    return ranked.select("event_date", "project_id", *ROW_ID, outcome.alias("outcome"))


def winners(raw: DataFrame, decided: DataFrame) -> DataFrame:
    """The raw rows that won; few rows lose, so the losers are removed instead of shuffling the wide winners."""
    # Object and line name a row within a slice only: another day may still hold rows of the object's former version.
    names = ["event_date", "project_id", *ROW_ID]
    losers = decided.where(F.col("outcome") != Outcome.WINNER.value).select(*names)
    return raw.join(losers, on=names, how="left_anti")
