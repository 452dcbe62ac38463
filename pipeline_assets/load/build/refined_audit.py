"""Audits staged slices of refined.events: measures them, reconciles them with raw, and counts key changes by cause."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.changes import Cause, CauseKind, KeyChange, is_bounded
from pipeline_assets.domain.checks import Check, Evaluation, number
from pipeline_assets.domain.identity import LOST_UNREAD, RowFate
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.load.build.builder import Audit, StagedSlices, TablePlan
from pipeline_assets.load.file_tasks import Place, each_file, each_of, each_range, files_of, read_bytes
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS, event_hashes
from pipeline_assets.transforms.digests import ADDED, CHANGED, KEPT, REMOVED
from pipeline_assets.transforms.file_rows import SliceFile, row_count
from pipeline_assets.transforms.keys import (
    EVENT_CONTENTS,
    FIRST_HALF,
    KEY_TYPES,
    Contents,
    KeyDifference,
    KeyRows,
    TwoStates,
    compared_states,
    contents_of,
    first_halves,
    keys_among,
    moved,
    occurring_twice,
)
from pipeline_assets.transforms.row_sums import RefinedSums, SummingRefined, Twice, keys_twice

_MOST_KEYS = 20_000_000
"""Up to this many rows of audited and nearby slices, the driver sorts half a key of each, 8 bytes."""
_SECOND = 1_000_000
_TAMPERED = "Something else than Tidemark changed the file: docs/operations.md, A row that differs from its hash"
_DEFECT = "This is a defect of Tidemark: report it with the day's raw rows"


def raw_counts(runtime: Runtime, pins: Mapping[str, int], slices: Sequence[Slice]) -> dict[Slice, int]:
    """Rows per slice in both raw tables, from metadata, so independent of what the build read."""
    rows = dict.fromkeys(slices, 0)
    found = files_of(runtime, [Place(table, pins[table.key], frozenset(slices)) for table in RAW_TABLES.values()])
    for file in found.files:
        rows[file.key] += file.rows
    # Metadata does not show which rows another program's delete files hide.
    for key, count in each_of(runtime, replace(found, files=()), {"_line_number": "int"}, row_count):
        rows[key] += count
    return rows


def measure_refined(
    runtime: Runtime,
    snapshot_id: int,
    near: Mapping[int, Collection[Slice]],
    slices: Sequence[Slice],
    *,
    is_checked: bool,
) -> dict[Slice, Mapping[str, Any]]:
    """Slice -> its digest, figures and duplicate keys, from stored hashes; `is_checked`: recompute every hash from its row.

    `near`: snapshot -> the slices and neighbours whose present state it holds.
    """
    audited = Place(REFINED_EVENTS, snapshot_id, frozenset(slices))
    others = [Place(REFINED_EVENTS, at, frozenset(keys) - audited.slices) for at, keys in near.items()]
    own = files_of(runtime, [audited])
    beside = files_of(runtime, [place for place in others if place.slices])
    are_few = own.rows + beside.rows <= _MOST_KEYS
    summing = SummingRefined(event_hashes() if is_checked else None, has_keys=are_few)
    measured = each_of(runtime, own, summing.types, summing)
    sums: dict[Slice, RefinedSums] = {}
    for one in measured:
        sums[one.key] = sums.get(one.key, RefinedSums()) + one.sums
    window, twice = runtime.settings.dedupe_window_days, dict[Slice, Twice]()
    if are_few:
        halves = [*(one.keys for one in measured), *each_of(runtime, beside, FIRST_HALF, first_halves)]
        suspected, _ = occurring_twice(halves)
        if len(suspected):
            among = partial(keys_among, suspected.tobytes())
            twice = keys_twice(
                [row for files in (own, beside) for row in each_of(runtime, files, KEY_TYPES, among)], window
            )
    else:
        for part in each_range(runtime, [own, beside], lambda _, rows: keys_twice(rows, window)):
            for key, of_part in part.items():
                twice[key] = Twice(*map(sum, zip(twice.get(key, Twice()), of_part, strict=True)))
    found: dict[Slice, Mapping[str, Any]] = {}
    for key, total in sums.items():
        if total.digest.rows:
            lag = None
            if total.received is not None and total.happened is not None:
                lag = total.received // _SECOND - total.happened // _SECOND
            found[key] = {**vars(total), **twice.get(key, Twice())._asdict(), "lag": lag}
    return found


def audit_of(
    row: Mapping[str, Any] | None, raw_rows: int, reasons: Mapping[str, int], competing_digests: str, wrong: str | None
) -> Audit:
    """The audit of one slice (`row`: None without rows); `wrong`: a mismatch that a task found in raw while it wrote."""
    digest = row["digest"] if row is not None else EMPTY
    twice = row["keys_twice"] if row is not None else 0
    duplicates = {outcome.value: reasons.get(outcome.value, 0) for outcome in RowFate if outcome is not RowFate.WINNER}
    missing = raw_rows - digest.rows - sum(duplicates.values())
    others = row["false_hashes"] if row is not None else 0
    mismatches = [
        f"{raw_rows} raw rows but {digest.rows} rows and {sum(duplicates.values())} duplicates" if missing else None,
        f"{others} rows are not what raw holds: their hashes differ" if others else None,
        wrong,
    ]
    reason = "; ".join(filter(None, mismatches)) or None
    unique = Evaluation(
        Check.UNIQUE_EVENT_KEY,
        twice == 0,
        None if twice == 0 else f"{twice} rows share a key with another row",
        None if twice == 0 else "Recover the neighbouring day first; it still holds a row that moved here",
        {"duplicate_keys_per_1000": 1000 * twice / digest.rows if digest.rows else 0.0},
    )
    reconciles = Evaluation(
        Check.RECONCILES_WITH_RAW,
        reason is None,
        reason,
        reason and (_TAMPERED if wrong else _DEFECT),
        {"raw_rows": raw_rows, "mismatch_count": abs(missing) + others + (wrong is not None), **duplicates},
    )
    figures = {
        "rows": digest.rows,
        "raw_rows": raw_rows,
        **duplicates,
        **{
            name: row[name] if row is not None else 0 for name in ("rows_without_id", "rows_with_blank_id", "late_rows")
        },
        "watermark_lag_seconds": number(row["lag"]) if row is not None else 0,
        **{name: rows for name, rows in reasons.items() if name == LOST_UNREAD},
    }
    is_on_two_days = twice > 0 and row is not None and row["keys_twice_a_day"] == 0
    return Audit(digest, {"rows": digest.rows}, figures, (unique, reconciles), competing_digests, is_on_two_days)


_ROWS_OF_A_PART = 4_000_000
"""Rows of both states of a slice that a task compares at a time: 24 bytes each, and about as much to sort them."""
MOVED, CODE, DELIVERED, WITHDRAWN = "moved day", "code", "new delivery", "withdrawn"


def explain_keys(plan: TablePlan, staged: StagedSlices) -> dict[Slice, KeyChange]:
    """Bounded slice whose content would change -> how its keys change, by its keys and those of its neighbours."""
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


def _compared(
    plan: TablePlan, staged_id: int, slices: Collection[Slice], contents: Contents
) -> dict[Slice, KeyDifference]:
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
    held = [[*item.before, *item.after] for item in items]
    weights = [sum(file.cost if isinstance(file, SliceFile) else len(file) for file in of_item) for of_item in held]
    groups = runtime.tasks.groups(items, weights)
    comparing = partial(compared_states, runtime.lakehouse.files.store(plan.table), contents)
    compared: dict[Slice, KeyDifference] = {}
    for told_group in runtime.tasks.run(
        comparing, groups, read_bytes=read_bytes(runtime, places, files, contents.types)
    ):
        for key, one in told_group:
            compared[key] = compared[key] + one if key in compared else one
    return compared


def _counted(plan: TablePlan, staged_id: int, known: Mapping[Slice, KeyDifference]) -> dict[Slice, _Counts]:
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
    # A slice with lost files is empty in the base, so every key would count as added.
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
