"""aggregates.active_users: exact distinct users per platform."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn
from pipeline_assets.transforms.users import MERGED, USER_COLUMNS


def _build(events: DataFrame, settings: Settings) -> DataFrame:  # noqa: ARG001 - every build has this form
    return (
        events.where(F.col("user").isNotNull())
        .groupBy("event_date", "project_id", "platform")
        .agg(F.countDistinct("user").alias("active_users"))
    )


def _controls(events: DataFrame, settings: Settings) -> DataFrame:  # noqa: ARG001 - every control has this form
    # Compare values, not hashes: a client that chooses its own ids could make two hashes collide.
    users = events.where(F.col("user").isNotNull()).select("event_date", "project_id", "platform", "user")
    return users.distinct().groupBy("event_date", "project_id").agg(F.count(F.lit(1)).alias("active_users"))


ACTIVE_USERS = AggregateTable(
    key="aggregates/active_users",
    description=f"Exact distinct users per day, project and platform; {MERGED}.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("platform", "string", "`unknown` where absent or blank"),
        TableColumn("active_users", "bigint", f"exact distinct users; {MERGED}", sources=USER_COLUMNS),
    ),
    write_order=("platform",),
    version="3",
    key_columns=("platform",),
    upstream=("refined/events",),
    checks=(Check.RECONCILES_WITH_REFINED, Check.CHANGE_IS_EXPLAINED),
    recovery="Recover refined/events for the day; this table follows.",
    reads_narrow_events=True,
    build=_build,
    measures={"active_users": Measure(lambda: F.sum("active_users"))},
    controls=_controls,
)
