"""Roll slices of derived tables back to an earlier state and hold them until an operator releases them: metadata only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial

from pipeline_assets.domain.changes import Baseline, Cause, CauseKind
from pipeline_assets.domain.checks import a_reason
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
    """None where nothing was published by then."""
    snapshot_id: int | None = None
    """A kept snapshot with the target state; None where that is empty, or is the present one."""

    @property
    def digest(self) -> Digest:
        """The digest of the target state."""
        return self.target.digest_after if self.target is not None else EMPTY

    @property
    def is_there(self) -> bool:
        """Whether the slice already has the target state, so it is only held."""
        return self.digest == self.present.digest


def restores_of(
    runtime: Runtime,
    table: Table,
    slices: Iterable[Slice],
    to: datetime | int,
    own: Mapping[Slice, int] | None = None,
) -> list[SliceRestore]:
    """The restores of these slices, as RollbackRequest describes `to`, and `own` for single slices; raises LakehouseError."""
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
            # Other kept snapshots may belong to another rollback and vanish with it, so they come last.
            restore = replace(restore, snapshot_id=_kept_snapshot(restore, target, later, ancestry, kept))
        restores.append(restore)
    _require_rows(runtime, table, restores)
    return restores


def published_by(records: Sequence[PublicationRecord], to: datetime | int, now: datetime) -> int:
    """The number of a slice's publications (oldest first) that existed at that time, even if their clock was ahead."""
    if isinstance(to, datetime) and to >= now:
        return len(records)
    were = (
        record.number <= to if isinstance(to, int) else datetime.fromisoformat(record.published_at) <= to
        for record in records
    )
    return max((place for place, was in enumerate(were, 1) if was), default=0)


def _require_empty_then(
    runtime: Runtime,
    table: Table,
    key: Slice,
    first: PublicationRecord | None,
    to: datetime | int,
    ancestry: Mapping[int, datetime],
) -> None:
    """A missing record alone does not prove that the slice was empty."""
    if first is not None and first.digest_before == EMPTY and not first.cause.is_found:
        return
    # A kept snapshot shows the state before a change that was found afterwards.
    then = first.parent_id if first is not None and first.parent_id in ancestry else None
    if isinstance(to, datetime):
        then = next((snapshot_id for snapshot_id, at in ancestry.items() if at <= to), None)
    if then is None or key in runtime.lakehouse.slice_files(table, then, [key]):
        hint = "Choose a later time, or a publication that `tidemark history` shows"
        raise LakehouseError(f"{table.key} {key}", "what it held then is not on record", hint)


def _kept_snapshot(
    restore: SliceRestore, target: PublicationRecord, later: PublicationRecord | None, *kept: Collection[int]
) -> int:
    """A kept snapshot with the slice as `target` left it: its own, or the one before the next change."""
    candidates = [target.snapshot_id, *([later.parent_id] if later is not None else [])]
    for there in kept:
        for snapshot_id in candidates:
            if snapshot_id in there:
                return snapshot_id
    reason = f"the snapshot published at {target.published_at[:19]} has expired"
    hint = "Choose a later state, within rollback_days; or exclude the bad deliveries and load the day again"
    raise LakehouseError(f"{restore.table} {restore.key}", reason, hint)


def _require_rows(runtime: Runtime, table: Table, restores: Sequence[SliceRestore]) -> None:
    by_snapshot: dict[int, list[SliceRestore]] = {}
    for restore in restores:
        if restore.snapshot_id is not None:
            by_snapshot.setdefault(restore.snapshot_id, []).append(restore)
    for snapshot_id, of_snapshot in by_snapshot.items():
        files = runtime.lakehouse.slice_files(table, snapshot_id, {restore.key for restore in of_snapshot})
        for restore in of_snapshot:
            rows = files[restore.key].rows if restore.key in files else 0
            if rows != restore.digest.rows:
                reason = f"held {rows} rows then, but {restore.digest.rows} are on record"
                raise LakehouseError(f"{table.key} {restore.key}", reason, "Choose another state, and report it")


@dataclass(frozen=True)
class RollbackRequest:
    """Which slices to roll back, and to which state."""

    tables: tuple[str, ...]
    """Empty = all derived tables."""
    projects: tuple[str, ...]
    first: date
    last: date
    to: datetime | int
    """An aware time: the state published then. Or a publication's number: the state after its whole run, as commits span days."""
    reason: str
    run_id: str
    only: Mapping[str, Mapping[Slice, int]] | None = None
    """Table -> slice -> a publication's number: the state right after it, instead of `to`. None: all slices of the days."""

    @property
    def attempt(self) -> str:
        """The run's id as part of branch names."""
        return self.run_id.replace("-", "")


@dataclass(frozen=True)
class _Look:
    table: Table
    base_id: int
    restores: Sequence[SliceRestore]

    @property
    def changing(self) -> list[SliceRestore]:
        return [restore for restore in self.restores if not restore.is_there]

    @property
    def snapshots(self) -> dict[Slice, int | None]:
        return {restore.key: restore.snapshot_id for restore in self.changing}


