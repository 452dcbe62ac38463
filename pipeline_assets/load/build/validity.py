"""Builds the intervals of a dimension month by month, from its snapshots or from a delivered history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Window

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.formats.interval_objects import folder_of_intervals
from pipeline_assets.formats.snapshot_lines import parse_name
from pipeline_assets.load.build.builder import Audit, Build, NamedRowsBuilder, Proposal, TablePlan
from pipeline_assets.load.build.snapshot import columns_of_all_projects, judge_unread, parsed_objects, with_trimmed
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes
from pipeline_assets.transforms.snapshot_rows import (
    HISTORY,
    digests_by_day,
    intervals_by_month,
    intervals_of,
    read_objects,
)
from resources.iceberg.metadata import slices_condition


@dataclass(frozen=True)
class MeasuredMonth:
    """The measurements of one month of intervals."""

    digest: Digest = EMPTY
    days: int = 0
    """The sum of the days of all intervals."""
    overlaps: int = 0
    """Number of intervals that begin before the previous one of their id has ended, or end before they begin."""


def measured_months(staged: DataFrame, table: Table) -> dict[Slice, MeasuredMonth]:
    """Month -> measurements of its staged intervals; months without rows are left out."""
    start, end = F.col("active_start_date"), F.col("active_end_date")
    by_id = Window.partitionBy(*table.partition_columns, "id").orderBy("active_start_date", "active_end_date")
    overlaps = F.coalesce(F.lag("active_end_date").over(by_id) >= start, F.lit(False)) | (end < start)
    hashed = with_row_hashes(staged.withColumn("_overlaps", overlaps), table.content_columns)
    figures = [F.sum(F.datediff(end, start) + 1).alias("days"), F.count_if("_overlaps").alias("overlaps")]
    return {
        Slice(row[table.day_column], row["project_id"]): MeasuredMonth(
            digest_of(row.asDict()), int(row["days"]), int(row["overlaps"])
        )
        for row in hashed.groupBy(*table.partition_columns).agg(*digest_aggregates(), *figures).collect()
    }


def evaluate_overlaps(month: MeasuredMonth) -> Evaluation:
    """The check `intervals_are_whole` of a staged month."""
    is_passed = not month.overlaps
    reason = (
        None if is_passed else f"{month.overlaps} of {month.digest.rows} intervals overlap with another of their id"
    )
    hint = None if is_passed else "This is a defect of Tidemark: report it with what the intervals are made of"
    figures = {"intervals": month.digest.rows, "overlaps": month.overlaps}
    return Evaluation(Check.INTERVALS_ARE_WHOLE, is_passed, reason, hint, figures)


def build_delivered(plan: TablePlan) -> Build:
    """The build of the months in the plan, all from one delivery; no rows where it is excluded without another one.

    Raises LakehouseError if there is no such delivery.
    """
    runtime, table, todo = plan.runtime, plan.table, plan.to_build
    if all(decision.delivered is None and not decision.present.upstream for decision in todo.values()):
        nothing = runtime.lakehouse.read(table, plan.base_id).limit(0)
        last = max(key.event_date for key in todo)
        return Build(nothing, _auditing(plan, "", last, {"problem": None, "trimmed": 0}))
    delivery, *others = {decision.delivered for decision in todo.values()}
    if delivery is None or others:
        raise LakehouseError(table.key, "is to be built from nothing that landing holds", "This is a defect: report it")
    dimension = table.key.removeprefix("dimensions/").removesuffix("_validity")
    named = parse_name(folder_of_intervals(dimension), delivery.key)
    assert named is not None, "it was listed by its name"
    histories = read_objects(HISTORY, runtime.spark, {named[0]: delivery}, runtime.landing, runtime.settings)
    parsed, (summary,) = parsed_objects(histories)
    rows = intervals_by_month(parsed.where(F.col("id").isNotNull()), runtime.settings.calendar_start)
    wanted = rows.where(F.col(table.day_column).isin([key.event_date for key in todo]))
    audit = _auditing(plan, delivery.key, named[0], summary.asDict())
    return Build(wanted.select(*columns_of_all_projects(table)), audit, parsed.unpersist)


def _auditing(
    plan: TablePlan, name: str, last: date, summary: Mapping[str, Any]
) -> Callable[[int], dict[Slice, Audit]]:
    runtime, table, months = plan.runtime, plan.table, sorted(plan.to_build)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, months))
        measured, by_day = measured_months(staged, table), digests_by_day(staged, last)
        return {
            key: _audit_delivered(plan, name, summary, key, measured.get(key, MeasuredMonth()), by_day)
            for key in months
        }

    return audit


def _audit_delivered(
    plan: TablePlan,
    name: str,
    summary: Mapping[str, Any],
    key: Slice,
    measured: MeasuredMonth,
    by_day: Mapping[date, Digest],
) -> Audit:
    told = {day.day: digest for day, digest in plan.to_build[key].present.upstream.items()}
    differing = [day for day, digest in sorted(told.items()) if by_day.get(day, EMPTY) != digest]
    days = sum(digest.rows for digest in told.values())
    if measured.days != days and not differing:
        differing = [key.event_date]
    figures = {"rows": measured.digest.rows, "item_days": measured.days, "mismatch_count": len(differing)}
    if summary["problem"] is not None:
        whole = judge_unread(name, str(summary["problem"]), str(summary["detail"]))
    else:
        whole = with_trimmed(evaluate_overlaps(measured), name, summary["trimmed"], "intervals")
    reason = (
        f"{measured.days} days lie in intervals, {days} in the delivery; {differing[0]} differs" if differing else None
    )
    hint = (
        f"{name} may have changed while it was read: load again; else it is a defect: report it" if differing else None
    )
    agrees = Evaluation(Check.RECONCILES_WITH_SNAPSHOTS, not differing, reason, hint, figures)
    return Audit(measured.digest, {"rows": measured.digest.rows}, figures, (agrees, whole))


class ValidityBuilder(NamedRowsBuilder[Table]):
    """Builds intervals from published snapshots; the id and the first day identify an interval."""

    naming_columns = ("id", "active_start_date")

    def build(self, plan: TablePlan) -> Build:
        """Build from the snapshots of the months, as of the pinned snapshot, or from a delivered history."""
        if self.table.reads_history(plan.runtime.settings):
            return build_delivered(plan)
        runtime, table, months = plan.runtime, plan.table, sorted(plan.to_build)
        snapshots = snapshots_of(runtime, table, plan.pins, months)

        def audit(snapshot_id: int) -> dict[Slice, Audit]:
            staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, months))
            measured = measured_months(staged, table)
            expected = _items_by_month(snapshots)
            return {key: _audit(measured.get(key, MeasuredMonth()), expected.get(key, 0)) for key in months}

        return Build(self._rows(snapshots), audit)

    @contextmanager
    def proposed(
        self,
        runtime: Runtime,
        key: Slice,
        heads: Mapping[str, int],
        *,
        on_published: bool,  # noqa: ARG002 - always so
    ) -> Iterator[Proposal]:
        """Build from published snapshots; no row comes from another month.

        Raises UsageError for delivered intervals, which are not built from tables.
        """
        self._require_inputs(runtime.settings)
        with self.alone(self._rows(snapshots_of(runtime, self.table, heads, [key]))) as proposal:
            yield proposal

    def rows_from(
        self,
        settings: Settings,
        key: Slice,  # noqa: ARG002 - its inputs are those of its month
        inputs: Callable[[str], DataFrame],
    ) -> DataFrame:
        """The rows of a month from its snapshots; raises UsageError for delivered intervals."""
        self._require_inputs(settings)
        (name,) = self.table.upstream
        return self._rows(inputs(name))

    def contents(self, rows: DataFrame) -> DataFrame:
        """Keys from id and first day; hashes over all content columns."""
        named = rows.withColumn("event_date", F.col(self.table.day_column))
        return super().contents(named)

    def _rows(self, snapshots: DataFrame) -> DataFrame:
        also = {"project_id": F.lit(ALL_PROJECTS), "attributes": F.lit(None).cast("string")}
        return intervals_of(snapshots).withColumns(also).select(*[column.name for column in self.table.columns])

    def _require_inputs(self, settings: Settings) -> None:
        if self.table.reads_history(settings):
            reason = "is read from landing, not built from tables (delivered_intervals)"
            raise UsageError(self.table.key, reason, "Compare it with landing: tidemark verify --from DAY --to DAY")


def snapshots_of(runtime: Runtime, table: Table, pins: Mapping[str, int], months: Collection[Slice]) -> DataFrame:
    """The published snapshots from which these months of intervals are built."""
    (name,) = table.upstream
    settings: Settings = runtime.settings
    days = {one for key in months for one in table.kind.input_slices(name, key, settings)}
    upstream = table_by_key(name)
    return runtime.lakehouse.read(upstream, pins[name]).where(slices_condition(upstream, days))


def _items_by_month(snapshots: DataFrame) -> dict[Slice, int]:
    month = F.trunc("snapshot_date", "month").alias("month")
    return {
        Slice(row["month"], row["project_id"]): int(row["count"])
        for row in snapshots.groupBy(month, "project_id").count().collect()
    }


def _audit(measured: MeasuredMonth, items: int) -> Audit:
    rows, days = measured.digest.rows, measured.days
    figures = {"rows": rows, "item_days": days, "mismatch_count": abs(days - items)}
    is_same = days == items
    reason = None if is_same else f"{days} days lie in intervals, {items} items in snapshots"
    hint = None if is_same else "This is a defect of Tidemark: report it with the month's snapshots"
    evaluation = Evaluation(Check.RECONCILES_WITH_SNAPSHOTS, is_same, reason, hint, figures)
    return Audit(measured.digest, {"rows": rows}, figures, (evaluation, evaluate_overlaps(measured)))
