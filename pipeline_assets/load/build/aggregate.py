"""Builds aggregates from refined.events, and audits them against totals computed in another way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import date
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.checks import Check, Evaluation, Totals, number
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.golden import rest_of
from pipeline_assets.domain.records import InputState
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.build.builder import Audit, Build, Builder, TablePlan
from pipeline_assets.load.build.folds import form_of, slice_fold
from pipeline_assets.load.build.refined import rows_from_raw
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import AGGREGATES
from pipeline_assets.tables.table import AggregateTable, AsOfTable
from pipeline_assets.transforms.digests import slice_digests
from pipeline_assets.transforms.fold_tasks import fold_events
from pipeline_assets.transforms.snapshot_rows import days_of_items, items_by_interval, items_by_snapshot
from resources.iceberg.metadata import slices_condition
from resources.iceberg.staging import FileChange


class AggregateBuilder(Builder[AggregateTable]):
    """Builds an aggregate from refined.events; its key columns identify its rows, which never move to another day."""

    def build(self, plan: TablePlan) -> Build:
        """Build from refined.events as of the pinned snapshot."""
        return _build_by_spark(plan, self.table) if self.table.fold is None else _build_by_fold(plan, self.table)

    def rows_now(self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool) -> DataFrame:
        """From refined.events as published, or as raw would give it now."""
        return self._rows(runtime.settings, _refined_slice(runtime, key, heads, on_published=on_published))

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


def _refined_slice(runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool) -> DataFrame:
    if not on_published:
        return rows_from_raw(runtime, heads, [key])
    published = runtime.lakehouse.read(REFINED_EVENTS, heads[REFINED_EVENTS.key])
    return published.where(slices_condition(REFINED_EVENTS, [key]))


def _build_by_fold(plan: TablePlan, table: AggregateTable) -> Build:
    runtime, request, slices = plan.runtime, plan.request, sorted(plan.to_build)
    later = AGGREGATES[[one.key for one in AGGREGATES].index(table.key) + 1 :]
    due = [one for one in later if one.fold is not None and one.key in request.tables]
    if plan.built_beside is None and all(one.cause.kind is CauseKind.CODE for one in plan.to_build.values()):
        due = [one for one in due if _is_outdated(runtime, one, slices)]
    written = runtime.folds.take(runtime, plan.pins[REFINED_EVENTS.key], slices, table, due)

    def write(target: str) -> None:
        change = FileChange([file for one in written.values() for file in one.files], slices)
        runtime.lakehouse.files.replace(table, target, change)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        held = runtime.lakehouse.slice_files(table, snapshot_id, set(slices))
        audits = {}
        for key, one in written.items():
            if one.paths != set(held[key].paths if key in held else ()):
                reason = f"{key} holds other files than were written"
                raise LakehouseError(table.key, reason, "This is a defect of Tidemark: report it")
            audits[key] = _audit(table, {**one.totals, "digest": one.digest}, one.controls, runtime.settings)
        return audits

    return Build(write, audit)


def _is_outdated(runtime: Runtime, table: AggregateTable, slices: Collection[Slice]) -> bool:
    projects, days = sorted({key.project_id for key in slices}), {key.event_date for key in slices}
    records, code = runtime.ledger.slices(table.key, projects, days), table.code_version(runtime.settings)
    return any(record.code_version != code for key, record in records.items() if key in slices)


def _build_by_spark(plan: TablePlan, table: AggregateTable) -> Build:
    assert table.build is not None
    runtime, slices = plan.runtime, sorted(plan.to_build)
    pinned = runtime.lakehouse.read(REFINED_EVENTS, plan.pins[REFINED_EVENTS.key])
    events = pinned.where(slices_condition(REFINED_EVENTS, slices))

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        assert table.controls is not None
        found = plan.measured(snapshot_id, *_totals(table))
        controls = _by_slice(table.controls(events, runtime.settings))
        nothing = {"digest": EMPTY}
        return {key: _audit(table, found.get(key, nothing), controls.get(key, {}), runtime.settings) for key in slices}

    return Build(plan.write(table.build(events, runtime.settings)), audit)


def _totals(table: AggregateTable | AsOfTable) -> list[Column]:
    return [measure.total().alias(name) for name, measure in table.measures.items()]


def _by_slice(rows: DataFrame) -> dict[Slice, Mapping[str, Any]]:
    return {Slice(row["event_date"], row["project_id"]): row.asDict() for row in rows.collect()}


def _audit(table: AggregateTable, found: Mapping[str, Any], control: Mapping[str, Any], settings: Settings) -> Audit:
    """`found`: `digest` and totals of measures over the rows; `control`: totals computed in another way."""
    digest: Digest = found["digest"]
    totals = {name: found.get(name) or 0 for name in table.measures}
    controls = {name: value or 0 for name, value in control.items() if name not in ("event_date", "project_id")}
    measured = Totals(totals, controls, settings)
    evaluations = tuple(rule.evaluate(measured) for rule in table.checks if rule.evaluate is not None)
    measures = {
        name: int(totals[name]) if measure.is_count else float(totals[name]) for name, measure in table.measures.items()
    }
    extra = {name: number(value) for name, value in controls.items() if name not in measures}
    for name, measure in table.measures.items():
        # Golden totals are compared exactly, so the remainder beyond a float is kept.
        extra |= {} if measure.is_count or isinstance(totals[name], float) else rest_of(name, totals[name])
    return Audit(digest, measures, {"rows": digest.rows, **measures, **extra}, evaluations)


class AsOfBuilder(Builder[AsOfTable]):
    """Builds from refined.events and a dimension; key columns identify the rows, which never move to another day."""

    def build(self, plan: TablePlan) -> Build:
        """Build from refined.events and the dimension as of the pinned snapshots."""
        runtime, table, todo, settings = plan.runtime, self.table, plan.to_build, plan.runtime.settings
        ages = {key: _items_day(table, one.present) for key, one in todo.items()}
        as_of = {key.event_date: day for key, day in ages.items() if day is not None}
        items, other = _items(runtime, table, plan.pins, as_of)
        refined = runtime.lakehouse.read(REFINED_EVENTS, plan.pins[REFINED_EVENTS.key])
        narrow = table.narrow(refined.where(slices_condition(REFINED_EVENTS, todo)), settings).persist()

        def audit(snapshot_id: int) -> dict[Slice, Audit]:
            found = plan.measured(snapshot_id, *_totals(table))
            controls = _by_slice(table.controls(narrow, items, settings))
            joined = slice_digests(table.build(narrow, other, settings), table.content_columns, table.day_column)
            audits = {}
            for key, decision in todo.items():
                row, day = found.get(key, {"digest": EMPTY}), ages[key]
                digest: Digest = row["digest"]
                has_snapshot = _has_snapshot(table, decision.present, settings)
                measures = {name: int(row.get(name) or 0) for name in table.measures}
                control = {
                    n: number(one) for n, one in controls.get(key, {}).items() if n not in table.partition_columns
                }
                age = {} if day is None else {"snapshot_age_days": (key.event_date - day).days}
                evaluations = (
                    _items_are_known(table, key, day, has_snapshot),
                    _methods_agree(digest, joined.get(key, EMPTY), has_snapshot),
                )
                figures = {"rows": digest.rows, **measures, **control, **age}
                audits[key] = Audit(digest, measures, figures, evaluations)
            return audits

        return Build(plan.write(table.build(narrow, items, settings)), audit, narrow.unpersist)

    def rows_now(self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool) -> DataFrame:
        """From refined.events, as published or as raw would give it now, and the items last chosen for the day."""
        record = runtime.ledger.slices(self.table.key, [key.project_id], [key.event_date]).get(key)
        state = None if record is None else record.rejection.inputs if record.rejection else record.input_state
        as_of = {key.event_date: _items_day(self.table, state) or key.event_date}
        items, _ = _items(runtime, self.table, heads, as_of)
        return self._rows(runtime.settings, _refined_slice(runtime, key, heads, on_published=on_published), items)

    def rows_from(self, settings: Settings, key: Slice, inputs: Callable[[str], DataFrame]) -> DataFrame:
        """The rows of a slice from refined.events and the day's snapshot. Raises UsageError for delivered intervals."""
        if self.table.dimension.intervals_are_delivered(settings):
            reason = "is joined with delivered intervals, of which no table keeps each day"
            hint = "Compare it with what landing says: tidemark verify --from DAY --to DAY"
            raise UsageError(self.table.key, reason, hint)
        snapshot = inputs(self.table.dimension.snapshot.key)
        items = snapshot.select(F.lit(key.event_date).alias("event_date"), "id", "status")
        return self._rows(settings, inputs(REFINED_EVENTS.key), items)

    @property
    def naming_columns(self) -> tuple[str, ...]:
        """The table's key columns."""
        return self.table.key_columns

    def _rows(self, settings: Settings, refined: DataFrame, items: DataFrame) -> DataFrame:
        built = self.table.build(self.table.narrow(refined, settings), items, settings)
        return built.select(*[column.name for column in self.table.columns])


