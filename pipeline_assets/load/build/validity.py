"""Builds the intervals of a dimension from its snapshots, month by month."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice
from pipeline_assets.load.build.audit import Audit, Build
from pipeline_assets.load.build.builder import Proposal
from pipeline_assets.load.build.delivered_intervals import build_delivered
from pipeline_assets.load.build.named_rows import NamedRowsBuilder
from pipeline_assets.load.build.overlaps import MeasuredMonth, evaluate_overlaps, measured_months
from pipeline_assets.load.build.step import TablePlan
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.intervals import intervals_of
from resources.iceberg.metadata import slices_condition

_KEY = ("id", "active_start_date")


class ValidityBuilder(NamedRowsBuilder[Table]):
    """Builds intervals from published snapshots; the id and the first day identify an interval."""

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

    @property
    def naming_columns(self) -> tuple[str, ...]:
        """The columns `id` and `active_start_date`."""
        return _KEY

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