def plan(runtime: Runtime, request: RollbackRequest, *, is_preview: bool = False) -> list[SliceRestore]:
    """The restores of a rollback, tables in topological order; writes only results of ledger syncs (none if `is_preview`).

    Raises UsageError for tables, days or a publication that cannot be served; LakehouseError where earlier files are gone,
    or where events that moved between a chosen and another day would be lost or doubled.
    """
    looks = _looks(runtime, _after_its_run(runtime, request), may_publish=not is_preview)
    return [restore for look in looks for restore in look.restores]


def _looks(runtime: Runtime, request: RollbackRequest, *, may_publish: bool = True) -> list[_Look]:
    """All tables are checked first: if one cannot go back, none does."""
    tables = _tables_of(runtime, request)
    a_reason("rollback", request.reason)
    looks = []
    for table in tables:
        base_id = sync_ledger(runtime, table, request.run_id, may_publish=may_publish)
        chosen = [
            key
            for key in runtime.ledger.slices(table.key, table.kind.projects(request.projects))
            if table.kind.slice_day(request.first) <= key.event_date <= request.last
            and (request.only is None or key in request.only.get(table.key, ()))
        ]
        own = (request.only or {}).get(table.key)
        looks.append(_Look(table, base_id, restores_of(runtime, table, chosen, request.to, own)))
    if not any(look.restores for look in looks):
        days, hint = f"{request.first} to {request.last}", "Check the days: tidemark history"
        raise UsageError(days, "no publication of these days is on record", hint)
    for look in looks:
        _require_whole_exchanges(runtime, request, look)
    for look in looks:
        runtime.lakehouse.changes.require_files(look.table, look.snapshots)
    return looks


def _after_its_run(runtime: Runtime, request: RollbackRequest) -> RollbackRequest:
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


def _tables_of(runtime: Runtime, request: RollbackRequest) -> list[Table]:
    """Shared dimensions only if the request names them."""
    is_there = {table.key for table in OPTIONAL_TABLES if runtime.ledger.head(table.key) is not None}
    known = {table.key: table for table in RESTORABLE if table not in OPTIONAL_TABLES or table.key in is_there}
    for name in request.tables:
        if name not in known:
            hint = (
                f"Raw keeps what was delivered: exclude bad deliveries. Others can be rolled back: {', '.join(known)}"
            )
            raise UsageError(name, "cannot be rolled back", hint)
    return [
        table for key, table in known.items() if (key in request.tables if request.tables else not table.kind.is_shared)
    ]


def _require_whole_exchanges(runtime: Runtime, request: RollbackRequest, look: _Look) -> None:
    """Events that moved between a chosen and another day since would be lost or doubled."""
    table, window = look.table, look.table.kind.exchange_days(runtime.settings)
    if not window:
        return
    chosen = {restore.key for restore in look.restores}
    known = runtime.ledger.slices(table.key, request.projects)
    near = {key for key in neighbourhood(chosen, window) if key in known} - chosen
    own = (request.only or {}).get(table.key)
    # Compare neighbouring days with their state right before the first change that is taken back.
    then = min(own.values()) if own else request.to
    beside = [restore for restore in restores_of(runtime, table, near, then) if not restore.is_there]
    if not beside or not look.changing:
        return
    head, both = runtime.lakehouse.head(table), [*look.changing, *beside]
    then_in = ((restore.key, restore.snapshot_id) for restore in both if restore.snapshot_id is not None)
    states = {THEN: places_at(table, then_in), NOW: places_at(table, ((restore.key, head) for restore in both))}
    found = [files_of(runtime, states[state]) for state in range(len(states))]
    broken: Counter[Slice] = sum(each_range(runtime, found, partial(torn, chosen, window)), Counter())
    if broken:
        days = ", ".join(f"{key.event_date} {key.project_id} ({count} events)" for key, count in sorted(broken.items()))
        reason = f"events have moved between these days and {days} since then; the rollback would lose or double them"
        raise LakehouseError(f"{table.key} {request.first} to {request.last}", reason, "Roll those days back as well")


RELEASE_HINT = "Release it when the rollback has served its purpose (tidemark release)"


