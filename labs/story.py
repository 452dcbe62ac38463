"""The result of a lab, and the scratch deployment that it uses."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as F
from markupsafe import Markup

from benchmarks.contenders import a_session, settings_in
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.revenue import PLACES
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.build.folds import slice_fold
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.tables.aggregates import DAILY_REVENUE
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.transforms.fold_tasks import fold_events
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLES = frozenset(("raw/regular_events", "refined/events", "aggregates/daily_revenue"))
"""The tables that a lab loads by default."""


@dataclass(frozen=True)
class Story:
    """The result of one lab."""

    name: str
    title: str
    told: tuple[str, ...]
    """The sentences of the story, with their numbers."""
    chart: Markup
    """An SVG."""
    legend: tuple[str, ...]
    """The name of each series of the chart."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """The numbers in the sentences, for tests."""


class Deployment:
    """A separate pipeline below a folder, in this process."""

    def __init__(self, folder: Path, name: str, **changes: Any) -> None:
        """Take `name`, the catalog's name, which must be unique within a session, and `changes` of settings."""
        self.landing = folder / "landing"
        self.landing.mkdir(parents=True)
        self.settings = settings_in(folder / "lake", self.landing, name, **changes)
        self.spark = a_session(self.settings)
        self.lakehouse = Lakehouse(self.spark, name)

    def load(self, first: date, last: date, now: datetime) -> None:
        """Load these days as a scheduled run would at `now`; raises RuntimeError where a slice fails."""
        with closing(Ledger(self.settings.ledger_database_url)) as ledger:
            runtime = Runtime(self.lakehouse, ledger, LandingStore.from_settings(self.settings), self.settings)
            days = tuple(days_between(first, last))
            request = LoadRequest(days, self.settings.projects, TABLES, str(uuid.uuid4()), now)
            reports = list(run_load(runtime, request, lambda _: False))
        failed = [outcome for report in reports for outcome in report.outcomes if outcome.fails_the_run]
        if failed:
            raise RuntimeError(f"{failed[0].key.event_date} {failed[0].table}: {failed[0].reason}")

    def table(self, key: str) -> DataFrame:
        """Return a table as published."""
        return self.spark.table(self.lakehouse.identifier(table_by_key(key)))

    def revenue(self) -> dict[date, float]:
        """Return event day -> published revenue, ignoring currencies."""
        return by_day(self.table("aggregates/daily_revenue"), "event_date")


def by_day(rows: DataFrame, column: str) -> dict[date, float]:
    """Return day -> sum of the column `revenue`."""
    found = rows.groupBy(column).agg(F.sum("revenue").alias("revenue")).where("revenue IS NOT NULL").collect()
    return {row[column]: float(row["revenue"]) for row in found}


def revenue_by_day(events: DataFrame, settings: Settings) -> dict[date, float]:
    """Return day -> revenue of events, all currencies and projects together."""
    revenue: dict[date, float] = {}
    for key, folds in fold_events(events, slice_fold([DAILY_REVENUE], settings)).items():
        for units, *_ in folds[DAILY_REVENUE.key].rows.values():
            revenue[key.event_date] = revenue.get(key.event_date, 0.0) + units / 10**PLACES
    return revenue


def total(revenue: Mapping[date, float], days: Sequence[date] | None = None) -> float:
    """Return the sum of all days or of those given, rounded to cents."""
    return round(sum(value for day, value in revenue.items() if days is None or day in days), 2)
