"""Roll slices of derived tables back to an earlier state and hold them until an operator releases them: metadata only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial

from pipeline_assets.domain.changes import Baseline, Cause, CauseKind
from pipeline_assets.domain.errors import LakehouseError, PublishConflictError, UsageError
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Verdict, neighbourhood
from pipeline_assets.load.file_tasks import each_range, files_of, places_at
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import OPTIONAL_TABLES, RESTORABLE
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.keys import NOW, THEN, torn
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.metadata import SliceFiles
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from resources.publishing import PublishRequest, publisher_of


@dataclass(frozen=True)
class SliceRestore:
    """One slice with its present and its target state."""

    table: str
    key: Slice
    present: SliceRecord
    target: PublicationRecord | None
    """The publication that made the target state; None where nothing was published by then."""
    snapshot_id: int | None = None
    """A kept snapshot that holds the target state; None where that state is empty, or is the present one."""

    @property
    def digest(self) -> Digest:
        """The digest of the target state."""
        return self.target.digest_after if self.target is not None else EMPTY

    @property
    def is_there(self) -> bool:
        """Whether the slice already has the target state, so that it is only held."""
        return self.digest == self.present.digest


def restores_of(
    runtime: Runtime,
    table: Table,
    slices: Iterable[Slice],
    to: datetime | int,
    own: Mapping[Slice, int] | None = None,
) -> list[SliceRestore]:
    """The restores of these slices of a table; `to` and `own` (for single slices) as in RollbackRequest.

    Raises LakehouseError where a target state is unknown.
    """
    wanted = set(slices)
    published: dict[Slice, list[PublicationRecord]] = {key: [] for key in wanted}
    for record in runtime.ledger.publications(table.key):
        if record.key in wanted:
            published[record.key].append(record)
    present = runtime.ledger.slices(table.key, None, {key.event_date for key in wanted})
    ancestry = runtime.lakehouse.ancestry(table)
    kept = runtime.lakehouse.branches.kept(table)
    now = datetime.now(UTC)
    restores = []
    for key in sorted(wanted):
        then = to if own is None else own.get(key, to)
        count = published_by(published[key], then, now)
        target = published[key][count - 1] if count else None
        later = published[key][count] if count < len(published[key]) else None
        restore = SliceRestore(table.key, key, present[key], target)
        if not restore.is_there and target is None:
            _require_empty_then(runtime, table, key, later, then, ancestry)
        if not restore.is_there and target is not None and target.digest_after != EMPTY:
            restore = replace(restore, snapshot_id=_kept_snapshot(restore, target, later, ancestry, kept))
        restores.append(restore)
    _require_rows(runtime, table, restores)
    return restores


def published_by(records: Sequence[PublicationRecord], to: datetime | int, now: datetime) -> int:
    """How many of a slice's publications (oldest first) existed at that time.

    No publication counts as later than one that followed it, or as later than now, even if its clock was ahead.
    """
    if isinstance(to, int):
        return max((place for place, record in enumerate(records, 1) if record.number <= to), default=0)
    if to >= now:
        return len(records)
    return max(
        (place for place, record in enumerate(records, 1) if datetime.fromisoformat(record.published_at) <= to),
        default=0,
    )


def _require_empty_then(
    runtime: Runtime,
    table: Table,
    key: Slice,
    first: PublicationRecord | None,
    to: datetime | int,
    ancestry: Mapping[int, datetime],
) -> None:
    """Raise LakehouseError unless the slice is known to have been empty; a missing record alone does not prove that."""
    if first is not None and first.digest_before == EMPTY and not first.cause.is_found:
        return
    # A change found afterwards does not show the state before it; a kept snapshot from that time does.
    if isinstance(to, datetime):
        then = next((snapshot_id for snapshot_id, at in ancestry.items() if at <= to), None)
    else:
        then = first.parent_id if first is not None and first.parent_id in ancestry else None
    if then is not None and key not in runtime.lakehouse.slice_files(table, then, [key]):
        return
    raise LakehouseError(
        f"{table.key} {key}",
        "what it held then is not on record",
        "Choose a later time, or a publication that `tidemark history` shows",
    )


def _kept_snapshot(
    restore: SliceRestore,
    target: PublicationRecord,
    later: PublicationRecord | None,
    ancestry: Collection[int],
    kept: Collection[int],
) -> int:
    """A kept snapshot with the slice as `target` left it: its own, or the one before the next change."""
    candidates = [target.snapshot_id, later.parent_id if later is not None else None]
    # Main's history first: other kept snapshots may belong to another rollback and vanish with it.
    for there in (ancestry, kept):
        for snapshot_id in candidates:
            if snapshot_id is not None and snapshot_id in there:
                return snapshot_id
    raise LakehouseError(
        f"{restore.table} {restore.key}",
        f"the snapshot published at {target.published_at[:19]} has expired",
        "Choose a later state, within rollback_days; or exclude the bad deliveries and load the day again",
    )


def snapshots_of(restores: Iterable[SliceRestore]) -> dict[Slice, int | None]:
    """Slice to change -> the snapshot whose files it gets; None for no files."""
    return {restore.key: restore.snapshot_id for restore in restores if not restore.is_there}


def _require_rows(runtime: Runtime, table: Table, restores: Sequence[SliceRestore]) -> None:
    """Raise LakehouseError unless the earlier files hold the recorded number of rows, by metadata."""
    by_snapshot: dict[int, list[SliceRestore]] = {}
    for restore in restores:
        if restore.snapshot_id is not None:
            by_snapshot.setdefault(restore.snapshot_id, []).append(restore)
    for snapshot_id, of_snapshot in by_snapshot.items():
        files = runtime.lakehouse.slice_files(table, snapshot_id, {restore.key for restore in of_snapshot})
        for restore in of_snapshot:
            rows = files[restore.key].rows if restore.key in files else 0
            if rows != restore.digest.rows:
                raise LakehouseError(
                    f"{table.key} {restore.key}",
                    f"held {rows} rows then, but {restore.digest.rows} are on record",
                    "Choose another state, and report it",
                )


@dataclass(frozen=True)
class RollbackRequest:
    """Which slices to roll back, and to which state."""

    tables: tuple[str, ...]
    """Keys of derived tables; empty = all of them."""
    projects: tuple[str, ...]
    first: date
    last: date
    to: datetime | int
    """An aware time: the state published at that time. Or the number of a publication: the state right after its run.

    A run's publications belong together: one commit may move events from one day to another, and aggregates follow it.
    """
    reason: str
    run_id: str
    only: Mapping[str, Mapping[Slice, int]] | None = None
    """Table -> slice to roll back -> number of a publication: exactly the state right after it, instead of `to`.

    None to roll back all of the days.
    """

    @property
    def attempt(self) -> str:
        """The run's id as part of branch names."""
        return self.run_id.replace("-", "")


