"""Builds an aggregate from refined.events, and audits it against totals computed in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.checks import Totals, number
from pipeline_assets.domain.golden import rest_of
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.load.build.audit import Audit, Build
from pipeline_assets.load.build.builder import Proposal
from pipeline_assets.load.build.named_rows import NamedRowsBuilder
from pipeline_assets.load.build.refined import rows_from_raw
from pipeline_assets.load.build.shared_events import input_of
from pipeline_assets.load.build.step import TablePlan
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes
from pipeline_assets.transforms.narrow_events import narrow_events
from resources.iceberg.metadata import slices_condition

_CONTROL = "_control_"


class AggregateBuilder(NamedRowsBuilder[AggregateTable]):
    """Builds an aggregate from refined.events; its key columns identify its rows, which never move to another day."""

    def build(self, plan: TablePlan) -> Build:
        """Build from refined.events as of the pinned snapshot."""
        return _build_aggregate(plan, self.table)

    @contextmanager
    def proposed(
        self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool
    ) -> Iterator[Proposal]:
        """Build from refined.events as published, or as raw would give it now; no row comes from another day."""
        with (
            refined_slice(runtime, key, heads, on_published=on_published) as refined,
            self.alone(self._rows(runtime.settings, refined)) as proposal,
        ):
            yield proposal

    def rows_from(self, settings: Settings, key: Slice, inputs: Callable[[str], DataFrame]) -> DataFrame:  # noqa: ARG002 - inputs are of its days
        """The rows of a slice, from refined.events alone."""
        return self._rows(settings, inputs(REFINED_EVENTS.key))

    @property
    def naming_columns(self) -> tuple[str, ...]:
        """The table's key columns."""
        return self.table.key_columns

    def _rows(self, settings: Settings, refined: DataFrame) -> DataFrame:
        events = narrow_events(refined, settings) if self.table.reads_narrow_events else refined
        return self.table.build(events, settings).select(*[column.name for column in self.table.columns])


@contextmanager
def refined_slice(runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool) -> Iterator[DataFrame]:
    """The slice of refined.events, as published, or as a build from raw would give it now."""
    is_slice = slices_condition(REFINED_EVENTS, [key])
    if on_published:
        yield runtime.lakehouse.read(REFINED_EVENTS, heads[REFINED_EVENTS.key]).where(is_slice)
        return
    yield rows_from_raw(runtime, heads, [key])


def _build_aggregate(plan: TablePlan, table: AggregateTable) -> Build:
    runtime, slices = plan.runtime, sorted(plan.to_build)
    events = input_of(runtime, table, plan.pins[REFINED_EVENTS.key], slices)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, slices))
        by = ["event_date", "project_id"]
        measured = (
            with_row_hashes(staged, table.content_columns)
            .groupBy(*by)
            .agg(*digest_aggregates(), *[measure.total().alias(name) for name, measure in table.measures.items()])
        )
        totals: dict[Slice, Mapping[str, object]] = {}
        control: dict[Slice, Mapping[str, object]] = {}
        for row in _beside(measured, table.controls(events, runtime.settings)).collect():
            figures = row.asDict()
            of_control = {
                name.removeprefix(_CONTROL): value for name, value in figures.items() if name.startswith(_CONTROL)
            }
            side, values = (control, of_control) if figures["_is_control"] else (totals, figures)
            side[Slice(row["event_date"], row["project_id"])] = values
        return {
            key: _aggregate_audit(table, totals.get(key, {}), control.get(key, {}), runtime.settings) for key in slices
        }

    return Build(table.build(events, runtime.settings), audit)


def _beside(measured: DataFrame, control: DataFrame) -> DataFrame:
    """The union of both in one query; columns of `control` get a prefix, so that no column changes its type in the union."""
    by = ("event_date", "project_id")
    renamed = control.select(
        *by, *[F.col(name).alias(f"{_CONTROL}{name}") for name in control.columns if name not in by]
    )
    sides = (measured.withColumn("_is_control", F.lit(False)), renamed.withColumn("_is_control", F.lit(True)))
    return sides[0].unionByName(sides[1], allowMissingColumns=True)


def _aggregate_audit(
    table: AggregateTable, row: Mapping[str, Any], control: Mapping[str, Any], settings: Settings
) -> Audit:
    digest = digest_of(row) if row else EMPTY
    totals = {name: row.get(name) or 0 for name in table.measures}
    controls = {name: value or 0 for name, value in control.items() if name not in ("event_date", "project_id")}
    measured = Totals(totals, controls, settings)
    evaluations = tuple(rule.evaluate(measured) for rule in table.checks if rule.evaluate is not None)
    measures = {
        name: int(totals[name]) if measure.is_count else float(totals[name]) for name, measure in table.measures.items()
    }
    extra = {name: number(value) for name, value in controls.items() if name not in measures}
    for name, measure in table.measures.items():
        # Golden totals of outside systems are compared exactly, so the remainder beyond a float is kept too.
        extra |= {} if measure.is_count or isinstance(totals[name], float) else rest_of(name, totals[name])
    return Audit(digest, measures, {"rows": digest.rows, **measures, **extra}, evaluations)
