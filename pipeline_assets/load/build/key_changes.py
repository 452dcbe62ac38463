"""Counts how the keys of bounded slices of refined.events would change, by cause, before they are published."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.change_rule import is_bounded
from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.load.build.audit import Audit
from pipeline_assets.load.build.states import read_states
from pipeline_assets.load.build.step import StagedSlices, TablePlan
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
from resources.iceberg.metadata import slices_condition

MOVED, CODE, DELIVERED, WITHDRAWN = "moved day", "code", "new delivery", "withdrawn"


def explain_keys(plan: TablePlan, staged: StagedSlices) -> dict[Slice, KeyChange]:
    """Bounded slice whose content would change -> how its keys change.

    Reads keys and stored hashes of these slices, published and staged, and the keys of their neighbours.
    """
    todo = plan.to_build
    compared = [key for key, decision in todo.items() if _is_compared(plan, decision, staged.audits[key])]
    if not compared:
        return {}
    known = {key: staged.keys[key] for key in compared if key in staged.keys}
    unknown = [key for key in compared if key not in known]
    counted = _counted(plan, staged.snapshot_id, unknown) | _known(plan, staged.snapshot_id, known)
    return {key: key_change(todo[key].cause, counts) for key, counts in counted.items()}


_Counts = dict[tuple[str, bool], int]
"""(change, whether the key moved) -> number of keys."""


def _counted(plan: TablePlan, staged_id: int, slices: Collection[Slice]) -> dict[Slice, _Counts]:
    """Slice -> counts of its changes, from a comparison of all its keys."""
    if not slices:
        return {}
    window = plan.runtime.settings.dedupe_window_days
    near = neighbourhood(slices, window)
    changes = key_changes(
        _contents(plan, plan.base_id, slices),
        _contents(plan, staged_id, slices),
        _keys(plan, plan.base_id, near),
        _keys_once_published(plan, staged_id, near),
        window,
    )
    counted: dict[Slice, _Counts] = {key: {} for key in slices}
    for row in changes.groupBy("event_date", "project_id", "change", "is_moved").count().collect():
        counted[Slice(row["event_date"], row["project_id"])][row["change"], row["is_moved"]] = row["count"]
    return counted


def _known(plan: TablePlan, staged_id: int, known: Mapping[Slice, KeyDifference]) -> dict[Slice, _Counts]:
    """The same for slices written as a difference; only keys that they gain or lose are searched on other days."""
    counted: dict[Slice, _Counts] = {}
    for key, keys in known.items():
        added = pc.sum(keys.differing["is_added"]).as_py() or 0
        counts = {(KEPT, False): keys.kept, (CHANGED, False): keys.changed, (ADDED, False): added}
        counted[key] = counts | {(REMOVED, False): keys.differing.num_rows - added}
    differing = [_placed(key, keys.differing) for key, keys in known.items() if keys.differing.num_rows]
    if not differing:
        return counted
    window = plan.runtime.settings.dedupe_window_days
    near = neighbourhood(known, window)
    changes = F.broadcast(plan.runtime.spark.createDataFrame(pa.concat_tables(differing)))
    moved = moved_keys(changes, _keys(plan, plan.base_id, near), _keys_once_published(plan, staged_id, near), window)
    by_change = moved.join(changes, on=["event_date", "project_id", *KEY])
    for row in by_change.groupBy("event_date", "project_id", "change").count().collect():
        counts = counted[Slice(row["event_date"], row["project_id"])]
        counts[row["change"], True] = row["count"]
        counts[row["change"], False] -= row["count"]
    return counted


def _placed(key: Slice, differing: pa.Table) -> pa.Table:
    """event_date, project_id, KEY, change: the input of `moved_keys`."""
    rows = differing.num_rows
    return pa.table(
        {
            "event_date": pa.repeat(pa.scalar(key.event_date, pa.date32()), rows),
            "project_id": pa.repeat(pa.scalar(key.project_id), rows),
            **{name: differing[name] for name in KEY},
            "change": pc.if_else(differing["is_added"], ADDED, REMOVED),
        }
    )


def _is_compared(plan: TablePlan, decision: SlicePlan, audit: Audit) -> bool:
    record = decision.record
    # A slice whose files are gone is empty in the base, so that every key would count as added.
    if record is None or decision.cause.kind is CauseKind.FILES_GONE or record.digest in (EMPTY, audit.digest):
        return False
    then = record.baseline.figures.get("rows", 0) if record.baseline is not None else 0
    rows = {"rows": max(record.digest.rows, then)}, {"rows": audit.digest.rows}
    return is_bounded(*rows, was_final=decision.was_final, settings=plan.runtime.settings)


def _contents(plan: TablePlan, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return event_contents(_events(plan, snapshot_id, slices))


def _keys(plan: TablePlan, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return held_keys(_events(plan, snapshot_id, slices))


def _keys_once_published(plan: TablePlan, staged_id: int, slices: Collection[Slice]) -> DataFrame:
    return read_states(plan.runtime, REFINED_EVENTS, plan.states(staged_id, slices), held_keys)


def _events(plan: TablePlan, snapshot_id: int, slices: Collection[Slice]) -> DataFrame:
    return plan.runtime.lakehouse.read(REFINED_EVENTS, snapshot_id).where(slices_condition(REFINED_EVENTS, slices))


def key_change(cause: Cause, counts: Mapping[tuple[str, bool], int]) -> KeyChange:
    """The key changes of a slice by cause; `cause`: why it is built; `counts`: (change, whether the key moved) -> keys."""
    is_code_alone = cause.kind is CauseKind.CODE
    also = f" or {CODE}" if cause.has_new_code and not is_code_alone else ""

    def by_cause(change: str, otherwise: str) -> dict[str, int]:
        named = {MOVED: counts.get((change, True), 0), f"{otherwise}{also}": counts.get((change, False), 0)}
        return {name: count for name, count in named.items() if count}

    return KeyChange(
        sum(count for (change, _), count in counts.items() if change == KEPT),
        by_cause(ADDED, CODE if is_code_alone else DELIVERED),
        by_cause(REMOVED, CODE if is_code_alone else WITHDRAWN),
        by_cause(CHANGED, CODE if is_code_alone else DELIVERED),
    )
