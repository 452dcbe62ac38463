"""Roll slices of derived tables back to an earlier state and hold them until an operator releases them: metadata only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.errors import LakehouseError, PublishConflictError
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Verdict
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rollback_plan import (
    RollbackRequest,
    SliceRestore,
    after_its_run,
    plan,
    require_whole_exchanges,
    restores_of_table,
    snapshots_of,
    tables_of,
)
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.metadata import SliceFiles
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from resources.publishing.promise import publisher_of
from resources.publishing.request import PublishRequest

RELEASE_HINT = "Release it when the rollback has served its purpose (tidemark release)"


def roll_back(runtime: Runtime, request: RollbackRequest) -> list[SliceRestore]:
    """Hold the slices, then restore each one; returns the restores, including slices that were only held.

    The hold comes first, so that no load undoes the rollback; then one publish restores all tables. After a crash, another
    call completes the rollback to the same state. Raises the errors of `plan` with nothing changed, and PublishConflictError
    where loads keep winning.
    """
    with ExitStack() as kept:
        return _roll_back_all(runtime, request, kept)


def _roll_back_all(runtime: Runtime, request: RollbackRequest, kept: ExitStack) -> list[SliceRestore]:
    restores = plan(runtime, request)
    request = after_its_run(runtime, request)
    tables = tables_of(runtime, request)
    # All tables are checked first: if one cannot go back, none does.
    for table in tables:
        _keep(runtime, table, request, [restore for restore in restores if restore.table == table.key], kept)
    held: dict[str, set[Slice]] = {}
    for restore in restores:
        held.setdefault(restore.table, set()).add(restore.key)
    held_before = _held_by_others(runtime, request)
    runtime.ledger.interventions.hold(held, request.reason, request.run_id)
    try:
        done = _roll_back(runtime, tables, request, held, kept)
    except LakehouseError as refusal:
        if not _shows_any(runtime, tables, request):
            _hold_as_before(runtime, held, held_before, request, refusal)
        raise
    # A load that was about to commit during the hold may have published one of them since.
    late = [table for table in tables if any(not one.is_there for one in restores_of_table(runtime, table, request))]
    if late:
        done |= {
            place: restore
            for place, restore in _roll_back(runtime, late, request, held, kept).items()
            if not restore.is_there
        }
    return list(done.values())


def _shows_any(runtime: Runtime, tables: Sequence[Table], request: RollbackRequest) -> bool:
    """Whether main already shows a part of this rollback: without one transaction, earlier tables may have gone back."""
    return any(
        record.run_id == request.run_id and record.cause.kind is CauseKind.ROLLBACK
        for table in tables
        for record in runtime.ledger.publications(table.key)
    )


def _held_by_others(runtime: Runtime, request: RollbackRequest) -> dict[tuple[str, Slice], str]:
    """(table, slice) -> the reason of a hold from before this rollback."""
    holds = runtime.ledger.interventions.all_holds([*request.projects, ALL_PROJECTS])
    return {
        (hold.table, hold.key): hold.reason
        for hold in holds
        if hold.released_at is None and hold.run_id != request.run_id
    }


def _hold_as_before(
    runtime: Runtime,
    held: Mapping[str, Collection[Slice]],
    held_before: Mapping[tuple[str, Slice], str],
    request: RollbackRequest,
    refusal: LakehouseError,
) -> None:
    """Undo the holds of a refused rollback; slices that others held stay held without interruption."""
    decisions = runtime.ledger.interventions
    alone = {table: [key for key in keys if (table, key) not in held_before] for table, keys in held.items()}
    decisions.release(alone, f"the rollback was refused: {refusal.reason}", request.run_id)
    for table, keys in held.items():
        for key in keys:
            if (table, key) in held_before:
                decisions.hold({table: [key]}, held_before[table, key], request.run_id)


def _keep(
    runtime: Runtime, table: Table, request: RollbackRequest, restores: Sequence[SliceRestore], kept: ExitStack
) -> None:
    """Keep the target snapshots until they are live again, whatever their age and whatever maintenance does meanwhile."""
    snapshots = {restore.snapshot_id for restore in restores if restore.snapshot_id is not None}
    kept.enter_context(runtime.lakehouse.branches.keeping(table, snapshots, request.attempt))


def _roll_back(
    runtime: Runtime,
    tables: Sequence[Table],
    request: RollbackRequest,
    held: dict[str, set[Slice]],
    kept: ExitStack,
) -> dict[tuple[str, Slice], SliceRestore]:
    """Roll back all tables at once; extends `held` and `kept`. Returns (table, slice) -> its restore."""
    for attempt in range(runtime.settings.publish_attempts):
        looks = [_look(runtime, table, request, held, kept) for table in tables]
        failpoint(Failpoint.AFTER_LOOK)
        try:
            _publish(runtime, request, looks)
        except PublishConflictError as conflict:
            runtime.log(f"{conflict.subject}: {conflict.reason}; looking at it again")
            if attempt == runtime.settings.publish_attempts - 1:
                raise
            continue
        break
    for look in looks:
        runtime.log(f"{look.table.key}: {len(look.changing)} slices rolled back, {len(look.restores)} held")
    return {(restore.table, restore.key): restore for look in looks for restore in look.restores}


@dataclass(frozen=True)
class _Look:
    """The restores of one table's slices, based on a head of main."""

    table: Table
    base_id: int
    restores: Sequence[SliceRestore]

    @property
    def changing(self) -> list[SliceRestore]:
        return [restore for restore in self.restores if not restore.is_there]