def _items(
    runtime: Runtime, table: AsOfTable, pins: Mapping[str, int], as_of: Mapping[date, date]
) -> tuple[DataFrame, DataFrame]:
    """The items (event_date, id, status) of the delivered source and of the other; `as_of`: day of events -> day of its items."""
    snapshot, validity = table.dimension.tables
    days = days_of_items(runtime.spark, as_of)
    chosen = [Slice(day, ALL_PROJECTS) for day in set(as_of.values())]
    months = [Slice(validity.kind.slice_day(key.event_date), ALL_PROJECTS) for key in chosen]
    snapshots = runtime.lakehouse.read(snapshot, pins[snapshot.key]).where(slices_condition(snapshot, chosen))
    intervals = runtime.lakehouse.read(validity, pins[validity.key]).where(slices_condition(validity, months))
    by_snapshot, by_interval = items_by_snapshot(snapshots, days), items_by_interval(intervals, days)
    is_delivered = table.dimension.intervals_are_delivered(runtime.settings)
    return (by_interval, by_snapshot) if is_delivered else (by_snapshot, by_interval)


def _items_day(table: AsOfTable, state: InputState | None) -> date | None:
    own = {one.key for one in table.dimension.tables}
    days = (name.day for name in (state.upstream if state is not None else ()) if name.table in own)
    return next(days, None)


