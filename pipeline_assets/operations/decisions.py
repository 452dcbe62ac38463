"""Exclude deliveries, include them again, and release held slices: recorded here, applied by loads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.checks import a_reason
from pipeline_assets.domain.deliveries import BatchKey, Delivery, dimension_batch
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.records import Exclusion
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Source, neighbourhood
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.formats.snapshot_lines import SnapshotPart, folder_of_intervals, parse_name
from pipeline_assets.load.deliveries.snapshots import sha256_of
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import DIMENSIONS, OPTIONAL_TABLES, RESTORABLE, SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from resources.landing.bucket import Listed
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger


def object_named(key: str, settings: Settings) -> tuple[BatchKey, Table]:
    """The batch (of a dimension: its substitute) and the table of an object, which need not exist; raises UsageError."""
    for dimension in DIMENSIONS:
        for table in dimension.tables:
            folder = dimension.name if table == dimension.snapshot else folder_of_intervals(dimension.name)
            named = parse_name(folder, key) if table.reads_landing(settings) else None
            if named is not None and named[1] is not SnapshotPart.MARKER:
                return dimension_batch(named[0]), table
    prefixes = {source.prefix(project): (source, project) for project in settings.projects for source in Source}
    of = prefixes.get(key.partition("/")[0])
    delivery = EXPORT_FORMAT.keys(settings.marker_pattern).parse(*of, key, "", 0) if of is not None else None
    if not isinstance(delivery, Delivery):
        reason = "is not the key of a delivery of a configured project"
        raise UsageError(key, reason, "Copy it from landing or from `explain`")
    return delivery.batch, RAW_TABLES[delivery.batch.source]


def exclude(
    runtime: Runtime, reasons: Mapping[str, str], request: LoadRequest, *, even_if_gone: bool
) -> list[Exclusion]:
    """Record exclusions of every known version of these objects (object key -> why); returns the new ones.

    An exclusion names bytes, so an object that no load has read is read first. Raises UsageError, with nothing recorded, for a
    key that is not a delivery, is unknown or outside this run, or cannot be read; also for an object that landing lost, unless
    `even_if_gone`, because it could not be restored.
    """
    exclusions = [
        exclusion
        for key, reason in sorted(reasons.items())
        for exclusion in _versions(runtime, key, reason, request, even_if_gone)
    ]
    fresh = runtime.ledger.interventions.exclude(exclusions, request.run_id)
    for exclusion in fresh:
        runtime.log(f"excluded {exclusion.object_key} ({exclusion.etag}): {exclusion.reason}")
    return fresh


def _versions(runtime: Runtime, key: str, reason: str, request: LoadRequest, even_if_gone: bool) -> list[Exclusion]:
    batch, table = _named_in(request, key, reason, runtime.settings)
    day, is_delivery = batch.arrival_date, table.key in SOURCE_OF_TABLE
    # Etag -> sha256 of the bytes; None if published but gone.
    versions: dict[str, str | None] = {}
    entries: Sequence[Delivery | Listed]
    if is_delivery:
        of = (batch.source, [batch.project_id], day, day)
        records = [runtime.ledger.deliveries(*of, is_accepted=is_accepted).get(key) for is_accepted in (True, False)]
        versions |= {record.etag: record.sha256 for record in records if record is not None}
        entries = runtime.landing.list(*of).deliveries
    else:
        record = runtime.ledger.slices(table.key, [ALL_PROJECTS]).get(Slice(table.kind.slice_day(day), ALL_PROJECTS))
        state = record.input_state if record is not None else None
        name, _, of_object = (state.delivered or "" if state is not None else "").partition(" ")
        versions |= {of_object.partition(" ")[0]: None} if name == key and of_object else {}
        entries = list(runtime.landing.list_folder(key.rpartition("/")[0]))
    listed = next((entry for entry in entries if entry.key == key), None)
    if listed is not None and versions.get(listed.etag) is None:
        versions[listed.etag] = hash_of(runtime.landing, key, listed.etag)
    if listed is None and not versions:
        raise UsageError(key, "is neither in landing nor on record", "Copy the key from landing or from `explain`")
    if listed is None and not even_if_gone:
        hint = "Put it back into landing first, or exclude it for good (--even-if-gone, exclude_even_if_gone in run config)"
        raise UsageError(key, "landing no longer holds it, so its rows could not be restored", hint)
    known = {etag: sha256 for etag, sha256 in versions.items() if sha256 is not None or not is_delivery}
    if not known:
        what = (
            "is no longer in landing, and the ledger does not know the bytes of its rows, so no version can be excluded"
        )
        raise UsageError(key, what, "Put it back into landing, load the day, then exclude it")
    return [Exclusion(batch, key, etag, sha256, recordable(reason)) for etag, sha256 in known.items()]


def hash_of(landing: LandingStore, key: str, etag: str) -> str:
    """sha256 of the bytes that landing holds; raises UsageError where they cannot be read."""
    try:
        return sha256_of(landing, key, etag)
    except TidemarkError as error:
        reason = f"cannot be read, so its bytes cannot be excluded: it {error.reason}"
        raise UsageError(key, reason, "Exclude it again once it can be read; nothing was recorded") from error


def lift(runtime: Runtime, reasons: Mapping[str, str], request: LoadRequest) -> None:
    """Record inclusions (object key -> why), or raise UsageError for a key that was never excluded or is not in this run."""
    decisions, in_force = runtime.ledger.interventions, {}
    known = {one.object_key for one in decisions.all_exclusions((*request.projects, ALL_PROJECTS))} if reasons else ()
    for key, reason in sorted(reasons.items()):
        batch, _ = _named_in(request, key, reason, runtime.settings)
        day = batch.arrival_date
        if key not in known:
            raise UsageError(key, "was never excluded", "`tidemark exclusions` lists what is")
        in_force[key] = decisions.exclusions(batch.source, [batch.project_id], day, day).get(key)
    for key, exclusions in in_force.items():
        if exclusions:
            decisions.lift(exclusions, recordable(reasons[key]), request.run_id)
            runtime.log(f"included {key} again: {reasons[key]}")


def _named_in(request: LoadRequest, key: str, reason: str, settings: Settings) -> tuple[BatchKey, Table]:
    a_reason(key, reason)
    batch, table = object_named(key, settings)
    is_delivery = table.key in SOURCE_OF_TABLE
    if batch.arrival_date not in request.days:
        what = "arrived on" if is_delivery else "is of"
        raise UsageError(key, f"{what} {batch.arrival_date}, which this run does not load", "Choose that partition")
    if table.key not in request.tables:
        what = f"one of the {batch.source.value} exports" if is_delivery else "an object of a dimension"
        raise UsageError(key, f"is {what}, which this run does not load", "Choose the job that loads them")
    return batch, table


def touched_slices(ledger: Ledger, settings: Settings, keys: Collection[str]) -> set[Slice]:
    """Slices that an exclusion or inclusion of these objects may change: those of their batches, and their neighbours."""
    touched: set[Slice] = set()
    for key in keys:
        batch, table = object_named(key, settings)
        day = batch.arrival_date
        if table.key not in SOURCE_OF_TABLE:
            touched.add(Slice(day, ALL_PROJECTS))
            continue
        held = ledger.batch_days(batch.source, [batch.project_id], day, day).get(batch, {})
        touched |= neighbourhood((Slice(d, batch.project_id) for d in (*held, day)), settings.dedupe_window_days)
    return touched


@dataclass(frozen=True)
class Held:
    """A held slice, and the effect of releasing it."""

    table: str
    key: Slice
    reason: str
    digest: Digest
    digest_before: Digest
    then: str


def preview(
    ledger: Ledger,
    settings: Settings,
    tables: Sequence[str],
    projects: Sequence[str],
    first: date,
    last: date,
    now: datetime,
    *,
    is_load_next: bool,
) -> list[Held]:
    """The held slices of these tables (empty = all) and days, else UsageError; `is_load_next`: a load of these days follows."""
    reasons = {
        (table.key, key): reason
        for table in RESTORABLE
        if (table.key in tables if tables else not table.kind.is_shared)
        for key, reason in sorted(ledger.interventions.holds(table.key, table.kind.projects(projects)).items())
        if table.kind.slice_day(first) <= key.event_date <= last
    }
    if not reasons:
        raise UsageError(f"{first} to {last}", "nothing is held there", "`tidemark status` shows what is")
    held_tables = {name for name, _ in reasons}
    concerned = [table for table in RESTORABLE if table not in OPTIONAL_TABLES or table.key in held_tables]
    facts = Facts.read(ledger, settings, {key for _, key in reasons}, concerned, now).releasing(reasons)
    published = ledger.publications()
    held: list[Held] = []
    released: dict[tuple[str, Slice], Todo] = {}
    for table in concerned:
        slices = {key for _, key in reasons if (key.project_id == ALL_PROJECTS) is table.kind.is_shared}
        own = replace(facts, slices=frozenset(slices))
        plans = {plan.key: plan for plan in decide(own, table, slices if is_load_next else (), {}, now)}
        for key in (key for name, key in reasons if name == table.key):
            plan, record = plans.get(key), facts.records[table.key].get(key)
            followed = {upstream: released[upstream, key] for upstream in table.upstream if (upstream, key) in released}
            then = "becomes what landing holds, with the next load of the day"
            then = then if table.reads_landing(settings) else _then(plan, followed)
            if plan is not None:
                released[table.key, key] = plan.todo
            present = before = record.digest if record is not None else EMPTY
            for one in published:
                if (one.table, one.key, one.cause.kind) == (table.key, key, CauseKind.ROLLBACK):
                    before = one.digest_before
            held.append(Held(table.key, key, reasons[table.key, key], present, before, then))
    return held


def release(ledger: Ledger, held: Sequence[Held], reason: str, run_id: str) -> None:
    """Release these slices; the next load, or `heal`, builds those that are stale. Raises UsageError without a reason."""
    a_reason("release", reason)
    slices: dict[str, list[Slice]] = {}
    for held_slice in held:
        slices.setdefault(held_slice.table, []).append(held_slice.key)
    ledger.interventions.release(slices, reason, run_id)


_THEN: Mapping[Todo, str] = {
    Todo.REBUILD: "is built again ({cause})",
    Todo.CHECK: "is compared with the days near it, and built again where they share events",
    Todo.KEEP: "stays as it is: it matches its inputs",
    Todo.KEEP_REFUSED: "stays as it is: the checks refused what its inputs give",
    Todo.WAIT: "waits: {reason}",
    Todo.WAIT_TIED: "waits for days that it shares events with",
    Todo.REFUSE: "is refused: {reason}",
}


def _then(plan: SlicePlan | None, followed: Mapping[str, Todo]) -> str:
    upstream, todo = next(
        ((name, todo) for name, todo in followed.items() if todo not in (Todo.KEEP, Todo.HOLD)), ("", Todo.KEEP)
    )
    if upstream:
        follows = {Todo.REBUILD: "which is built again", Todo.CHECK: "if that is built again"}
        return f"follows {upstream}, {follows[todo]}" if todo in follows else f"waits for {upstream}"
    if plan is None:
        return "stays as it is: its inputs are not on record"
    if plan.is_outdated and plan.todo not in (Todo.REBUILD, Todo.WAIT, Todo.REFUSE):
        return "stays as it is: another version of the code built it, and the next load of the day builds it again"
    return _THEN[plan.todo].format(cause=plan.cause, reason=plan.reason)
