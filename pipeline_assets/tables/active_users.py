"""aggregates.active_users: exact distinct users per platform."""

from __future__ import annotations

import pyspark.sql.functions as F

from pipeline_assets.domain.checks import Check
from pipeline_assets.tables.table import EVENT_DATE, PROJECT_ID, AggregateTable, Measure, TableColumn
from pipeline_assets.transforms.fold import MERGED, PLATFORM, USER, USER_COLUMNS, Fold, fold_active_users

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
    fold=Fold((PLATFORM, USER), fold_active_users),
    measures={"active_users": Measure(lambda: F.sum("active_users"))},
)
