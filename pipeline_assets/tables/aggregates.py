"""aggregates.event_counts, active_users and daily_revenue: figures of a day of refined events."""

from __future__ import annotations

import pyspark.sql.functions as F

from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn
from pipeline_assets.transforms import fold

EVENT_COUNTS = AggregateTable(
    key="aggregates/event_counts",
    description="Events and distinct users per day, project and event type.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("event_type", "string"),
        TableColumn("events", "bigint"),
        TableColumn("users", "bigint", f"distinct users; {fold.MERGED}", sources=fold.USER_COLUMNS),
    ),
    write_order=("event_type",),
    version="3",
    key_columns=("event_type",),
    fold=fold.Fold((fold.EVENT_TYPE, fold.USER), fold.fold_event_counts),
    measures={"events": Measure(lambda: F.sum("events"))},
)


ACTIVE_USERS = AggregateTable(
    key="aggregates/active_users",
    description=f"Exact distinct users per day, project and platform; {fold.MERGED}.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("platform", "string", "`unknown` where absent or blank"),
        TableColumn("active_users", "bigint", f"exact distinct users; {fold.MERGED}", sources=fold.USER_COLUMNS),
    ),
    write_order=("platform",),
    version="3",
    key_columns=("platform",),
    fold=fold.Fold((fold.PLATFORM, fold.USER), fold.fold_active_users),
    measures={"active_users": Measure(lambda: F.sum("active_users"))},
)


DAILY_REVENUE = AggregateTable(
    key="aggregates/daily_revenue",
    description="Revenue, purchases and paying users per day, project and currency. Computed events do not count by default.",
    columns=(
        EVENT_DATE,
        PROJECT_ID,
        TableColumn("currency", "string", "`unknown` where absent or blank", sources=fold.MONEY_COLUMNS),
        TableColumn("revenue", "decimal(38,6)", "in units of the currency", sources=fold.MONEY_COLUMNS),
        TableColumn("purchases", "bigint", "events with revenue", sources=fold.MONEY_COLUMNS),
        TableColumn(
            "paying_users",
            "bigint",
            f"distinct users; {fold.MERGED}",
            sources=(*fold.MONEY_COLUMNS, *fold.USER_COLUMNS),
        ),
    ),
    write_order=("currency",),
    version="4",
    key_columns=("currency",),
    settings_read=(
        "revenue_properties",
        "price_properties",
        "quantity_properties",
        "currency_properties",
        "event_types_without_revenue",
    ),
    fold=fold.Fold((fold.MONEY, fold.USER), fold.fold_daily_revenue),
    measures={
        "revenue": Measure(lambda: F.sum("revenue"), is_count=False),
        "purchases": Measure(lambda: F.sum("purchases")),
    },
)
