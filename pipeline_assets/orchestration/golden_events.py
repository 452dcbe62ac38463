"""Check evaluations of golden totals: one for each table and day that an outside system has totals of."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import date

import dagster as dg

from pipeline_assets.domain.golden import GoldenComparison, evaluation
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.golden import compare_recorded
from pipeline_assets.orchestration.event_text import markdown_text
from pipeline_assets.orchestration.events import targets_of
from pipeline_assets.orchestration.specs import asset_key
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger


def golden_evaluations(
    instance: dg.DagsterInstance, ledger: Ledger, settings: Settings, table: Table, days: Collection[date]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield `reconciles_with_golden` per day for all projects together; a day without totals was not compared and has none."""
    if not days:
        return
    by_day: dict[date, list[GoldenComparison]] = {}
    for one in compare_recorded(ledger, settings, settings.projects, min(days), max(days), (table.key,)):
        # A day outside the calendar has no partition.
        if one.total.key.event_date in days and one.total.key.event_date >= settings.calendar_start:
            by_day.setdefault(one.total.key.event_date, []).append(one)
    key = asset_key(table)
    targets = targets_of(instance, key, [day.isoformat() for day in by_day])
    for day, comparisons in sorted(by_day.items()):
        found = evaluation(comparisons)
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=found.check.name,
            partition=day.isoformat(),
            passed=found.is_passed,
            blocking=False,
            severity=dg.AssetCheckSeverity.WARN,
            target_materialization_data=targets.get(day.isoformat()),
            description=markdown_text([text for text in (found.reason, found.hint) if text]) or None,
            metadata=dict(found.figures),
        )