def _look(
    runtime: Runtime, table: Table, request: RollbackRequest, held: dict[str, set[Slice]], kept: ExitStack
) -> _Look:
    base_id = sync_ledger(runtime, table, request.run_id)
    restores = restores_of_table(runtime, table, request)
    _keep(runtime, table, request, restores, kept)
    require_whole_exchanges(runtime, table, request, restores)
    # Slices that a load published for the first time meanwhile are not held yet.
    held.setdefault(table.key, set()).update(restore.key for restore in restores)
    runtime.ledger.interventions.hold({table.key: held[table.key]}, request.reason, request.run_id)
    return _Look(table, base_id, restores)


def _publish(runtime: Runtime, request: RollbackRequest, looks: Sequence[_Look]) -> None:
    changes = [
        runtime.lakehouse.changes.restoring(look.table, look.base_id, snapshots_of(look.changing))
        for look in looks
        if look.changing
    ]
    files = {change.table.key: change.files_by_slice for change in changes}
    steps = [(look.table.key, _changes(runtime.ledger, request, look, files.get(look.table.key, {}))) for look in looks]
    publisher = publisher_of(runtime.settings, runtime.lakehouse, runtime.ledger)
    publisher.publish(PublishRequest(request.run_id, f"rollback_{request.attempt}", changes, steps, minds_holds=False))


def _changes(ledger: Ledger, request: RollbackRequest, look: _Look, files: Mapping[Slice, SliceFiles]) -> Changes:
    table, changes = look.table, Changes()
    if look.changing:
        changes.head = (table.key, look.base_id, look.base_id)
        changes.publications.extend(
            PublicationRecord(
                table.key,
                restore.key,
                look.base_id,
                look.base_id,
                restore.present.digest,
                restore.digest,
                Cause.of(CauseKind.ROLLBACK),
                request.run_id,
                input_state=restore.target.input_state if restore.target else None,
                code_version=restore.target.code_version if restore.target else None,
                accepted_reason=request.reason,
                figures=restore.target.figures if restore.target else None,
                pins=restore.target.pins if restore.target else None,
                settings=restore.target.settings if restore.target else None,
            )
            for restore in look.changing
        )
    for restore in look.restores:
        held = replace(restore.present, verdict=Verdict.HELD, reason=f"held: {request.reason}", hint=RELEASE_HINT)
        if restore.key in files:
            target = restore.target
            held = replace(
                held,
                digest=restore.digest,
                file_hash=files[restore.key].file_hash,
                evaluations=(),
                refused_evaluations=(),
                input_state=target.input_state if target else None,
                code_version=target.code_version if target else None,
                figures=(target.figures if target else None) or {"rows": restore.digest.rows},
                rejection=None,
            )
            # An operator decided on this state, so it is the baseline for later changes. It holds what its own run read.
            is_settled = held.is_final or held.baseline is not None
            since = ledger.began(target) if target else None
            baseline = Baseline(held.figures, content=str(held.digest), since=since)
            held = replace(held, baseline=baseline if is_settled else None)
        changes.slices.append(held)
    return changes
