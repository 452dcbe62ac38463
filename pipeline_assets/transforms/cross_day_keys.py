"""Keys that occur on several days: they make a slice depend on its neighbours, and can move between days."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.transforms.event_keys import KEY, day_number


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
