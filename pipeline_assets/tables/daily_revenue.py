"""aggregates.daily_revenue: revenue, purchases and paying users per currency."""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn
from pipeline_assets.transforms.revenue import MONEY, MONEY_COLUMNS, repeats_revenue
from pipeline_assets.transforms.users import MERGED, USER_COLUMNS


def _build(events: DataFrame, settings: Settings) -> DataFrame:  # noqa: ARG001 - every build has this form
    return (
        events.where(F.col("revenue").isNotNull())
        .groupBy("event_date", "project_id", "currency")
        .agg(
            F.sum("revenue").cast(MONEY).alias("revenue"),
            F.count(F.lit(1)).alias("purchases"),
            F.countDistinct("user").alias("paying_users"),
        )
    )


def _controls(events: DataFrame, settings: Settings) -> DataFrame:
    repeats = repeats_revenue(settings)
    claims = events.where(F.col("claims_revenue") | repeats)
    return claims.groupBy("event_date", "project_id").agg(
        F.sum("revenue").cast(MONEY).alias("revenue"),
        F.count("revenue").alias("purchases"),
        F.count_if(F.col("revenue").isNull() & ~repeats).alias("unreadable_revenue"),
        F.count_if(repeats).alias("events_that_repeat_revenue"),
    )


DAILY_REVENUE = AggregateTable(
    key="aggregates/daily_revenue",
    description="Revenue, purchases and paying users per day, project and currency. Computed events do not count by default.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("currency", "string", "`unknown` where absent or blank", sources=MONEY_COLUMNS),
        TableColumn("revenue", MONEY, "in units of the currency", sources=MONEY_COLUMNS),
        TableColumn("purchases", "bigint", "events with revenue", sources=MONEY_COLUMNS),
        TableColumn("paying_users", "bigint", f"distinct users; {MERGED}", sources=(*MONEY_COLUMNS, *USER_COLUMNS)),
    ),
    write_order=("currency",),
    version="3",
    key_columns=("currency",),
    settings_read=(
        "revenue_properties",
        "price_properties",
        "quantity_properties",
        "currency_properties",
        "event_types_without_revenue",
    ),
    upstream=("refined/events",),
    checks=(Check.RECONCILES_WITH_REFINED, Check.CHANGE_IS_EXPLAINED),
    recovery="Recover refined/events for the day; this table follows.",
    reads_narrow_events=True,
    build=_build,
    measures={
        "revenue": Measure(lambda: F.sum("revenue"), is_count=False),
        "purchases": Measure(lambda: F.sum("purchases")),
    },
    controls=_controls,
)
