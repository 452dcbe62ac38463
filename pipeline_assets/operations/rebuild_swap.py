"""Swap a rebuild in: catch up with main, then publish all its tables at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pipeline_assets.domain.changes import Baseline, Cause, CauseKind
from pipeline_assets.domain.errors import PublishConflictError, TakenOverError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import Digest, Slice, Verdict, neighbourhood
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import decide
from pipeline_assets.load.staleness.facts import Facts, rests_on
from pipeline_assets.operations.rebuild_build import (
    GreenSlices,
    MainAsRead,
    catch_up,
    keep_together,
    no_longer_as_reported,
)
from pipeline_assets.operations.rollback import RollbackRequest, SliceRestore, roll_back
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.metadata import NO_FILES, SliceFiles
from resources.iceberg.slice_changes import SliceChange
from resources.ledger.changes import Changes
from resources.ledger.rebuilds import SwapOfRebuild
from resources.publishing import PublishRequest, publisher_of


def swap(runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None, now: datetime) -> RebuildRecord:
    """Publish the rebuilt slices that go; the rest of main stays. A second call completes a killed swap.

    Raises UsageError without a report, or where catching up would change a reported slice beyond bounds; PublishConflictError
    where loads keep winning, or another run took the rebuild over.
    """
    if rebuild.state is RebuildState.SWAPPED and _branches(runtime, rebuild):
        return _ended(runtime, rebuild)
    if rebuild.state is RebuildState.BUILDING:
        hint = "Go on with it first: tidemark rebuild start, with the same tables and days"
        raise rebuild.refused("has no report yet", hint)
    if rebuild.state not in (RebuildState.READY, RebuildState.SWAPPING):
        raise rebuild.refused(f"is {rebuild.state.value}", "Start another one: tidemark rebuild start")
    for attempt in range(runtime.settings.publish_attempts):
        try:
            main = catch_up(runtime, rebuild, now)
            keep_together(runtime, rebuild, now)
        except PublishConflictError as conflict:
            raise _conflict(runtime, rebuild, conflict) from conflict
        green = runtime.ledger.rebuilds.slices(rebuild)
        _require_as_reported(runtime, rebuild, green, now)
        runs = tuple(dict.fromkeys(filter(None, (*rebuild.swap_runs, rebuild.run_id))))
        after = rebuild.swap_after if _shown(runtime, rebuild) else runtime.ledger.rebuilds.last_publication()
        begun: dict[str, Any] = {"state": RebuildState.SWAPPING, "swap_after": after, "swap_runs": runs}
        rebuild = runtime.ledger.rebuilds.change(rebuild, **begun, answered_by=who, answer=why)
        try:
            swaps = []
            for name in rebuild.tables:
                failpoint(Failpoint.BEFORE_SWAP, name)
                with lakehouse_failures(name):
                    swaps.append(_swap_of(runtime, rebuild, table_by_key(name), green[name], main, now))
            _publish(runtime, rebuild, swaps)
        except TakenOverError:
            raise
        except PublishConflictError as conflict:
            runtime.log(f"rebuild {rebuild.number}: {conflict.subject}: {conflict.reason}; catching up")
            if attempt == runtime.settings.publish_attempts - 1:
                raise _conflict(runtime, rebuild, conflict) from conflict
            continue
        break
    return _ended(runtime, runtime.ledger.rebuilds.get(rebuild.number))


def _ended(runtime: Runtime, rebuild: RebuildRecord) -> RebuildRecord:
    failpoint(Failpoint.AFTER_SWAPS)
    drop_branches(runtime, rebuild)
    return rebuild


def _branches(runtime: Runtime, rebuild: RebuildRecord) -> list[Table]:
    tables, branches = map(table_by_key, rebuild.tables), runtime.lakehouse.branches
    return [table for table in tables if branches.head(table, rebuild.branch) is not None]


def drop_branches(runtime: Runtime, rebuild: RebuildRecord) -> None:
    """Drop the green branches; maintenance removes files that main does not show."""
    for table in _branches(runtime, rebuild):
        runtime.lakehouse.branches.drop(table, [runtime.lakehouse.branches.name(rebuild.branch)])


def _shown(runtime: Runtime, rebuild: RebuildRecord) -> dict[str, list[PublicationRecord]]:
    """Table -> publications by the swap, oldest first, where main shows some; syncs first, so a killed swap's are on record."""
    after, found = rebuild.swap_after, {}
    for name in rebuild.tables if after is not None else ():
        sync_ledger(runtime, table_by_key(name), rebuild.run_id or "")
        later = [record for record in runtime.ledger.publications(name) if record.number > (after or 0)]
        found[name] = [record for record in later if record.run_id in rebuild.swap_runs]
    return {name: records for name, records in found.items() if records}


