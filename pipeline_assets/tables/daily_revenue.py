"""aggregates.daily_revenue: revenue, purchases and paying users per currency.

Lives here: the table, its build and its control totals. Put here: what this table holds. Keep out: how revenue is read
from an event (transforms/revenue.py).
"""

from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, TableColumn
from pipeline_assets.transforms.revenue import (
    MONEY,
    PROPERTIES,
    USER_COLUMNS,
    currency,
    may_claim_revenue,
    revenue,
    revenue_text,
    user,
)


def _build(refined: DataFrame, settings: Settings) -> DataFrame:
    events = refined.where(may_claim_revenue(settings)).select(
        "event_date",
        "project_id",
        revenue(settings).alias("_revenue"),
        currency(settings).alias("currency"),
        user().alias("_user"),
    )
    # Filtered after the sums: a filter on rows would be pushed below and read every event's JSON twice.
    return (
        events.groupBy("event_date", "project_id", "currency")
        .agg(
            F.sum("_revenue").cast(MONEY).alias("revenue"),
            F.count("_revenue").alias("purchases"),
            F.countDistinct(F.when(F.col("_revenue").isNotNull(), F.col("_user"))).alias("paying_users"),
        )
        .where("purchases > 0")
    )


def _controls(refined: DataFrame, settings: Settings) -> DataFrame:
    claims = refined.where(may_claim_revenue(settings)).select(
        "event_date",
        "project_id",
        revenue(settings).alias("_revenue"),
        revenue_text(settings).isNotNull().alias("_is_claimed"),
    )
    return claims.groupBy("event_date", "project_id").agg(
        F.sum("_revenue").cast(MONEY).alias("revenue"),
        F.count("_revenue").alias("purchases"),
        F.count_if(F.col("_is_claimed") & F.col("_revenue").isNull()).alias("unreadable_revenue"),
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
    build=_build,
    measures={"revenue": lambda: F.sum("revenue"), "purchases": lambda: F.sum("purchases")},
    controls=_controls,
)
