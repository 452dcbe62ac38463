"""What a rebuild would change of each slice: rows, measures, and keys on one side, on the other, and different."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.rebuilds import SliceDifference
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, neighbourhood
from pipeline_assets.load.build.audit import Audit
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.load.build.key_changes import key_change
from pipeline_assets.load.build.states import read_states
from pipeline_assets.load.build.step import TablePlan
from pipeline_assets.load.staleness.decide import SlicePlan
from pipeline_assets.transforms.key_changes import key_changes
from resources.iceberg.metadata import slices_condition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY = ("event_date", "project_id", "_key_a", "_key_b")


def differences(plan: TablePlan, staged_id: int, audits: Mapping[Slice, Audit]) -> dict[Slice, SliceDifference]:
    """Slice -> what is published of it beside what was built."""
    todo = plan.to_build
    changed = [key for key, one in todo.items() if audits[key].digest != _published(one)]
    keys = _keys(plan, staged_id, changed)
    return {key: _difference(plan, one, audits[key], keys.get(key)) for key, one in todo.items()}


def _difference(plan: TablePlan, decision: SlicePlan, audit: Audit, keys: KeyChange | None) -> SliceDifference:
    record = decision.record
    figures = record.figures if record is not None and record.digest != EMPTY else {}
    measures = {name: (figures.get(name), audit.measures.get(name)) for name in plan.table.measures if name != "rows"}
    return SliceDifference((_published(decision).rows, audit.digest.rows), measures, keys)


def _published(decision: SlicePlan) -> Digest:
    return decision.record.digest if decision.record is not None else EMPTY


def _keys(plan: TablePlan, staged_id: int, changed: Collection[Slice]) -> dict[Slice, KeyChange]:
    if not changed:
        return {}
    table, builder = plan.table, builder_of(plan.table)
    window = table.kind.exchange_days(plan.runtime.settings)

    def contents(snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
        rows = plan.runtime.lakehouse.read(table, snapshot_id)
        return builder.contents(rows.where(slices_condition(table, slices)))

    # Rows that never change their day come from no other one.
    near = neighbourhood(changed, window) if window else set()
    changes = key_changes(
        contents(plan.base_id, changed),
        contents(staged_id, changed),
        contents(plan.base_id, near).select(*_KEY),
        read_states(
            plan.runtime, table, plan.states(staged_id, near), lambda rows: builder.contents(rows).select(*_KEY)
        ),
        window,
    )
    counted: dict[Slice, dict[tuple[str, bool], int]] = {key: {} for key in changed}
    for row in changes.groupBy("event_date", "project_id", "change", "is_moved").count().collect():
        counted[Slice(row["event_date"], row["project_id"])][row["change"], row["is_moved"]] = row["count"]
    return {key: key_change(plan.to_build[key].cause, counts) for key, counts in counted.items()}
