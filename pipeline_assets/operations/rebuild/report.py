"""What a rebuild would change of each slice: rows, measures, and keys on one side, on the other, and different."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.rebuilds import SliceDifference
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.load.build.key_changes import changed_keys
from pipeline_assets.load.build.step import Audit, TablePlan
from pipeline_assets.load.staleness.decide import SlicePlan


def differences(plan: TablePlan, staged_id: int, audits: Mapping[Slice, Audit]) -> dict[Slice, SliceDifference]:
    """Slice -> what is published of it beside what was built."""
    todo = plan.to_build
    changed = [key for key, one in todo.items() if audits[key].digest != _published(one)]
    keys = changed_keys(plan, staged_id, changed, builder_of(plan.table).key_contents, {})
    return {key: _difference(plan, one, audits[key], keys.get(key)) for key, one in todo.items()}


def _difference(plan: TablePlan, decision: SlicePlan, audit: Audit, keys: KeyChange | None) -> SliceDifference:
    record = decision.record
    figures = record.figures if record is not None and record.digest != EMPTY else {}
    measures = {name: (figures.get(name), audit.measures.get(name)) for name in plan.table.measures if name != "rows"}
    return SliceDifference((_published(decision).rows, audit.digest.rows), measures, keys)


def _published(decision: SlicePlan) -> Digest:
    return decision.record.digest if decision.record is not None else EMPTY