def _has_snapshot(table: AsOfTable, present: InputState, settings: Settings) -> bool | None:
    if not table.dimension.intervals_are_delivered(settings):
        return None
    return any(name.table == table.dimension.snapshot.key for name in present.upstream)


def _items_are_known(table: AsOfTable, key: Slice, items_day: date | None, has_snapshot: bool | None) -> Evaluation:
    if items_day is None:
        hint = "Have the items of the day delivered, and load the day again"
        return Evaluation(Check.ITEMS_ARE_KNOWN, False, "no items stand for the day", hint)
    if items_day == key.event_date:
        return Evaluation(Check.ITEMS_ARE_KNOWN, True)
    snapshot, validity = table.dimension.tables
    lacks = f"{snapshot.key} has no snapshot of" if has_snapshot is None else f"{validity.key} does not tell of"
    reason = f"items as of {items_day}: {lacks} {key.event_date} (missing_snapshot = previous)"
    return Evaluation(Check.ITEMS_ARE_KNOWN, True, reason)


def _methods_agree(published: Digest, other: Digest, has_snapshot: bool | None) -> Evaluation:
    if has_snapshot is False:
        return Evaluation(Check.METHODS_AGREE, True, "no snapshot of the day is published to compare with")
    by_snapshot, by_interval = (published, other) if has_snapshot is None else (other, published)
    is_same = by_snapshot == by_interval
    figures = {"rows_by_snapshot": by_snapshot.rows, "rows_by_interval": by_interval.rows}
    if is_same:
        return Evaluation(Check.METHODS_AGREE, True, figures=figures)
    reason = f"{by_snapshot.rows} rows by snapshots ({by_snapshot}), {by_interval.rows} by intervals ({by_interval})"
    hint = "This is a defect of Tidemark: report it with the day's snapshot and intervals"
    if has_snapshot:
        hint = "The snapshot and the delivered intervals tell of other items on the day: have the wrong one delivered again"
    return Evaluation(Check.METHODS_AGREE, False, reason, hint, figures)