def plan(runtime: Runtime, request: RollbackRequest, *, is_preview: bool = False) -> list[SliceRestore]:
    """The restores of a rollback, tables in topological order; writes nothing but the results of ledger syncs.

    `is_preview`: these may publish nothing.
    Raises UsageError for tables, days or a publication that cannot be served. Raises LakehouseError where earlier files
    are gone, or where events that moved between a chosen and another day would be lost or doubled.
    """
    tables = tables_of(runtime, request)
    if not request.reason.strip():
        raise UsageError("rollback", "needs a reason", "Say why; it stays on record")
    for table in tables:
        sync_ledger(runtime, table, request.run_id, may_publish=not is_preview)
    request = after_its_run(runtime, request)
    restores = [restore for table in tables for restore in restores_of_table(runtime, table, request)]
    if not restores:
        raise UsageError(
            f"{request.first} to {request.last}",
            "no publication of these days is on record",
            "Check the days: tidemark history",
        )
    for table in tables:
        require_whole_exchanges(
            runtime, table, request, [restore for restore in restores if restore.table == table.key]
        )
    for table in tables:
        chosen = snapshots_of(restore for restore in restores if restore.table == table.key)
        runtime.lakehouse.changes.require_files(table, chosen)
    return restores


def after_its_run(runtime: Runtime, request: RollbackRequest) -> RollbackRequest:
    """The request with `to` moved to the last publication of the same run, or of the same commit where no run is known."""
    if not isinstance(request.to, int) or request.only is not None:
        return request
    publications = runtime.ledger.publications()
    named = next((record for record in publications if record.number == request.to), None)
    if named is None:
        raise UsageError(f"publication {request.to}", "is not on record", "`tidemark history` lists them")

    def belongs(record: PublicationRecord) -> bool:
        if named.run_id is not None:
            return record.run_id == named.run_id
        return (record.table, record.snapshot_id) == (named.table, named.snapshot_id)

    return replace(request, to=max(record.number for record in publications if belongs(record)))


