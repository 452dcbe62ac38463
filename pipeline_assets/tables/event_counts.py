"""aggregates.event_counts: events and users per event type."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn
from pipeline_assets.transforms.users import MERGED, USER_COLUMNS


def _build(events: DataFrame, settings: Settings) -> DataFrame:  # noqa: ARG001 - every build has this form
    return events.groupBy("event_date", "project_id", "event_type").agg(
        F.count(F.lit(1)).alias("events"), F.countDistinct("user").alias("users")
    )


def _controls(events: DataFrame, settings: Settings) -> DataFrame:  # noqa: ARG001 - every control has this form
    return events.groupBy("event_date", "project_id").agg(F.count(F.lit(1)).alias("events"))


EVENT_COUNTS = AggregateTable(
    key="aggregates/event_counts",
    description="Events and distinct users per day, project and event type.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("event_type", "string"),
        TableColumn("events", "bigint"),
        TableColumn("users", "bigint", f"distinct users; {MERGED}", sources=USER_COLUMNS),
    ),
    write_order=("event_type",),
    version="3",
    key_columns=("event_type",),
    upstream=("refined/events",),
    checks=(Check.RECONCILES_WITH_REFINED, Check.CHANGE_IS_EXPLAINED),
    recovery="Recover refined/events for the day; this table follows.",
    reads_narrow_events=True,
    build=_build,
    measures={"events": Measure(lambda: F.sum("events"))},
    controls=_controls,
)
