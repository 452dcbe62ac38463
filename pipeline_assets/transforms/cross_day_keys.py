"""Keys that occur on several days: they make a slice depend on its neighbours, and can move between days."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, WindowSpec

from pipeline_assets.domain.identity import with_tie
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.digests import HASH_A, HASH_B, digest_aggregates, digest_of
from pipeline_assets.transforms.event_keys import KEY, ROW_ID, day_number, key_window
from pipeline_assets.transforms.hot_keys import apart, with_shared
from pipeline_assets.transforms.named import named
from pipeline_assets.transforms.row_hash import row_hashes

_ORDER = {**dict.fromkeys(EXPORT_FORMAT.rank_columns, "timestamp"), "_source": "string"}
_RIVAL = {"_day": "int", **dict.fromkeys(KEY, "bigint"), ROW_ID: "string", **_ORDER}


def competing_columns() -> list[Column]:
    """`_day`, `_key_a`, `_key_b`, `_hash_a`, `_hash_b`, `_order` (numbers): what competing rows on other days compare.

    Expects `_day` and IDENTITY, with ROW_ID as `named` returns it. Content is left out because it only decides ties.
    `digests_of_competing` counts ties, so that a slice with a tie never counts as unchanged.
    """
    row, order = row_hashes(_RIVAL), row_hashes(_ORDER)
    return [
        *map(F.col, ("_day", *KEY)),
        row[0].alias(HASH_A),
        row[1].alias(HASH_B),
        order[0].alias("_order"),
    ]


def is_shared(window: WindowSpec) -> Column:
    """Whether other days within the range of this window (a key's rows by `_day`) hold the row's key.

    Rows without any id never compete across days: their key is their content, which includes the time of the event.
    """
    return F.min("_day").over(window) != F.max("_day").over(window)


def shared_rows(raw: DataFrame, dedupe_window_days: int, hot_keys: DataFrame | None = None) -> DataFrame:
    """event_date, project_id and `competing_columns` of the rows whose key occurs on several days within the window.

    `raw` needs only event_date, project_id, `_source` and IDENTITY. `hot_keys`: see `dedupe.outcomes`.
    """
    near = key_window(dedupe_window_days)
    rows = raw.withColumn("_day", day_number()).withColumn(ROW_ID, named(ROW_ID))
    return (
        apart(
            rows,
            hot_keys,
            lambda usual: usual.withColumn("_is_shared", is_shared(near)),
            lambda hot: with_shared(hot, dedupe_window_days, is_shared),
        )
        .where("_is_shared")
        .select("event_date", "project_id", *competing_columns())
    )


def digests_of_competing(shared: DataFrame, dedupe_window_days: int) -> DataFrame:
    """event_date, project_id, `digest_aggregates`, ties: per slice, the rows of other days that compete with its rows.

    `ties` counts the competing rows that only content tells apart.
    """
    own = shared.select("event_date", "project_id", "_day", *KEY).distinct()
    own_orders = shared.select("event_date", "project_id", *KEY, "_order", F.lit(True).alias("_is_tied")).distinct()
    other = shared.select("project_id", *KEY, HASH_A, HASH_B, "_order", F.col("_day").alias("_other_day"))
    distance = F.abs(F.col("_day") - F.col("_other_day"))
    return (
        own.join(other, on=["project_id", *KEY])
        .where((distance > 0) & (distance <= dedupe_window_days))
        .join(own_orders, on=["event_date", "project_id", *KEY, "_order"], how="left")
        .groupBy("event_date", "project_id")
        .agg(*digest_aggregates(), F.count("_is_tied").alias("ties"))
    )


def competing_digest(row: Mapping[str, Any]) -> str:
    """A collected row of `digests_of_competing` as text, marked if content alone decides between days."""
    digest = str(digest_of(row))
    return with_tie(digest) if row["ties"] else digest


def key_days(events: DataFrame) -> DataFrame:
    """project_id, `_day`, KEY, distinct: the keys of each day."""
    return events.select("project_id", day_number().alias("_day"), *KEY).distinct()


def linked_days(
    before: DataFrame, after: DataFrame, raw: DataFrame, is_built: Column, dedupe_window_days: int
) -> DataFrame:
    """project_id, `_day`, `_other_day` (int): pairs of days that must be published together, because they share keys.

    `before` and `after` are `key_days` of refined, as published and as built; `raw` is `key_days` of its inputs. `is_built` is a
    condition on `_day` and project_id. A key that leaves a built day links it to the days that are to gain the key: their
    raw rows hold it and their published rows do not. A key on two days afterwards links a built day to one not built.
    """
    at = ["project_id", "_day", *KEY]
    left = before.where(is_built).join(after, on=at, how="left_anti")
    moving = left.select("project_id", *KEY).distinct()
    gaining = raw.join(moving, on=["project_id", *KEY], how="left_semi").join(before, on=at, how="left_anti")
    giving_or_gaining = left.select(*at).unionByName(gaining.select(*at)).distinct()
    moved = _pairs(giving_or_gaining, giving_or_gaining, dedupe_window_days)
    twice = _pairs(after.where(is_built), after.where(~is_built), dedupe_window_days)
    return moved.unionByName(twice).distinct()


def torn_keys(
    *,
    then_chosen: DataFrame,
    now_chosen: DataFrame,
    then_beside: DataFrame,
    now_beside: DataFrame,
    dedupe_window_days: int,
) -> DataFrame:
    """event_date, project_id of neighbouring days: one row per key that a rollback of the chosen days alone would break.

    All arguments are `key_days`, before (`then`) and now, of the chosen days and of the days beside them. A key is doubled if
    a chosen day gets it back while a day beside holds it now. It is lost if a day beside held it then and only a chosen
    day holds it now.
    """
    at = ["project_id", *KEY]
    doubled = _near(now_beside, then_chosen, dedupe_window_days)
    taken = _near(then_beside, now_chosen, dedupe_window_days)
    lost = taken.join(now_beside, on=at, how="left_anti").join(then_chosen, on=at, how="left_anti")
    day = F.date_add(F.lit("1970-01-01").cast("date"), F.col("_day")).alias("event_date")
    return doubled.unionByName(lost).select(day, "project_id")


def _near(one: DataFrame, other: DataFrame, dedupe_window_days: int) -> DataFrame:
    """Rows of `one` whose key `other` holds on a day within the window."""
    renamed = other.select("project_id", F.col("_day").alias("_other_day"), *KEY)
    distance = F.abs(F.col("_day") - F.col("_other_day"))
    found = one.join(renamed, on=["project_id", *KEY]).where((distance > 0) & (distance <= dedupe_window_days))
    return found.select(*one.columns).distinct()


def _pairs(one: DataFrame, other: DataFrame, dedupe_window_days: int) -> DataFrame:
    renamed = other.select("project_id", F.col("_day").alias("_other_day"), *KEY)
    distance = F.abs(F.col("_day") - F.col("_other_day"))
    found = one.join(renamed, on=["project_id", *KEY]).where((distance > 0) & (distance <= dedupe_window_days))
    return found.select("project_id", "_day", "_other_day")
