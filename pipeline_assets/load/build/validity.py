"""Builds the intervals of a dimension month by month, from its snapshots or from a delivered history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import date
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Window

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.formats.snapshot_lines import folder_of_intervals, parse_name
from pipeline_assets.load.build.builder import Audit, Build, Builder, TablePlan
from pipeline_assets.load.build.snapshot import columns_of_all_projects, judge_unread, parsed_objects, with_trimmed
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.snapshot_rows import (
    HISTORY,
    digests_by_day,
    intervals_by_month,
    intervals_of,
    read_objects,
)
from resources.iceberg.metadata import slices_condition


class ValidityBuilder(Builder[Table]):
    """Builds intervals from published snapshots; the id and the first day identify an interval."""

    naming_columns = ("id", "active_start_date")

    def build(self, plan: TablePlan) -> Build:
        """Build from the pinned snapshots of the months, or from a delivered history."""
        if self.table.reads_history(plan.runtime.settings):
            return _build_delivered(plan)
        snapshots = _snapshots_of(plan.runtime, self.table, plan.pins, plan.to_build)

        def audit(snapshot_id: int) -> dict[Slice, Audit]:
            return {key: _audit(plan, key, month) for key, month in _measured(plan, snapshot_id).items()}

        return Build(plan.write(self._rows(snapshots)), audit)

    def rows_now(
        self,
        runtime: Runtime,
        key: Slice,
        heads: Mapping[str, int],
        *,
        on_published: bool,  # noqa: ARG002 - always so
    ) -> DataFrame:
        """From published snapshots; raises UsageError for delivered intervals."""
        self._require_inputs(runtime.settings)
        return self._rows(_snapshots_of(runtime, self.table, heads, [key]))

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
        return super().contents(rows.withColumn("event_date", F.col(self.table.day_column)))

    def _rows(self, snapshots: DataFrame) -> DataFrame:
        also = {"project_id": F.lit(ALL_PROJECTS), "attributes": F.lit(None).cast("string")}
        return intervals_of(snapshots).withColumns(also).select(*[column.name for column in self.table.columns])

    def _require_inputs(self, settings: Settings) -> None:
        if self.table.reads_history(settings):
            reason = "is read from landing, not built from tables (delivered_intervals)"
            raise UsageError(self.table.key, reason, "Compare it with landing: tidemark verify --from DAY --to DAY")


def _snapshots_of(runtime: Runtime, table: Table, pins: Mapping[str, int], months: Collection[Slice]) -> DataFrame:
    (name,) = table.upstream
    days = {one for key in months for one in table.kind.input_slices(name, key, runtime.settings)}
    upstream = table_by_key(name)
    return runtime.lakehouse.read(upstream, pins[name]).where(slices_condition(upstream, days))


def _build_delivered(plan: TablePlan) -> Build:
    runtime, table, todo = plan.runtime, plan.table, plan.to_build
    if all(decision.delivered is None and not decision.present.upstream for decision in todo.values()):
        nothing, last = runtime.lakehouse.read(table, plan.base_id).limit(0), max(key.event_date for key in todo)
        return Build(plan.write(nothing), _auditing(plan, "", last, {"problem": None, "trimmed": 0}))
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
    return Build(plan.write(wanted.select(*columns_of_all_projects(table))), audit, parsed.unpersist)


def _auditing(
    plan: TablePlan, name: str, last: date, summary: Mapping[str, Any]
) -> Callable[[int], dict[Slice, Audit]]:
    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        staged = plan.runtime.lakehouse.read(plan.table, snapshot_id)
        by_day = digests_by_day(staged.where(slices_condition(plan.table, plan.to_build)), last)
        months = _measured(plan, snapshot_id)
        return {key: _audit(plan, key, month, (name, summary, by_day)) for key, month in months.items()}

    return audit


def _measured(plan: TablePlan, snapshot_id: int) -> dict[Slice, dict[str, Any]]:
    """Month -> `digest`, `days` (sum over intervals), `overlaps` (begins before the id's former one ends, or ends first)."""
    start, end = F.col("active_start_date"), F.col("active_end_date")
    by_id = Window.partitionBy(*plan.table.partition_columns, "id").orderBy("active_start_date", "active_end_date")
    overlaps = F.coalesce(F.lag("active_end_date").over(by_id) >= start, F.lit(False)) | (end < start)
    figures = F.sum(F.datediff(end, start) + 1).alias("days"), F.count_if("_overlaps").alias("overlaps")
    found = plan.measured(snapshot_id, *figures, marked=lambda rows: rows.withColumn("_overlaps", overlaps))
    return {key: found.get(key, {"digest": EMPTY, "days": 0, "overlaps": 0}) for key in sorted(plan.to_build)}


def evaluate_overlaps(intervals: int, overlaps: int) -> Evaluation:
    """The check `intervals_are_whole` of a staged month."""
    is_passed, figures = not overlaps, {"intervals": intervals, "overlaps": overlaps}
    reason = None if is_passed else f"{overlaps} of {intervals} intervals overlap with another of their id"
    hint = None if is_passed else "This is a defect of Tidemark: report it with what the intervals are made of"
    return Evaluation(Check.INTERVALS_ARE_WHOLE, is_passed, reason, hint, figures)


def _audit(
    plan: TablePlan,
    key: Slice,
    month: Mapping[str, Any],
    delivery: tuple[str, Mapping[str, Any], Mapping[date, Digest]] | None = None,
) -> Audit:
    """The audit of a month: its intervals must cover as many days as its inputs have items."""
    digest, days, told = month["digest"], int(month["days"]), plan.to_build[key].present.upstream
    items = sum(one.rows for one in told.values())
    figures = {"rows": digest.rows, "item_days": days, "mismatch_count": abs(days - items)}
    whole = evaluate_overlaps(digest.rows, int(month["overlaps"]))
    reason = None if days == items else f"{days} days lie in intervals, {items} items in snapshots"
    hint = None if days == items else "This is a defect of Tidemark: report it with the month's snapshots"
    if delivery is not None:
        name, summary, by_day = delivery
        differing = [name_.day for name_, one in sorted(told.items()) if by_day.get(name_.day, EMPTY) != one]
        if days != items and not differing:
            differing = [key.event_date]
        figures["mismatch_count"] = len(differing)
        reason = hint = None
        if differing:
            reason = f"{days} days lie in intervals, {items} in the delivery; {differing[0]} differs"
            hint = f"{name} may have changed while it was read: load again; else it is a defect: report it"
        whole = with_trimmed(whole, name, summary["trimmed"], "intervals")
        if summary["problem"] is not None:
            whole = judge_unread(name, str(summary["problem"]), str(summary["detail"]))
    agrees = Evaluation(Check.RECONCILES_WITH_SNAPSHOTS, reason is None, reason, hint, figures)
    return Audit(digest, {"rows": digest.rows}, figures, (agrees, whole))