def roll_back(runtime: Runtime, request: RollbackRequest) -> list[SliceRestore]:
    """Hold the slices against loads, then restore all tables in one publish; returns the restores, also of slices only held.

    After a crash, another call completes the rollback to the same state. Raises the errors of `plan` with nothing changed, and
    PublishConflictError where loads keep winning.
    """
    request, decisions = _after_its_run(runtime, request), runtime.ledger.interventions
    before: dict[tuple[str, Slice], str] = {}
    done: dict[tuple[str, Slice], SliceRestore] = {}
    held: dict[str, set[Slice]] = {}
    conflicts = 0
    with ExitStack() as kept:
        # A load that was about to commit during the hold may have published a slice since, so the last look finds nothing.
        while True:
            try:
                looks = _looks(runtime, request)
                if done and not any(look.changing for look in looks):
                    break
                for look in looks:
                    snapshots = {one.snapshot_id for one in look.restores if one.snapshot_id is not None}
                    kept.enter_context(runtime.lakehouse.branches.keeping(look.table, snapshots, request.attempt))
                if not held:
                    before = {
                        (hold.table, hold.key): hold.reason
                        for hold in decisions.all_holds([*request.projects, ALL_PROJECTS])
                        if hold.released_at is None and hold.run_id != request.run_id
                    }
                for look in looks:
                    held.setdefault(look.table.key, set()).update(restore.key for restore in look.restores)
                decisions.hold(held, request.reason, request.run_id)
                failpoint(Failpoint.AFTER_LOOK)
                _publish(runtime, request, looks)
            except PublishConflictError as conflict:
                runtime.log(f"{conflict.subject}: {conflict.reason}; looking at it again")
                conflicts += 1
                if conflicts == runtime.settings.publish_attempts:
                    raise
                continue
            except LakehouseError as refusal:
                if held and not _shows_any(runtime, held, request):
                    _hold_as_before(runtime, held, before, request, refusal)
                raise
            for look in looks:
                runtime.log(f"{look.table.key}: {len(look.changing)} slices rolled back, {len(look.restores)} held")
                fresh = {(one.table, one.key): one for one in look.restores if not (done and one.is_there)}
                done = {**done, **fresh}
    return list(done.values())


def _shows_any(runtime: Runtime, tables: Iterable[str], request: RollbackRequest) -> bool:
    """Whether main already shows a part of this rollback: without one transaction, earlier tables may have gone back."""
    return any(
        record.run_id == request.run_id and record.cause.kind is CauseKind.ROLLBACK
        for table in tables
        for record in runtime.ledger.publications(table)
    )


def _hold_as_before(
    runtime: Runtime,
    held: Mapping[str, Collection[Slice]],
    before: Mapping[tuple[str, Slice], str],
    request: RollbackRequest,
    refusal: LakehouseError,
) -> None:
    """Slices that others held stay held."""
    decisions = runtime.ledger.interventions
    alone = {table: [key for key in keys if (table, key) not in before] for table, keys in held.items()}
    decisions.release(alone, f"the rollback was refused: {refusal.reason}", request.run_id)
    for table, keys in held.items():
        for key in keys:
            if (table, key) in before:
                decisions.hold({table: [key]}, before[table, key], request.run_id)


def _publish(runtime: Runtime, request: RollbackRequest, looks: Sequence[_Look]) -> None:
    restoring = runtime.lakehouse.changes.restoring
    changes = [restoring(look.table, look.base_id, look.snapshots) for look in looks if look.changing]
    files = {change.table.key: change.files_by_slice for change in changes}
    steps = [(look.table.key, _changes(runtime.ledger, request, look, files.get(look.table.key, {}))) for look in looks]
    publisher = publisher_of(runtime.settings, runtime.lakehouse, runtime.ledger)
    publisher.publish(PublishRequest(request.run_id, f"rollback_{request.attempt}", changes, steps, minds_holds=False))


def _changes(ledger: Ledger, request: RollbackRequest, look: _Look, files: Mapping[Slice, SliceFiles]) -> Changes:
    table, changes = look.table, Changes()
    if look.changing:
        changes.head = (table.key, look.base_id, look.base_id)
    for restore in look.restores:
        target, present = restore.target, restore.present
        inputs = target.input_state if target is not None else None
        code, own = (target.code_version, target.figures) if target is not None else (None, None)
        if not restore.is_there:
            of = (table.key, restore.key, look.base_id, look.base_id, present.digest, restore.digest)
            cause, built = Cause.of(CauseKind.ROLLBACK), (inputs, code, request.reason, own)
            publication = PublicationRecord(*of, cause, request.run_id, *built)
            if target is not None:
                publication = replace(publication, pins=target.pins, settings=target.settings)
            changes.publications.append(publication)
        held = replace(present, verdict=Verdict.HELD, reason=f"held: {request.reason}", hint=RELEASE_HINT)
        if restore.key in files:
            figures = own or {"rows": restore.digest.rows}
            # An operator chose this state, so it is the baseline for later changes. It holds the inputs of its own run.
            is_settled = held.is_final or held.baseline is not None
            since = ledger.began(target) if target else None
            held = replace(
                held,
                digest=restore.digest,
                file_hash=files[restore.key].file_hash,
                evaluations=(),
                refused_evaluations=(),
                input_state=inputs,
                code_version=code,
                figures=figures,
                rejection=None,
                baseline=Baseline(figures, content=str(restore.digest), since=since) if is_settled else None,
            )
        changes.slices.append(held)
    return changes
