"""aggregates.daily_revenue: revenue, purchases and paying users per currency."""

from __future__ import annotations

import pyspark.sql.functions as F

from pipeline_assets.domain.checks import Check
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn
from pipeline_assets.transforms.fold import MERGED, MONEY, MONEY_COLUMNS, USER, USER_COLUMNS, Fold, fold_daily_revenue

DAILY_REVENUE = AggregateTable(
    key="aggregates/daily_revenue",
    description="Revenue, purchases and paying users per day, project and currency. Computed events do not count by default.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("currency", "string", "`unknown` where absent or blank", sources=MONEY_COLUMNS),
        TableColumn("revenue", "decimal(38,6)", "in units of the currency", sources=MONEY_COLUMNS),
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
    fold=Fold((MONEY, USER), fold_daily_revenue),
    measures={
        "revenue": Measure(lambda: F.sum("revenue"), is_count=False),
        "purchases": Measure(lambda: F.sum("purchases")),
    },
)
