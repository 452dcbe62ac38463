"""Counts how the keys of slices would change, by cause, before they are published."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.changes import Cause, CauseKind, KeyChange, is_bounded
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.load.build.builder import Audit, StagedSlices, TablePlan
from pipeline_assets.load.file_tasks import Place, each_file, each_of, files_of, read_bytes
from pipeline_assets.load.staleness.decide import SlicePlan
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.key_changes import ADDED, CHANGED, KEPT, REMOVED
from pipeline_assets.transforms.keys import (
    EVENT_CONTENTS,
    KEY_TYPES,
    Contents,
    KeyDifference,
    KeyRows,
    TwoStates,
    compared_states,
    contents_of,
    keys_among,
    moved,
)

_ROWS_OF_A_PART = 4_000_000
"""Rows of both states of a slice that a task compares at a time: 24 bytes each, and about as much to sort them."""
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
    return changed_keys(plan, staged.snapshot_id, compared, EVENT_CONTENTS, known)


def changed_keys(
    plan: TablePlan, staged_id: int, slices: Collection[Slice], contents: Contents, known: Mapping[Slice, KeyDifference]
) -> dict[Slice, KeyChange]:
    """Slice -> how its keys change from what is published to what is staged; `known`: what need not be read."""
    differences = {**known, **_compared(plan, staged_id, [key for key in slices if key not in known], contents)}
    counted = _counted(plan, staged_id, differences)
    return {key: key_change(plan.to_build[key].cause, counts) for key, counts in counted.items()}


_Counts = dict[tuple[str, bool], int]
"""(change, whether the key moved) -> number of keys."""


def _compared(
    plan: TablePlan, staged_id: int, slices: Collection[Slice], contents: Contents
) -> dict[Slice, KeyDifference]:
    """How the keys of these slices change, from all their keys; slices of many rows are compared in parts."""
    if not slices:
        return {}
    runtime = plan.runtime
    sides = []
    places = [Place(plan.table, snapshot_id, frozenset(slices)) for snapshot_id in (plan.base_id, staged_id)]
    for place in places:
        found = files_of(runtime, [place])
        side: dict[Slice, list[SliceFile | bytes]] = {key: [] for key in slices}
        for file in found.files:
            side[file.key].append(file)
        for key, told in each_of(runtime, replace(found, files=()), contents.types, partial(contents_of, contents)):
            side[key].append(told)
        sides.append(side)
    items = []
    for key in slices:
        rows = sum(file.rows for side in sides for file in side[key] if isinstance(file, SliceFile))
        parts = 1 + rows // _ROWS_OF_A_PART
        items += [TwoStates(key, sides[0][key], sides[1][key], part, parts) for part in range(parts)]
    files = [file for side in sides for of_slice in side.values() for file in of_slice if isinstance(file, SliceFile)]
    weights = [sum(_weight(file) for file in (*item.before, *item.after)) for item in items]
    groups = runtime.tasks.groups(items, weights)
    comparing = partial(compared_states, runtime.lakehouse.files.store(plan.table), contents)
    compared: dict[Slice, KeyDifference] = {}
    for told_group in runtime.tasks.run(
        comparing, groups, read_bytes=read_bytes(runtime, places, files, contents.types)
    ):
        for key, one in told_group:
            compared[key] = compared[key] + one if key in compared else one
    return compared


def _weight(file: SliceFile | bytes) -> int:
    return file.cost if isinstance(file, SliceFile) else len(file)


def _counted(plan: TablePlan, staged_id: int, known: Mapping[Slice, KeyDifference]) -> dict[Slice, _Counts]:
    """Slice -> counts of its changes; only keys that it gains or loses are searched on other days."""
    moves = _moved(plan, staged_id, {key: one.differing for key, one in known.items() if one.differing.num_rows})
    counted: dict[Slice, _Counts] = {}
    for key, one in known.items():
        gained = pc.sum(one.differing["is_added"]).as_py() or 0
        counts = {ADDED: gained, REMOVED: one.differing.num_rows - gained}
        counted[key] = {(KEPT, False): one.kept, (CHANGED, False): one.changed}
        for change, is_added in ((ADDED, True), (REMOVED, False)):
            count = moves.get(key, {}).get(is_added, 0)
            counted[key] |= {(change, True): count, (change, False): counts[change] - count}
    return counted


def _moved(plan: TablePlan, staged_id: int, differing: Mapping[Slice, pa.Table]) -> dict[Slice, Mapping[bool, int]]:
    """Slice -> how many of its added (True) and removed (False) keys moved; an added key from a day as it was published."""
    # Rows that never change their day come from no other one.
    if not differing or not plan.table.kind.exchange_days(plan.runtime.settings):
        return {}
    window = plan.table.kind.exchange_days(plan.runtime.settings)
    near = frozenset(neighbourhood(differing, window))
    held: dict[bool, list[KeyRows]] = {True: [], False: []}
    states: dict[bool, Mapping[int, frozenset[Slice]]] = {
        True: {plan.base_id: near},
        False: plan.states(staged_id, near),
    }
    for is_added, of_side in held.items():
        halves = [rows.filter(pc.equal(rows["is_added"], is_added))["_key_a"].to_numpy() for rows in differing.values()]
        wanted = np.unique(np.concatenate(halves))
        if len(wanted):
            places = [Place(plan.table, snapshot_id, slices) for snapshot_id, slices in states[is_added].items()]
            of_side.extend(each_file(plan.runtime, places, KEY_TYPES, partial(keys_among, wanted.tobytes())))
    return {key: moved(key, rows, held, window) for key, rows in differing.items()}


def _is_compared(plan: TablePlan, decision: SlicePlan, audit: Audit) -> bool:
    record = decision.record
    # A slice whose files are gone is empty in the base, so that every key would count as added.
    if record is None or decision.cause.kind is CauseKind.FILES_GONE or record.digest in (EMPTY, audit.digest):
        return False
    then = record.baseline.figures.get("rows", 0) if record.baseline is not None else 0
    rows = {"rows": max(record.digest.rows, then)}, {"rows": audit.digest.rows}
    return is_bounded(*rows, was_final=decision.was_final, settings=plan.runtime.settings)


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
