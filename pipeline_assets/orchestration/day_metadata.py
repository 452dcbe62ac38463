"""The metadata of a day's materialization in Dagster: verdict, rows and figures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import date
from typing import Any

import dagster as dg

from pipeline_assets.domain.notices import Notice, measures_text
from pipeline_assets.domain.slices import EMPTY
from pipeline_assets.load.request import Outcome, TableReport
from pipeline_assets.orchestration.event_text import LONGEST_TAG, description, markdown_list
from pipeline_assets.tables.registry import downstream_of
from pipeline_assets.tables.table import Table

CHANGED, REFRESH = "changed final day", "to refresh"
"""Metadata keys of a materialization that changed a final day."""


def data_version(outcomes: Sequence[Outcome]) -> str:
    """Return a version of the day's content in all projects, independent of which projects the run loaded."""
    whole = "+".join(str(outcome.digest) for outcome in outcomes if outcome.digest != EMPTY) or str(EMPTY)
    return whole if len(whole) <= LONGEST_TAG else hashlib.sha256(whole.encode()).hexdigest()


def metadata_of(outcomes: Sequence[Outcome], report: TableReport) -> dict[str, Any]:
    """Return verdict, rows, snapshots and figures of one day in all projects."""
    figures: dict[str, float] = {}
    for outcome in outcomes:
        for name, value in outcome.figures.items():
            figures[name] = (
                max(figures[name], value)
                if name.endswith(("_seconds", "_days")) and name in figures
                else figures.get(name, 0) + value
            )
    rows = sum(outcome.digest.rows for outcome in outcomes)
    return {
        "verdict": verdicts_text(outcomes),
        "dagster/partition_row_count": rows,
        "rows": rows,
        "snapshot_id": dg.MetadataValue.text(str(report.snapshot_id)),
        **_pins(outcomes, report),
        **{name: value for name, value in figures.items() if name != "rows"},
    }


def _pins(outcomes: Sequence[Outcome], report: TableReport) -> dict[str, Any]:
    """The input snapshots of a day that this run built; empty for others."""
    if not report.pins or {outcome.key for outcome in outcomes}.isdisjoint(report.built):
        return {}
    return {"built_from": description(f"{name} {snapshot_id}" for name, snapshot_id in sorted(report.pins.items()))}


def changed_day(table: Table, day: date, changes: Sequence[Notice]) -> dict[str, Any]:
    """Return the changed measures of a final day, and the days that its consumers must refresh; empty where nothing changed."""
    here = [notice for notice in changes if notice.key.event_date == day]
    if not here:
        return {}
    told = markdown_list(f"{notice.key.project_id}: {measures_text(notice.measures)}" for notice in here)
    below = [f"{one.key} {day}" for one in downstream_of(table.key)]
    return {CHANGED: told, REFRESH: markdown_list([f"{table.key} {day}", *below])}


def verdicts_text(outcomes: Sequence[Outcome]) -> str:
    """`10001: published, provisional; 10002: refused`."""
    finality = {None: "", True: ", final", False: ", provisional"}
    return description(f"{o.key.project_id}: {o.verdict.value}{finality[o.is_final]}" for o in outcomes)
