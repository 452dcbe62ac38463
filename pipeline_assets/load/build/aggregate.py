"""Builds aggregates from refined.events, and audits them against totals computed in another way.

Built-in tables are folded by tasks; a table of a user is a function of DataFrames, which Spark runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.causes import CauseKind
from pipeline_assets.domain.checks import Totals, number
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.golden import rest_of
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.build.builder import NamedRowsBuilder, Proposal
from pipeline_assets.load.build.folds import form_of, slice_fold
from pipeline_assets.load.build.refined import rows_from_raw
from pipeline_assets.load.build.step import Audit, Build, TablePlan
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import AGGREGATES
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes
from pipeline_assets.transforms.narrow_events import fold_events
from resources.iceberg.metadata import slices_condition
from resources.iceberg.staging import FileChange

_CONTROL = "_control_"


class AggregateBuilder(NamedRowsBuilder[AggregateTable]):
    """Builds an aggregate from refined.events; its key columns identify its rows, which never move to another day."""

    def build(self, plan: TablePlan) -> Build:
        """Build from refined.events as of the pinned snapshot."""
        return _build_by_spark(plan, self.table) if self.table.fold is None else _build_by_fold(plan, self.table)

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
        if self.table.build is not None:
            return self.table.build(refined, settings).select(*[column.name for column in self.table.columns])
        form = form_of(self.table)
        folds = fold_events(refined, slice_fold([self.table], settings))
        rows = [
            tuple(row.values()) for key, one in folds.items() for row in form.of(key, one[self.table.key]).to_pylist()
        ]
        schema = ", ".join(f"{name} {kind}" for name, kind in form.types.items())
        return refined.sparkSession.createDataFrame(rows, schema)


@contextmanager
def refined_slice(runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool) -> Iterator[DataFrame]:
    """The slice of refined.events, as published, or as a build from raw would give it now."""
    is_slice = slices_condition(REFINED_EVENTS, [key])
    if on_published:
        yield runtime.lakehouse.read(REFINED_EVENTS, heads[REFINED_EVENTS.key]).where(is_slice)
        return
    yield rows_from_raw(runtime, heads, [key])


def _due(plan: TablePlan, table: AggregateTable) -> list[AggregateTable]:
    """The folded tables that are built next from slices of this plan."""
    runtime, keys = plan.runtime, [one.key for one in AGGREGATES]
    later = [
        one
        for one in AGGREGATES[keys.index(table.key) + 1 :]
        if one.fold is not None and one.key in plan.request.tables
    ]
    built = plan.to_build.values()
    if plan.built_beside is not None or any(one.cause.kind is not CauseKind.CODE for one in built):
        return later
    # What they are built from is the same, so only those are built of which the code changed too.
    return [one for one in later if _is_outdated(runtime, one, plan.to_build.keys())]


def _is_outdated(runtime: Runtime, table: AggregateTable, slices: Collection[Slice]) -> bool:
    projects, days = sorted({key.project_id for key in slices}), {key.event_date for key in slices}
    records, code = runtime.ledger.slices(table.key, projects, days), table.code_version(runtime.settings)
    return any(record.code_version != code for key, record in records.items() if key in slices)


def _build_by_fold(plan: TablePlan, table: AggregateTable) -> Build:
    runtime, slices = plan.runtime, sorted(plan.to_build)
    written = runtime.folds.take(runtime, plan.pins[REFINED_EVENTS.key], slices, table, _due(plan, table))

    def write() -> FileChange:
        return FileChange([file for one in written.values() for file in one.files], slices)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        held = runtime.lakehouse.slice_files(table, snapshot_id, set(slices))
        for key, one in written.items():
            if one.paths != set(held[key].paths if key in held else ()):
                reason = f"{key} holds other files than were written"
                raise LakehouseError(table.key, reason, "This is a defect of Tidemark: report it")
        return {
            key: _aggregate_audit(table, one.digest, one.totals, one.controls, runtime.settings)
            for key, one in written.items()
        }

    return Build(None, audit, write=write)


def _build_by_spark(plan: TablePlan, table: AggregateTable) -> Build:
    assert table.build is not None
    runtime, slices = plan.runtime, sorted(plan.to_build)
    pinned = runtime.lakehouse.read(REFINED_EVENTS, plan.pins[REFINED_EVENTS.key])
    events = pinned.where(slices_condition(REFINED_EVENTS, slices))

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        assert table.controls is not None
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
            key: _aggregate_audit(
                table,
                digest_of(totals[key]) if key in totals else EMPTY,
                totals.get(key, {}),
                control.get(key, {}),
                runtime.settings,
            )
            for key in slices
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
    table: AggregateTable, digest: Digest, found: Mapping[str, Any], control: Mapping[str, Any], settings: Settings
) -> Audit:
    """`found`, `control`: measure -> its total over the rows, and computed in another way; empty without rows."""
    totals = {name: found.get(name) or 0 for name in table.measures}
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
