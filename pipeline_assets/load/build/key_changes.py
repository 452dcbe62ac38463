"""What becomes of the keys of final slices of refined.events, by cause, before anything of it is published.

Contains: which slices are compared, and the cause of what became of a key.
Add here: another cause.
Does not contain: the comparison (transforms/key_changes.py) and the bounds (domain/change_rule.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import DataFrame
from resources.iceberg.metadata import slices_condition

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.change_rule import is_bounded
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.load.build.step import DerivedStep
from pipeline_assets.load.staleness.decide import SlicePlan
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms.event_keys import KEY
from pipeline_assets.transforms.key_changes import (
    ADDED,
    CHANGED,
    KEPT,
    REMOVED,
    event_contents,
    held_keys,
    key_changes,
    moved_keys,
)
from pipeline_assets.transforms.slice_difference import KeyDifference

MOVED, CODE, DELIVERED, WITHDRAWN = "moved day", "code", "new delivery", "withdrawn"


def explain_keys(step: DerivedStep, todo: Mapping[Slice, SlicePlan], staged_id: int) -> dict[Slice, KeyChange]:
    """Slice -> what becomes of its keys, of the bounded slices whose content would change.

    Reads keys and stored hashes of these slices, published and staged, and the keys of their neighbours.
    """
    chosen = [key for key, decision in todo.items() if _is_compared(step, decision)]
    if not chosen:
        return {}
    told = {key: step.keys[key] for key in chosen if key in step.keys}
    asked = [key for key in chosen if key not in told]
    counted = _counted(step, staged_id, asked) | _told(step, staged_id, told)
    return {key: key_change(todo[key].cause, counts) for key, counts in counted.items()}


_Counts = dict[tuple[str, bool], int]
"""(change, whether the key moved) -> keys."""


def _counted(step: DerivedStep, staged_id: int, slices: Collection[Slice]) -> dict[Slice, _Counts]:
    """Slice -> what becomes of its keys, from all of them."""
    if not slices:
        return {}
    window = step.runtime.settings.dedupe_window_days
    near = neighbourhood(slices, window)
    found = key_changes(
        _contents(step, step.base_id, slices),
        _contents(step, staged_id, slices),
        _keys(step, step.base_id, near),
        _keys(step, staged_id, near),
        window,
    )
    counted: dict[Slice, _Counts] = {key: {} for key in slices}
    for row in found.groupBy("event_date", "project_id", "change", "is_moved").count().collect():
        counted[Slice(row["event_date"], row["project_id"])][row["change"], row["is_moved"]] = row["count"]
    return counted


def _told(step: DerivedStep, staged_id: int, told: Mapping[Slice, KeyDifference]) -> dict[Slice, _Counts]:
    """The same of slices that were written as their difference: only keys that they gain or lose are looked for elsewhere."""
    counted: dict[Slice, _Counts] = {}
    for key, found in told.items():
        added = pc.sum(found.differing["is_added"]).as_py() or 0
        counts = {(KEPT, False): found.kept, (CHANGED, False): found.changed, (ADDED, False): added}
        counted[key] = counts | {(REMOVED, False): found.differing.num_rows - added}
    differing = [_placed(key, found.differing) for key, found in told.items() if found.differing.num_rows]
    if not differing:
        return counted
    window = step.runtime.settings.dedupe_window_days
    near = neighbourhood(told, window)
    changes = F.broadcast(step.runtime.spark.createDataFrame(pa.concat_tables(differing)))
    moved = moved_keys(changes, _keys(step, step.base_id, near), _keys(step, staged_id, near), window)
    by_change = moved.join(changes, on=["event_date", "project_id", *KEY])
    for row in by_change.groupBy("event_date", "project_id", "change").count().collect():
        counts = counted[Slice(row["event_date"], row["project_id"])]
        counts[row["change"], True] = row["count"]
        counts[row["change"], False] -= row["count"]
    return counted


def _placed(key: Slice, differing: pa.Table) -> pa.Table:
    """event_date, project_id, KEY, change: as `moved_keys` takes them."""
    rows = differing.num_rows
    return pa.table({
        "event_date": pa.repeat(pa.scalar(key.event_date, pa.date32()), rows),
        "project_id": pa.repeat(pa.scalar(key.project_id), rows),
        **{name: differing[name] for name in KEY},
        "change": pc.if_else(differing["is_added"], ADDED, REMOVED),
    })  # fmt: skip


def _is_compared(step: DerivedStep, decision: SlicePlan) -> bool:
    record, audit = decision.record, step.audits[decision.key]
    if record is None or record.digest in (EMPTY, audit.digest):
        return False
    then = record.baseline.figures.get("rows", 0) if record.baseline is not None else 0
    rows = {"rows": max(record.digest.rows, then)}, {"rows": audit.digest.rows}
    return is_bounded(*rows, was_final=decision.was_final, settings=step.runtime.settings)


def _contents(step: DerivedStep, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return event_contents(_events(step, snapshot_id, slices))


def _keys(step: DerivedStep, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return held_keys(_events(step, snapshot_id, slices))


def _events(step: DerivedStep, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return step.runtime.lakehouse.read(REFINED_EVENTS, snapshot_id).where(slices_condition(REFINED_EVENTS, slices))


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
