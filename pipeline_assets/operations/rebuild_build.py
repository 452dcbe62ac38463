"""Compute the slices of a rebuild into green branches, chunk by chunk; a second call builds only outdated ones."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.days import chunks, days_between
from pipeline_assets.domain.rebuilds import NOT_REPORTED, RebuildRecord, RebuildState, RebuiltSlice, SliceDifference
from pipeline_assets.domain.records import InputState
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, neighbourhood
from pipeline_assets.load.build.builder import Audit, StagedSlices, TablePlan
from pipeline_assets.load.build.rebuild import builder_of
from pipeline_assets.load.build.refined_audit import changed_keys
from pipeline_assets.load.build.verdicts import blocked_by, judge
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.operations.rebuild_choose import (
    Chosen,
    GreenSlices,
    accepted,
    choose,
    digests_beside,
    refused_beside,
)
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.metadata import NO_FILES


def differences(plan: TablePlan, staged_id: int, audits: Mapping[Slice, Audit]) -> dict[Slice, SliceDifference]:
    """Slice -> the difference between its published and its built content."""
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


def keep_together(runtime: Runtime, rebuild: RebuildRecord, now: datetime) -> None:
    """Record each slice's blockers; after the report, also slices that the operator did not see going, and those tied to them."""
    green = {name: dict(of_table) for name, of_table in runtime.ledger.rebuilds.slices(rebuild).items()}
    changed = []
    for name in rebuild.tables:
        table = table_by_key(name)
        blockers = _upstream_left_out(table, green)
        stuck = {key for key, one in green[name].items() if not replace(one, blocked_by=blockers.get(key, ())).goes}
        blockers |= _tied(runtime, rebuild, table, green, stuck, now)
        if rebuild.state is not RebuildState.BUILDING:
            going = {key for key, one in green[name].items() if replace(one, blocked_by=blockers.get(key, ())).goes}
            unseen = {key for key in going if not green[name][key].is_reported}
            blockers |= dict.fromkeys(unseen, (NOT_REPORTED,))
            if unseen:
                blockers |= _tied(runtime, rebuild, table, green, green[name].keys() - going | unseen, now)
        for key, one in green[name].items():
            present = blockers.get(key, ())
            if one.blocked_by != present:
                green[name][key] = replace(one, blocked_by=present)
                changed.append(green[name][key])
                if present:
                    runtime.log(f"rebuild {rebuild.number}: {name} {key} is left out: {green[name][key].why_not}")
    if changed:
        runtime.ledger.rebuilds.record(rebuild, changed)


def _upstream_left_out(table: Table, green: GreenSlices) -> dict[Slice, tuple[str, ...]]:
    blockers: dict[Slice, tuple[str, ...]] = {}
    for name in table.upstream:
        for key, one in green.get(name, {}).items():
            if one.is_changed and not one.goes and key in green[table.key]:
                blockers[key] = (*blockers.get(key, ()), f"{name} {key}")
    return blockers


def _tied(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, green: GreenSlices, stuck: Set[Slice], now: datetime
) -> dict[Slice, tuple[str, ...]]:
    """Slice -> staying slices that share rows with it, over any number of others."""
    window = table.kind.exchange_days(runtime.settings)
    changed = {key for key, one in green[table.key].items() if one.is_changed and key not in stuck}
    if not window or not changed:
        return {}
    beside = neighbourhood(rebuild.slices, window) - rebuild.slices
    days = {key.event_date for key in beside}
    staying = stuck | (beside & runtime.ledger.slices(table.key, rebuild.projects, days).keys())
    links: set[tuple[Slice, Slice]] = set()
    asked: set[Slice] = set()
    edge = staying
    # Outwards from what stays: most rebuilds have no ties, and end after the first question.
    while candidates := (neighbourhood(edge, window) & changed) - asked:
        links |= _links(runtime, rebuild, table, green[table.key], candidates, now)
        asked |= candidates
        edge = set(blocked_by(links, staying))
    tied = blocked_by(links, staying)
    return {key: tuple(f"{table.key} {other}" for other in others) for key, others in tied.items() if key in changed}


def _links(
    runtime: Runtime,
    rebuild: RebuildRecord,
    table: Table,
    rebuilt: Mapping[Slice, RebuiltSlice],
    candidates: Collection[Slice],
    now: datetime,
) -> set[tuple[Slice, Slice]]:
    head = runtime.lakehouse.branches.head(table, rebuild.branch)
    if head is None:
        return set()
    request = LoadRequest((rebuild.first,), rebuild.projects, frozenset(rebuild.tables), rebuild.run_id or "", now)
    plans = [
        SlicePlan(key, Todo.REBUILD, rebuilt[key].record.input_state or InputState(), rebuilt[key].record, True)
        for key in sorted(candidates)
    ]
    pins = {name: runtime.lakehouse.head(table_by_key(name)) for name in table.upstream}
    plan = TablePlan(
        runtime, request, table, runtime.lakehouse.head(table), pins, rebuild.branch, plans, time.monotonic(), None
    )
    return builder_of(table).links(plan, StagedSlices(head, {}))


