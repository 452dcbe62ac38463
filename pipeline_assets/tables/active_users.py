"""aggregates.active_users: exact distinct users per platform.

Lives here: the table, its build and its control totals. Put here: what this table holds. Keep out: who a user is
(transforms/revenue.py).
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, TableColumn
from pipeline_assets.transforms.named import named
from pipeline_assets.transforms.revenue import USER_COLUMNS, user


def _platform() -> Column:
    return F.coalesce(named("platform"), F.lit("unknown"))


def _build(refined: DataFrame, settings: Settings) -> DataFrame:  # noqa: ARG001 - every build has this form
    return (
        refined.select("event_date", "project_id", _platform().alias("platform"), user().alias("_user"))
        .where(F.col("_user").isNotNull())
        .groupBy("event_date", "project_id", "platform")
        .agg(F.countDistinct("_user").alias("active_users"))
    )


def _controls(refined: DataFrame, settings: Settings) -> DataFrame:  # noqa: ARG001 - every control has this form
    # Values and not their hashes: who may choose an id could make two of them collide.
    users = refined.where(user().isNotNull()).select(
        "event_date", "project_id", _platform().alias("platform"), user().alias("_user")
    )
    return users.distinct().groupBy("event_date", "project_id").agg(F.count(F.lit(1)).alias("active_users"))


ACTIVE_USERS = AggregateTable(
    key="aggregates/active_users",
    description="Exact distinct users per day, project and platform.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("platform", "string", "`unknown` where absent or blank"),
        TableColumn("active_users", "bigint", "exact distinct users", sources=USER_COLUMNS),
    ),
    write_order=("platform",),
    version="2",
    key_columns=("platform",),
    upstream=("refined/events",),
    checks=(Check.RECONCILES_WITH_REFINED, Check.CHANGE_IS_EXPLAINED),
    recovery="Recover refined/events for the day; this table follows.",
    build=_build,
    measures={"active_users": lambda: F.sum("active_users")},
    controls=_controls,
)
