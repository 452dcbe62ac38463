"""aggregates.daily_revenue: revenue, purchases and paying users per currency.

Contains: the table, its build and its control totals.
Add here: what this table holds.
Does not contain: how revenue is read from an event (transforms/revenue.py, transforms/narrow_events.py).
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn
from pipeline_assets.transforms.revenue import MONEY, PROPERTIES
from pipeline_assets.transforms.users import USER_COLUMNS


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


def _controls(events: DataFrame, settings: Settings) -> DataFrame:  # noqa: ARG001 - every control has this form
    claims = events.where("claims_revenue")
    return claims.groupBy("event_date", "project_id").agg(
        F.sum("revenue").cast(MONEY).alias("revenue"),
        F.count("revenue").alias("purchases"),
        F.count_if(F.col("revenue").isNull()).alias("unreadable_revenue"),
    )


DAILY_REVENUE = AggregateTable(
    key="aggregates/daily_revenue",
    description="Revenue, purchases and paying users per day, project and currency.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("currency", "string", "`unknown` where absent or blank", sources=PROPERTIES),
        TableColumn("revenue", MONEY, "in units of the currency", sources=PROPERTIES),
        TableColumn("purchases", "bigint", "events with revenue", sources=PROPERTIES),
        TableColumn("paying_users", "bigint", "distinct users among them", sources=(*PROPERTIES, *USER_COLUMNS)),
    ),
    write_order=("currency",),
    version="2",
    key_columns=("currency",),
    settings_read=("revenue_properties", "price_properties", "quantity_properties", "currency_properties"),
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
