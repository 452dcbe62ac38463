"""What becomes of the keys of final slices of refined.events, by cause, before anything of it is published.

Lives here: which slices are compared, and the cause of what became of a key. Put here: another cause. Keep out: the comparison
(transforms/key_changes.py) and the bounds (domain/checks.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame
from resources.iceberg import slices_condition

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.checks import is_bounded
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.load_path.derived.step import DerivedStep
from pipeline_assets.load_path.standing import Decision
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms.key_changes import (
    ADDED,
    CHANGED,
    KEPT,
    REMOVED,
    event_contents,
    held_keys,
    key_changes,
)

MOVED, CODE, DELIVERED, WITHDRAWN = "moved day", "code", "new delivery", "withdrawn"


def explain_keys(step: DerivedStep, todo: Mapping[Slice, Decision], staged_id: int) -> dict[Slice, KeyChange]:
    """Slice -> what becomes of its keys, of the bounded slices whose content would change.

    Reads keys and stored hashes of these slices, published and staged, and the keys of their neighbours.
    """
    chosen = [key for key, decision in todo.items() if _is_compared(step, decision)]
    if not chosen:
        return {}
    window = step.bench.settings.dedupe_window_days
    near = neighbourhood(chosen, window)
    found = key_changes(
        _contents(step, step.base_id, chosen),
        _contents(step, staged_id, chosen),
        _keys(step, step.base_id, near),
        _keys(step, staged_id, near),
        window,
    )
    counted: dict[Slice, dict[tuple[str, bool], int]] = {key: {} for key in chosen}
    for row in found.groupBy("event_date", "project_id", "change", "is_moved").count().collect():
        counted[Slice(row["event_date"], row["project_id"])][row["change"], row["is_moved"]] = row["count"]
    return {key: key_change(todo[key].cause, counts) for key, counts in counted.items()}


def _is_compared(step: DerivedStep, decision: Decision) -> bool:
    record, audit = decision.record, step.audits[decision.key]
    if record is None or record.digest in (EMPTY, audit.digest):
        return False
    then = record.baseline.figures.get("rows", 0) if record.baseline is not None else 0
    rows = {"rows": max(record.digest.rows, then)}, {"rows": audit.digest.rows}
    return is_bounded(*rows, was_final=decision.was_final, settings=step.bench.settings)


def _contents(step: DerivedStep, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return event_contents(_events(step, snapshot_id, slices))


def _keys(step: DerivedStep, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return held_keys(_events(step, snapshot_id, slices))


def _events(step: DerivedStep, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return step.bench.lakehouse.read(REFINED_EVENTS, snapshot_id).where(slices_condition(REFINED_EVENTS, slices))


def key_change(cause: str, counts: Mapping[tuple[str, bool], int]) -> KeyChange:
    """What becomes of a slice's keys; `cause`: why it is built, `counts`: (change, whether it moved) -> keys."""
    is_code_alone = cause == CODE
    also = f" or {CODE}" if CODE in cause and not is_code_alone else ""

    def by_cause(change: str, otherwise: str) -> dict[str, int]:
        named = {MOVED: counts.get((change, True), 0), f"{otherwise}{also}": counts.get((change, False), 0)}
        return {name: count for name, count in named.items() if count}

    return KeyChange(
        sum(count for (change, _), count in counts.items() if change == KEPT),
        by_cause(ADDED, CODE if is_code_alone else DELIVERED),
        by_cause(REMOVED, CODE if is_code_alone else WITHDRAWN),
        by_cause(CHANGED, CODE if is_code_alone else DELIVERED),
    )