def build(runtime: Runtime, rebuild: RebuildRecord, now: datetime) -> RebuildRecord:
    """Build missing and outdated slices, then the report; raises PublishConflictError where another run took the rebuild over."""
    # A new report invalidates the older one, even if this process dies before it is made.
    rebuild = runtime.ledger.rebuilds.change(rebuild, state=RebuildState.BUILDING)
    for table in map(table_by_key, rebuild.tables):
        with lakehouse_failures(table.key):
            if runtime.lakehouse.knows(table):
                runtime.lakehouse.ensure(table)
    catch_up(runtime, rebuild, now)
    keep_together(runtime, rebuild, now)
    failpoint(Failpoint.BEFORE_REPORT)
    return runtime.ledger.rebuilds.report(rebuild, RebuildState.READY)


@dataclass(frozen=True)
class MainAsRead:
    """Main from before a look at a rebuild: its slices are built and judged on it."""

    heads: Mapping[str, int] = field(default_factory=dict)
    beside: Mapping[tuple[str, Slice], Digest] = field(default_factory=dict)
    """(table, slice) -> digest, of slices that may give rows to those of the rebuild."""


def catch_up(runtime: Runtime, rebuild: RebuildRecord, now: datetime) -> MainAsRead:
    """Build outdated slices until none is found or main moved `publish_attempts` times; returns main before the last look."""
    main = MainAsRead()
    tables = [table_by_key(name) for name in rebuild.tables]
    for _ in range(runtime.settings.publish_attempts):
        heads = {table.key: sync_ledger(runtime, table, rebuild.run_id or "") for table in tables}
        beside = {place: one for table in tables for place, one in digests_beside(runtime, rebuild, table).items()}
        main = MainAsRead(heads, beside)
        if not _look(runtime, rebuild, now):
            break
    return main


def _look(runtime: Runtime, rebuild: RebuildRecord, now: datetime) -> int:
    count = 0
    days = days_between(rebuild.first, rebuild.last)
    for chunk in chunks(days, runtime.settings.days_per_run):
        slices = {key for key in rebuild.slices if key.event_date in set(chunk)}
        built = 0
        try:
            for name in rebuild.tables:
                with lakehouse_failures(name):
                    built += _build_table(runtime, rebuild, table_by_key(name), slices, now)
        finally:
            runtime.folds.release()
        runtime.log(f"rebuild {rebuild.number}: {chunk[0]} to {chunk[-1]}: {built} slices built beside main")
        count += built
        failpoint(Failpoint.AFTER_CHUNK)
    return count


def _build_table(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, slices: Collection[Slice], now: datetime
) -> int:
    green = runtime.ledger.rebuilds.slices(rebuild)
    chosen = choose(runtime, rebuild, table, slices, green, now)
    changed = [one for key, one in sorted(chosen.left_out.items()) if not _is_known(green, table, key, one)]
    for one in changed:
        runtime.log(f"rebuild {rebuild.number}: {table.key} {one.key} is left out: {one.why_not}")
    if changed:
        runtime.ledger.rebuilds.record(rebuild, changed)
    if chosen.to_build:
        _build_slices(runtime, rebuild, table, chosen, now)
    return len(chosen.to_build)


def _is_known(green: GreenSlices, table: Table, key: Slice, one: RebuiltSlice) -> bool:
    known = green[table.key].get(key)
    return known is not None and (known.is_built, known.record.reason) == (False, one.record.reason)


def _build_slices(runtime: Runtime, rebuild: RebuildRecord, table: Table, chosen: Chosen, now: datetime) -> None:
    request = LoadRequest(
        days_between(rebuild.first, rebuild.last),
        rebuild.projects,
        frozenset(rebuild.tables),
        rebuild.run_id or "",
        now,
        accepted(rebuild, table),
    )
    plan = TablePlan(
        runtime,
        request,
        table,
        chosen.base_id,
        chosen.pins,
        rebuild.branch,
        chosen.to_build,
        time.monotonic(),
        None,
        is_whole=True,
        built_beside=chosen.built_beside,
    )
    keys = plan.to_build.keys()
    failpoint(Failpoint.AFTER_PIN, table.key)
    work = builder_of(table).build(plan)
    try:
        files = runtime.lakehouse.extend(table, rebuild.branch, chosen.base_id, work.write)
        audits = work.audit(files.snapshot_id)
        failpoint(Failpoint.AFTER_AUDIT, table.key)
        judged = judge(plan, builder_of(table), StagedSlices(files.snapshot_id, audits, work.keys))
        found = differences(plan, files.snapshot_id, audits)
    finally:
        work.release()
    live = runtime.lakehouse.slice_files(table, files.snapshot_id, keys)
    slices = []
    for key, one in sorted(judged.items()):
        record = refused_beside(one.record, chosen.beside[key])
        record = replace(record, file_hash=live.get(key, NO_FILES).file_hash)
        prior = plan.to_build[key].record
        slices.append(RebuiltSlice(record, prior.digest if prior is not None else EMPTY, found[key]))
        if not record.verdict.is_good:
            runtime.log(f"rebuild {rebuild.number}: {table.key} {key} is {record.verdict.value}: {record.reason}")
    failpoint(Failpoint.BEFORE_LEDGER, table.key)
    runtime.ledger.rebuilds.record(rebuild, slices)
