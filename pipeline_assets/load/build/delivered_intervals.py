"""Builds months of intervals from a delivered history, and proves that each day has the same items as in the delivery."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import partial
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.formats.interval_objects import folder_of_intervals
from pipeline_assets.formats.snapshot_lines import parse_name
from pipeline_assets.load.build.audit import Audit, Build
from pipeline_assets.load.build.history_checks import judge_unread, with_trimmed
from pipeline_assets.load.build.overlaps import MeasuredMonth, evaluate_overlaps, measured_months
from pipeline_assets.load.build.step import TablePlan
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.intervals import digests_by_day, intervals_by_month
from pipeline_assets.transforms.snapshot_rows import read_histories
from resources.iceberg.metadata import slices_condition
from resources.spark.tasks import naming_what_workers_met


def build_delivered(plan: TablePlan) -> Build:
    """The build of the months in the plan, all from one delivery; raises LakehouseError if there is no such delivery."""
    runtime, table, months = plan.runtime, plan.table, sorted(plan.to_build)
    if all(decision.delivered is None and not decision.present.upstream for decision in plan.to_build.values()):
        return _build_nothing(plan)
    deliveries = {one for decision in plan.to_build.values() if (one := decision.delivered) is not None}
    if len(deliveries) != 1 or any(decision.delivered is None for decision in plan.to_build.values()):
        raise LakehouseError(table.key, "is to be built from nothing that landing holds", "This is a defect: report it")
    (delivery,) = deliveries
    last = _day_of(table, delivery.key)
    parsed = read_histories(runtime.spark, {last: delivery}, runtime.landing, runtime.settings).persist()
    try:
        with naming_what_workers_met():
            (summary,) = parsed.where(F.col("id").isNull()).collect()
    except BaseException:
        parsed.unpersist()
        raise
    rows = intervals_by_month(parsed.where(F.col("id").isNotNull()), runtime.settings.calendar_start)
    wanted = rows.where(F.col(table.day_column).isin([key.event_date for key in months]))
    columns = [F.col(c.name) if c.name != "project_id" else F.lit(ALL_PROJECTS).alias(c.name) for c in table.columns]

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, months))
        measured, by_day = measured_months(staged, table), digests_by_day(staged, last)
        return {key: _audit(plan, delivery.key, summary, key, measured.get(key), by_day) for key in months}

    return Build(wanted.select(*columns), audit, partial(_release, parsed))


def _build_nothing(plan: TablePlan) -> Build:
    """The build of months whose delivery is excluded without another one: no rows."""
    runtime, table, months = plan.runtime, plan.table, sorted(plan.to_build)
    rows = runtime.lakehouse.read(table, plan.base_id).limit(0)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, months))
        measured = measured_months(staged, table)
        last = max(key.event_date for key in months)
        return {
            key: _audit(plan, "", _OF_NOTHING, key, measured.get(key), digests_by_day(staged, last)) for key in months
        }

    return Build(rows, audit)


_OF_NOTHING: Mapping[str, Any] = {"problem": None, "trimmed": 0}


def _release(frame: DataFrame) -> None:
    frame.unpersist()


def _day_of(table: Table, key: str) -> date:
    dimension = table.key.removeprefix("dimensions/").removesuffix("_validity")
    named = parse_name(folder_of_intervals(dimension), key)
    assert named is not None, "it was listed by its name"
    return named[0]


def _audit(
    plan: TablePlan,
    name: str,
    summary: Row | Mapping[str, Any],
    key: Slice,
    found: MeasuredMonth | None,
    by_day: Mapping[date, Digest],
) -> Audit:
    measured = found or MeasuredMonth()
    told = {day.day: digest for day, digest in plan.to_build[key].present.upstream.items()}
    differing = [day for day, digest in sorted(told.items()) if by_day.get(day, EMPTY) != digest]
    days = sum(digest.rows for digest in told.values())
    if measured.days != days and not differing:
        differing = [key.event_date]
    figures = {"rows": measured.digest.rows, "item_days": measured.days, "mismatch_count": len(differing)}
    if summary["problem"] is not None:
        whole = judge_unread(name, str(summary["problem"]), str(summary["detail"]))
    else:
        whole = with_trimmed(evaluate_overlaps(measured), name, summary["trimmed"])
    reason = (
        f"{measured.days} days lie in intervals, {days} in the delivery; {differing[0]} differs" if differing else None
    )
    hint = (
        f"{name} may have changed while it was read: load again; else it is a defect: report it" if differing else None
    )
    agrees = Evaluation(Check.RECONCILES_WITH_SNAPSHOTS, not differing, reason, hint, figures)
    return Audit(measured.digest, {"rows": measured.digest.rows}, figures, (agrees, whole))
