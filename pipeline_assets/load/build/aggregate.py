"""Builds aggregates from refined.events, and audits them against totals computed in another way.

Built-in tables are folded by tasks; a table of a user is a function of DataFrames, which Spark runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.checks import Check, Evaluation, Totals, number
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.golden import rest_of
from pipeline_assets.domain.records import InputState
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.build.builder import Audit, Build, NamedRowsBuilder, Proposal, TablePlan
from pipeline_assets.load.build.folds import form_of, slice_fold
from pipeline_assets.load.build.refined import rows_from_raw
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import AGGREGATES
from pipeline_assets.tables.table import AggregateTable, AsOfTable
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, slice_digests, with_row_hashes
from pipeline_assets.transforms.fold_tasks import fold_events
from pipeline_assets.transforms.snapshot_rows import days_of_items, items_by_interval, items_by_snapshot
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


class AsOfBuilder(NamedRowsBuilder[AsOfTable]):
    """Builds from refined.events and a dimension; key columns identify the rows, which never move to another day."""

    def build(self, plan: TablePlan) -> Build:
        """Build from refined.events and the dimension as of the pinned snapshots."""
        return _build(plan, self.table)

    @contextmanager
    def proposed(
        self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool
    ) -> Iterator[Proposal]:
        """Build from refined.events, as published or as raw would give it now, and the items last chosen for the day."""
        record = runtime.ledger.slices(self.table.key, [key.project_id], [key.event_date]).get(key)
        state = None if record is None else record.rejection.inputs if record.rejection else record.input_state
        as_of = {key.event_date: _items_day(self.table, state) or key.event_date}
        items = _Items.read(runtime, self.table, heads, as_of)
        with (
            refined_slice(runtime, key, heads, on_published=on_published) as refined,
            self.alone(self._rows(runtime.settings, refined, items.published)) as proposal,
        ):
            yield proposal

    def rows_from(self, settings: Settings, key: Slice, inputs: Callable[[str], DataFrame]) -> DataFrame:
        """The rows of a slice from refined.events and the day's snapshot. Raises UsageError for delivered intervals."""
        if self.table.dimension.intervals_are_delivered(settings):
            reason = "is joined with delivered intervals, of which no table keeps each day"
            raise UsageError(
                self.table.key, reason, "Compare it with what landing says: tidemark verify --from DAY --to DAY"
            )
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


@dataclass(frozen=True)
class _Items:
    """event_date, id, status: the items of some days, from two sources."""

    published: DataFrame
    """Items that the rows are built from: snapshots, or delivered intervals."""
    other: DataFrame
    """Items for the proof: intervals computed from snapshots, or the snapshots beside delivered intervals."""

    @classmethod
    def read(cls, runtime: Runtime, table: AsOfTable, pins: Mapping[str, int], as_of: Mapping[date, date]) -> _Items:
        """Read both as of `pins`; `as_of`: day of events -> the day whose items are used for it."""
        snapshot, validity = table.dimension.tables
        days = days_of_items(runtime.spark, as_of)
        chosen = [Slice(day, ALL_PROJECTS) for day in set(as_of.values())]
        months = [Slice(validity.kind.slice_day(key.event_date), ALL_PROJECTS) for key in chosen]
        snapshots = runtime.lakehouse.read(snapshot, pins[snapshot.key]).where(slices_condition(snapshot, chosen))
        intervals = runtime.lakehouse.read(validity, pins[validity.key]).where(slices_condition(validity, months))
        read = items_by_snapshot(snapshots, days), items_by_interval(intervals, days)
        return cls(*reversed(read)) if table.dimension.intervals_are_delivered(runtime.settings) else cls(*read)


def _items_day(table: AsOfTable, state: InputState | None) -> date | None:
    """The day of the items in an input state; None if it has no items."""
    own = {one.key for one in table.dimension.tables}
    days = (name.day for name in (state.upstream if state is not None else ()) if name.table in own)
    return next(days, None)


def _build(plan: TablePlan, table: AsOfTable) -> Build:
    runtime, todo = plan.runtime, plan.to_build
    slices, settings = sorted(todo), runtime.settings
    ages = {key: _items_day(table, todo[key].present) for key in slices}
    as_of = {key.event_date: day for key, day in ages.items() if day is not None}
    items = _Items.read(runtime, table, plan.pins, as_of)
    refined = runtime.lakehouse.read(REFINED_EVENTS, plan.pins[REFINED_EVENTS.key])
    narrow = table.narrow(refined.where(slices_condition(REFINED_EVENTS, slices)), settings).persist()

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, slices))
        measures = [measure.total().alias(name) for name, measure in table.measures.items()]
        measured = with_row_hashes(staged, table.content_columns).groupBy(*table.partition_columns)
        found = _by_slice(measured.agg(*digest_aggregates(), *measures))
        controls = _by_slice(table.controls(narrow, items.published, settings))
        joined = table.build(narrow, items.other, settings)
        other = slice_digests(joined, table.content_columns, table.day_column)
        return {
            key: _audit(
                table,
                key,
                ages[key],
                found.get(key, {}),
                controls.get(key, {}),
                other.get(key, EMPTY),
                _delivered(table, todo[key].present, settings),
            )
            for key in slices
        }

    return Build(table.build(narrow, items.published, settings), audit, narrow.unpersist)


def _delivered(table: AsOfTable, present: InputState, settings: Settings) -> bool | None:
    """For delivered intervals, whether the inputs include a snapshot of the day; None for intervals from snapshots."""
    if not table.dimension.intervals_are_delivered(settings):
        return None
    return any(name.table == table.dimension.snapshot.key for name in present.upstream)


def _by_slice(rows: DataFrame) -> dict[Slice, Mapping[str, Any]]:
    return {Slice(row["event_date"], row["project_id"]): row.asDict() for row in rows.collect()}


def _audit(
    table: AsOfTable,
    key: Slice,
    items_day: date | None,
    row: Mapping[str, Any],
    controls: Mapping[str, Any],
    other: Digest,
    has_snapshot: bool | None,
) -> Audit:
    digest = digest_of(row) if row else EMPTY
    measures = {name: int(row.get(name) or 0) for name in table.measures}
    figures = {name: number(value) for name, value in controls.items() if name not in table.partition_columns}
    age = {} if items_day is None else {"snapshot_age_days": (key.event_date - items_day).days}
    evaluations = (_items_are_known(table, key, items_day, has_snapshot), _methods_agree(digest, other, has_snapshot))
    return Audit(digest, measures, {"rows": digest.rows, **measures, **figures, **age}, evaluations)


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
    """The check that both joins agree; `has_snapshot`: result of `_delivered`."""
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
