"""Roll slices of refined and aggregates back to what they were, held until an operator releases them: metadata alone.

Contains: the one operation over all tables, and what is recorded of it.
Add here: another thing that happens to a slice that goes back.
Does not contain: which state that is (rollback_plan.py), the commit
(resources/iceberg/lakehouse.py), what a load does about a held slice (staleness/decide.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.errors import LakehouseError, PublishConflictError
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Verdict
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rollback_plan import (
    RollbackRequest,
    after_its_run,
    plan,
    require_whole_exchanges,
    restores_of_table,
    tables_of,
)
from pipeline_assets.operations.slice_restores import SliceRestore, snapshots_of
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.metadata import SliceFiles
from resources.ledger.changes import Changes

RELEASE_HINT = "Release it when the rollback has served its purpose (tidemark release)"


def roll_back(runtime: Runtime, request: RollbackRequest) -> list[SliceRestore]:
    """Hold the slices, then make each what it was; returns what was changed or only held.

    Held first, so that no load undoes it meanwhile; one commit per table. A rollback that died half way is completed by another
    one to the same state. Raises what `plan` raises, with nothing changed, and PublishConflictError where loads keep winning.
    """
    with ExitStack() as kept:
        return _roll_back_all(runtime, request, kept)


def _roll_back_all(runtime: Runtime, request: RollbackRequest, kept: ExitStack) -> list[SliceRestore]:
    restores = plan(runtime, request)
    request = after_its_run(runtime, request)
    tables = tables_of(runtime, request)
    # All tables at once: none goes back where another one cannot.
    for table in tables:
        _keep(runtime, table, request, [restore for restore in restores if restore.table == table.key], kept)
    held: dict[str, set[Slice]] = {}
    for restore in restores:
        held.setdefault(restore.table, set()).add(restore.key)
    held_before = _held_by_others(runtime, request)
    runtime.ledger.interventions.hold(held, request.reason, request.run_id)
    done: dict[tuple[str, Slice], SliceRestore] = {}
    for table in tables:
        try:
            done |= {
                (restore.table, restore.key): restore for restore in _roll_back(runtime, table, request, held, kept)
            }
        except LakehouseError as refusal:
            if not done:
                _hold_as_before(runtime, held, held_before, request, refusal)
            raise
    # A load that was about to commit when they were held may have published one of them since.
    for table in tables:
        if any(not restore.is_there for restore in restores_of_table(runtime, table, request)):
            done |= {(m.table, m.key): m for m in _roll_back(runtime, table, request, held, kept) if not m.is_there}
    return list(done.values())


def _held_by_others(runtime: Runtime, request: RollbackRequest) -> dict[tuple[str, Slice], str]:
    """Table and slice -> the reason why it was held before this rollback."""
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
    """Nothing is rolled back, so nothing stays held for it; what others held is never let go for a moment."""
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
    """What they go back to stays until it is live again, however old it is and whatever maintenance thinks of it."""
    snapshots = {restore.snapshot_id for restore in restores if restore.snapshot_id is not None}
    kept.enter_context(runtime.lakehouse.branches.keeping(table, snapshots, request.attempt))


def _roll_back(
    runtime: Runtime, table: Table, request: RollbackRequest, held: dict[str, set[Slice]], kept: ExitStack
) -> list[SliceRestore]:
    """One table; adds to `held` what it holds, to `kept` what it needs."""
    for attempt in range(runtime.settings.publish_attempts):
        base_id = sync_ledger(runtime, table, request.run_id)
        restores = restores_of_table(runtime, table, request)
        _keep(runtime, table, request, restores, kept)
        require_whole_exchanges(runtime, table, request, restores)
        # Those that a load published for the first time meanwhile are not held yet.
        held.setdefault(table.key, set()).update(restore.key for restore in restores)
        runtime.ledger.interventions.hold({table.key: held[table.key]}, request.reason, request.run_id)
        changing = [restore for restore in restores if not restore.is_there]
        try:
            _restore(runtime, table, request, base_id, restores, changing)
        except PublishConflictError as conflict:
            runtime.log(f"{table.key}: {conflict.reason}; looking at it again")
            if attempt == runtime.settings.publish_attempts - 1:
                raise
            continue
        runtime.log(f"{table.key}: {len(changing)} slices rolled back, {len(restores)} held")
        break
    return restores


def _restore(
    runtime: Runtime,
    table: Table,
    request: RollbackRequest,
    base_id: int,
    restores: Sequence[SliceRestore],
    changing: Sequence[SliceRestore],
) -> None:
    changes = Changes()
    files: Mapping[Slice, SliceFiles] = {}
    if changing:
        name = f"rollback_{request.attempt}"
        publication = runtime.lakehouse.restore(table, base_id, snapshots_of(changing), name, request.run_id)
        files = publication.files
        changes.head = (table.key, publication.snapshot_id, publication.parent_id)
        changes.publications.extend(
            PublicationRecord(
                table.key,
                restore.key,
                publication.snapshot_id,
                publication.parent_id,
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
            for restore in changing
        )
    for restore in restores:
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
            # An operator decided what it is, so that is what later changes are measured against.
            held = replace(held, baseline=Baseline(held.figures, content=str(held.digest)) if held.is_final else None)
        changes.slices.append(held)
    failpoint(Failpoint.BEFORE_LEDGER, table.key)
    runtime.ledger.record(changes, request.run_id)