def _require_as_reported(runtime: Runtime, rebuild: RebuildRecord, green: GreenSlices, now: datetime) -> None:
    look = f"tidemark rebuild show {rebuild.number}"
    beyond = no_longer_as_reported(runtime, rebuild, green, now)
    if not beyond and any(one.goes for of_table in green.values() for one in of_table.values()):
        return
    rebuild, shown = _stopped(runtime, rebuild)
    told = f"main shows {', '.join(shown)} of it already" if shown else "nothing was swapped"
    if not beyond:
        hint = f"See why: {look}" + (f"; then {rebuild.next_of_swap}" if shown else "")
        raise rebuild.refused(f"has no slice that could go, and {told}", hint)
    runtime.ledger.rebuilds.report(rebuild, rebuild.state)
    then = rebuild.next_of_swap if shown else "swap it, or abandon it"
    reason = f"is no longer what was reported, and {told}: {few(beyond, separator='; ')}"
    raise rebuild.refused(reason, f"Look at the report, which is new: {look}; then {then}")


def _conflict(runtime: Runtime, rebuild: RebuildRecord, conflict: PublishConflictError) -> PublishConflictError:
    rebuild, shown = _stopped(runtime, rebuild)
    if not shown:
        return conflict
    reason = f"{conflict.reason}; main shows {', '.join(shown)} of rebuild {rebuild.number} already"
    return PublishConflictError(conflict.subject, reason, rebuild.next_of_swap.capitalize())


def _stopped(runtime: Runtime, rebuild: RebuildRecord) -> tuple[RebuildRecord, tuple[str, ...]]:
    """The rebuild, ready again unless main shows some of it; and the tables in which it does."""
    shown = tuple(_shown(runtime, rebuild))
    if not shown and rebuild.state is RebuildState.SWAPPING:
        rebuild = runtime.ledger.rebuilds.change(rebuild, state=RebuildState.READY)
    return rebuild, shown


@dataclass(frozen=True)
class _TableSwap:
    table: Table
    changed: frozenset[Slice]
    change: SliceChange | None
    record: Changes
    rests_on: Mapping[tuple[str, Slice], Digest] = field(default_factory=dict)
    """(table, slice) -> digest of the inputs, and of the neighbours that changed slices were judged beside."""


def _publish(runtime: Runtime, rebuild: RebuildRecord, swaps: Sequence[_TableSwap]) -> None:
    inputs: dict[tuple[str, Slice], Digest] = {}
    for one in swaps:
        _add(inputs, one.rests_on)
    request = PublishRequest(
        rebuild.run_id or "",
        f"swap_{rebuild.number}",
        [one.change for one in swaps if one.change is not None],
        [(one.table.key, one.record) for one in swaps],
        rests_on=inputs,
        alongside=SwapOfRebuild(rebuild),
    )
    publisher_of(runtime.settings, runtime.lakehouse, runtime.ledger).publish(request)
    for one in swaps:
        runtime.log(f"rebuild {rebuild.number}: {one.table.key}: {len(one.changed)} slices swapped in")


def _add(inputs: dict[tuple[str, Slice], Digest], more: Mapping[tuple[str, Slice], Digest]) -> None:
    for place, digest in more.items():
        if inputs.setdefault(place, digest) != digest:
            reason = "changed while slices were built from it one after another"
            raise PublishConflictError(f"{place[0]} {place[1]}", reason, "The swap builds the older ones again")