def tables_of(runtime: Runtime, request: RollbackRequest) -> list[Table]:
    """The tables to roll back, in topological order; raises UsageError for one that cannot be.

    Dimensions belong to all projects, so they are included only where the request names them.
    """
    is_there = {table.key for table in OPTIONAL_TABLES if runtime.ledger.head(table.key) is not None}
    known = {table.key: table for table in RESTORABLE if table not in OPTIONAL_TABLES or table.key in is_there}
    for name in request.tables:
        if name not in known:
            raise UsageError(
                name,
                "cannot be rolled back",
                f"Raw keeps what was delivered: exclude bad deliveries. Others can be rolled back: {', '.join(known)}",
            )
    return [
        table for key, table in known.items() if (key in request.tables if request.tables else not table.kind.is_shared)
    ]


def restores_of_table(runtime: Runtime, table: Table, request: RollbackRequest) -> list[SliceRestore]:
    """The restores of the chosen slices of a table, after a ledger sync; raises LakehouseError where a state is unknown."""
    sync_ledger(runtime, table, request.run_id)
    chosen = [
        key
        for key in runtime.ledger.slices(table.key, table.kind.projects(request.projects))
        if table.kind.slice_day(request.first) <= key.event_date <= request.last
        and (request.only is None or key in request.only.get(table.key, ()))
    ]
    return restores_of(runtime, table, chosen, request.to, (request.only or {}).get(table.key))


def require_whole_exchanges(
    runtime: Runtime, table: Table, request: RollbackRequest, restores: Sequence[SliceRestore]
) -> None:
    """Raise LakehouseError if events moved between a chosen and another day since: they would be lost or doubled."""
    window = table.kind.exchange_days(runtime.settings)
    if not window:
        return
    chosen = {restore.key for restore in restores}
    known = runtime.ledger.slices(table.key, request.projects)
    near = {key for key in neighbourhood(chosen, window) if key in known} - chosen
    own = (request.only or {}).get(table.key)
    # Neighbouring days are compared with their state right before the first change that is taken back.
    then = min(own.values()) if own else request.to
    beside = [restore for restore in restores_of(runtime, table, near, then) if not restore.is_there]
    changing = [restore for restore in restores if not restore.is_there]
    # A neighbouring day that has not changed since exchanged no events.
    if not beside or not changing:
        return
    head, both = runtime.lakehouse.head(table), [*changing, *beside]
    then_in = ((restore.key, restore.snapshot_id) for restore in both if restore.snapshot_id is not None)
    states = {THEN: places_at(table, then_in), NOW: places_at(table, ((restore.key, head) for restore in both))}
    found = [files_of(runtime, states[state]) for state in range(len(states))]
    broken: Counter[Slice] = sum(each_range(runtime, found, partial(torn, chosen, window)), Counter())
    if broken:
        days = ", ".join(f"{key.event_date} {key.project_id} ({count} events)" for key, count in sorted(broken.items()))
        raise LakehouseError(
            f"{table.key} {request.first} to {request.last}",
            f"events have moved between these days and {days} since then; the rollback would lose or double them",
            "Roll those days back as well",
        )


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
