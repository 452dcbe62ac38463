"""aggregates.event_counts: events and users per event type."""

from __future__ import annotations

import pyspark.sql.functions as F

from pipeline_assets.domain.checks import Check
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn
from pipeline_assets.transforms.fold import EVENT_TYPE, MERGED, USER, USER_COLUMNS, Fold, fold_event_counts

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
    fold=Fold((EVENT_TYPE, USER), fold_event_counts),
    measures={"events": Measure(lambda: F.sum("events"))},
)