def _swap_of(
    runtime: Runtime,
    rebuild: RebuildRecord,
    table: Table,
    rebuilt: Mapping[Slice, RebuiltSlice],
    main: MainAsRead,
    now: datetime,
) -> _TableSwap:
    going = {key: one for key, one in rebuilt.items() if one.goes}
    if not going:
        return _TableSwap(table, frozenset(), None, Changes())
    held = runtime.ledger.interventions.holds(table.key, rebuild.projects)
    if held.keys() & going.keys():
        raise PublishConflictError(table.key, "an operator held a day of it meanwhile", "The swap looks at it again")
    base_id = main.heads[table.key]
    published = runtime.ledger.slices(table.key, rebuild.projects, {key.event_date for key in going})
    changed = frozenset(
        key for key, one in going.items() if key not in published or published[key].digest != one.record.digest
    )
    near = neighbourhood(changed, table.kind.exchange_days(runtime.settings)) - going.keys()
    inputs = {place: digest for place, digest in main.beside.items() if place[0] == table.key and place[1] in near}
    changes, files, change = Changes(), dict[Slice, SliceFiles](), None
    if changed:
        head = runtime.lakehouse.branches.head(table, rebuild.branch)
        if head is None:
            raise PublishConflictError(table.key, "its green branch is gone", "The swap builds it again")
        live = runtime.lakehouse.slice_files(table, head, changed)
        if any(live.get(key, NO_FILES).file_hash != going[key].record.file_hash for key in changed):
            reason = "its green branch holds other files than were recorded"
            raise PublishConflictError(table.key, reason, "The swap builds them again")
        change = runtime.lakehouse.changes.of(table, base_id, head, changed)
        files = change.files_by_slice
        changes.head = (table.key, base_id, base_id)
        for key in sorted(changed):
            record = going[key].record
            before = published[key].digest if key in published else going[key].published
            built = record.input_state, record.code_version, rebuild.acceptance, record.figures
            of = (table.key, key, base_id, base_id, before, record.digest, Cause.of(CauseKind.REBUILD), rebuild.run_id)
            settings = table.recorded_settings(runtime.settings)
            changes.publications.append(PublicationRecord(*of, *built, settings=settings))
    facts = Facts.read(runtime.ledger, runtime.settings, going.keys(), [table], now)
    for plan in decide(facts, table, going.keys(), {}, now):
        one, prior = going[plan.key], published.get(plan.key)
        if one.record.input_state is not None:
            _add(inputs, rests_on(table, runtime.settings, plan.key, one.record.input_state, plan.months))
        is_published, was_hash = plan.key in changed, prior.file_hash if prior is not None else None
        record = replace(
            one.record,
            verdict=Verdict.PUBLISHED if is_published else Verdict.UNCHANGED,
            is_final=plan.is_final,
            final_at=plan.final_at,
            file_hash=files[plan.key].file_hash if is_published else was_hash,
            read_hash=was_hash,
            baseline=_baseline(one, prior, plan.is_settled, now),
        )
        changes.slices.append(record)
    return _TableSwap(table, changed, change, changes, inputs)


def _baseline(one: RebuiltSlice, prior: SliceRecord | None, is_settled: bool, now: datetime) -> Baseline | None:
    if is_settled and not one.is_changed and prior is not None and prior.baseline is not None:
        return prior.baseline
    return Baseline(one.record.figures, content=str(one.record.digest), since=now.isoformat()) if is_settled else None


def abandon(runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None) -> RebuildRecord:
    """Drop an unpublished rebuild. Raises UsageError where main shows some of it, or it is answered."""
    if not rebuild.state.is_open:
        raise rebuild.refused(f"is {rebuild.state.value}", f"Look at it: tidemark rebuild show {rebuild.number}")
    if shown := _shown(runtime, rebuild):
        reason = f"is being swapped in, and main shows {', '.join(shown)} of it already"
        raise rebuild.refused(reason, rebuild.next_of_swap.capitalize())
    return _closed(runtime, rebuild, RebuildState.ABANDONED, who, why)


def undo(
    runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None
) -> tuple[RebuildRecord, list[SliceRestore]]:
    """Roll the swap's publications back and hold their slices, by metadata; raises UsageError, and the errors of a rollback."""
    is_answered = rebuild.state in (RebuildState.ABANDONED, RebuildState.UNDONE)
    if is_answered or rebuild.swap_after is None:
        hint = "`tidemark rebuild show` tells which were swapped in"
        raise rebuild.refused(f"is {rebuild.state.value}, so main shows nothing of it", hint)
    shown = _shown(runtime, rebuild)
    if not shown:
        abandon_it = f"Abandon it: tidemark rebuild abandon {rebuild.number}"
        hint = abandon_it if rebuild.state.is_open else "There is nothing to take back"
        raise rebuild.refused(f"is {rebuild.state.value}, and its swap changed nothing of main", hint)
    request = RollbackRequest(
        tuple(shown),
        rebuild.projects,
        rebuild.first,
        rebuild.last,
        rebuild.swap_after,
        f"undo of rebuild {rebuild.number} ({rebuild.reason}){f': {why}' if why else ''}",
        rebuild.run_id or "",
        # Each slice goes back to right before the swap's first change of it.
        {name: {record.key: record.number - 1 for record in reversed(records)} for name, records in shown.items()},
    )
    restores = roll_back(runtime, request)
    return _closed(runtime, rebuild, RebuildState.UNDONE, who, why), restores


def _closed(runtime: Runtime, rebuild: RebuildRecord, state: RebuildState, who: str, why: str | None) -> RebuildRecord:
    now = datetime.now(UTC).isoformat()
    rebuild = runtime.ledger.rebuilds.change(rebuild, state=state, finished_at=now, answered_by=who, answer=why)
    drop_branches(runtime, rebuild)
    return rebuild
