"""Choose the slices of a rebuild and compute outdated ones into green branches, chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline_assets.domain.changes import Baseline, Cause, CauseKind, explain_change
from pipeline_assets.domain.checks import Acceptances, Check, a_reason
from pipeline_assets.domain.days import days_between, parse_day, stretches
from pipeline_assets.domain.errors import PublishConflictError, UsageError, tries
from pipeline_assets.domain.rebuilds import NOT_REPORTED, RebuildRecord, RebuildState, RebuiltSlice, SliceDifference
from pipeline_assets.domain.records import Head, InputState, SliceRecord
from pipeline_assets.domain.requests import Rebuild
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict, neighbourhood
from pipeline_assets.load.build.builder import StagedSlices, TablePlan
from pipeline_assets.load.build.rebuild import builder_of
from pipeline_assets.load.build.refined_audit import changed_keys
from pipeline_assets.load.build.verdicts import blocked_by, judge
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts, Match, cause_of, compare, judging
from pipeline_assets.tables.registry import DERIVED, downstream_of, table_by_key
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.metadata import NO_FILES, SliceFiles
from resources.ledger.store import Ledger

GreenSlices = Mapping[str, Mapping[Slice, RebuiltSlice]]
_PIN_TRIES, _FIRST_PAUSE_SECONDS = 8, 0.1
IsLive = Callable[[str], bool | None]


def begin(runtime: Runtime, request: Rebuild, who: str, run_id: str, is_live: IsLive) -> RebuildRecord:
    """Begin or continue the rebuild of exactly these slices; raises UsageError, also where another rebuild or run has some."""
    asked = asked_for(request, runtime.settings, who, run_id)
    tables = tables_of(asked.tables)
    rebuild = runtime.ledger.rebuilds.begin(asked)
    if rebuild.run_id != run_id or rebuild.reason != asked.reason:
        runtime.log(f"rebuild {rebuild.number} of these days is open since {rebuild.started_at[:16]}; going on with it")
        if rebuild.reason != asked.reason:
            runtime.log(f"rebuild {rebuild.number}: its reason stays: {rebuild.reason}")
    if rebuild.state is RebuildState.SWAPPING:
        raise rebuild.refused("is being swapped in", rebuild.next_of_swap.capitalize())
    below = dict.fromkeys(other.key for table in tables for other in downstream_of(table.key))
    left = [name for name in below if name not in asked.tables]
    if left:
        runtime.log(
            f"rebuild {rebuild.number}: {', '.join(left)} follow from what is rebuilt and are no part of it: the first load "
            "after the swap builds them, within the bounds on changes; to report and accept them too, rebuild them as well"
        )
    return claimed(runtime.ledger, rebuild, run_id, is_live)


def asked_for(request: Rebuild, settings: Settings, who: str, run_id: str | None = None) -> RebuildRecord:
    """The rebuild that a start would begin, without a number; raises UsageError and SettingsError."""
    first, last = request.bounds(parse_day(request.first), parse_day(request.last))
    projects = settings.require_projects(tuple(request.projects))
    tables = tuple(table.key for table in tables_of(request.tables))
    reason = a_reason("reason", request.reason or "")
    return RebuildRecord(0, tables, first, last, projects, reason, who, RebuildState.BUILDING, run_id)


def claimed(ledger: Ledger, rebuild: RebuildRecord, run_id: str, is_live: IsLive) -> RebuildRecord:
    """Claim the rebuild for this run; raises UsageError where another run works on it."""
    if rebuild.run_id == run_id:
        return rebuild
    if rebuild.run_id is not None and is_live(rebuild.run_id.replace("-", "")):
        raise rebuild.refused(f"run {rebuild.run_id} works on it", "Wait until it is done, or stop it: tidemark status")
    return ledger.rebuilds.claim(rebuild, run_id)


def tables_of(names: Sequence[str]) -> tuple[Table, ...]:
    """Derived tables in topological order, all where none is named; raises UsageError for one that is not built."""
    known = {table.key: table for table in DERIVED}
    for name in names:
        if name not in known:
            hint = f"Raw keeps what was delivered: load its days. Others can be rebuilt: {', '.join(known)}"
            raise UsageError(name, "is not built, so it cannot be rebuilt", hint)
    return tuple(table for key, table in known.items() if not names or key in names)


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
        main, count = MainAsRead(heads, beside), 0
        for chunk in stretches(days_between(rebuild.first, rebuild.last), runtime.settings.days_per_run):
            slices, built = {key for key in rebuild.slices if key.event_date in chunk}, 0
            try:
                for table in tables:
                    with lakehouse_failures(table.key):
                        built += _build_table(runtime, rebuild, table, slices, now)
            finally:
                runtime.folds.release()
            runtime.log(f"rebuild {rebuild.number}: {chunk[0]} to {chunk[-1]}: {built} slices built beside main")
            count += built
            failpoint(Failpoint.AFTER_CHUNK)
        if not count:
            break
    return main


def digests_beside(runtime: Runtime, rebuild: RebuildRecord, table: Table) -> dict[tuple[str, Slice], Digest]:
    """Main's digests of a rebuild's slices and their neighbours: (table, slice) -> digest; none where slices exchange no rows."""
    window = table.kind.exchange_days(runtime.settings)
    if not window:
        return {}
    near = neighbourhood(rebuild.slices, window)
    main = runtime.ledger.slices(table.key, rebuild.projects, {key.event_date for key in near})
    return {(table.key, key): _digest(main.get(key)) for key in near}


def _digest(record: SliceRecord | None) -> Digest:
    return record.digest if record is not None else EMPTY


def _build_table(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, slices: Collection[Slice], now: datetime
) -> int:
    """Build the outdated of these slices; returns how many. Raises PublishConflictError where main keeps moving."""
    green = runtime.ledger.rebuilds.slices(rebuild)
    rebuilt, near = green[table.key], neighbourhood(slices, table.kind.exchange_days(runtime.settings))
    for _ in tries(_PIN_TRIES, _FIRST_PAUSE_SECONDS):
        base_id = sync_ledger(runtime, table, rebuild.run_id or "")
        pins = {name: _pin(runtime, rebuild, name) for name in table.upstream}
        facts = _green_facts(runtime, rebuild, table, near, green, now)
        on_main = {table.key: base_id} | {name: pin for name, pin in pins.items() if name not in rebuild.tables}
        heads = {name: (runtime.ledger.head(name), runtime.lakehouse.head(table_by_key(name))) for name in on_main}
        if all(heads[name] == (Head(pin), pin) for name, pin in on_main.items()):
            break
    else:
        raise PublishConflictError(table.key, "what it is built from kept changing", "Start the rebuild again later")
    head = runtime.lakehouse.branches.head(table, rebuild.branch)
    files = {} if head is None else runtime.lakehouse.slice_files(table, head, near & rebuilt.keys())
    plans = decide(facts, table, slices, _accepted(rebuild, table), now)
    computed = {
        plan.key
        for plan in plans
        if _is_computed(runtime, table, rebuilt.get(plan.key), plan, files.get(plan.key, NO_FILES))
    }

    def beside(key: Slice, also: Collection[Slice] = ()) -> str:
        return states_beside(runtime.settings, table, key, computed | {*also}, facts.records[table.key])

    to_build: list[SlicePlan] = []
    left_out: list[RebuiltSlice] = []
    for plan in (plan for plan in plans if plan.key in slices):
        known, is_computed = rebuilt.get(plan.key), plan.key in computed
        if plan.todo in (Todo.HOLD, Todo.WAIT):
            one = _left_out(table, plan)
            if known is None or known.is_built or known.record.reason != one.record.reason:
                left_out.append(one)
        elif known is None and all(
            _digest(facts.records[name].get(plan.key)) == EMPTY for name in (table.key, *table.upstream)
        ):
            continue
        elif known is None or not (is_computed and _is_current(runtime, known, plan, rebuilt, table, beside(plan.key))):
            cause, record = Cause.of(CauseKind.FIRST_BUILD), plan.record
            if record is not None:
                has_new_code = record.code_version != table.code_version(runtime.settings)
                cause = cause_of(record.input_state, plan.present, has_new_code=has_new_code)
            to_build.append(replace(plan, todo=Todo.REBUILD, cause=cause))
    for one in sorted(left_out, key=lambda one: one.key):
        runtime.log(f"rebuild {rebuild.number}: {table.key} {one.key} is left out: {one.why_not}")
    if left_out:
        runtime.ledger.rebuilds.record(rebuild, left_out)
    if to_build:
        keys = {plan.key for plan in to_build}
        work = _plan(runtime, rebuild, table, base_id, pins, to_build, now)
        work = replace(work, is_whole=True, built_beside=frozenset(computed - keys))
        _build_slices(rebuild, work, {key: beside(key, keys) for key in keys})
    return len(to_build)


def _plan(
    runtime: Runtime,
    rebuild: RebuildRecord,
    table: Table,
    base_id: int,
    pins: Mapping[str, int],
    slices: Sequence[SlicePlan],
    now: datetime,
) -> TablePlan:
    days, accepted = days_between(rebuild.first, rebuild.last), _accepted(rebuild, table)
    request = LoadRequest(days, rebuild.projects, frozenset(rebuild.tables), rebuild.run_id or "", now, accepted)
    return TablePlan(runtime, request, table, base_id, pins, rebuild.branch, slices, time.monotonic())


def _build_slices(rebuild: RebuildRecord, plan: TablePlan, beside: Mapping[Slice, str]) -> None:
    runtime, table, todo = plan.runtime, plan.table, plan.to_build
    failpoint(Failpoint.AFTER_PIN, table.key)
    builder = builder_of(table)
    work = builder.build(plan)
    try:
        files = runtime.lakehouse.extend(table, rebuild.branch, plan.base_id, work.write)
        audits = work.audit(files.snapshot_id)
        failpoint(Failpoint.AFTER_AUDIT, table.key)
        judged = judge(plan, builder, StagedSlices(files.snapshot_id, audits, work.keys))
        changed = [key for key, one in todo.items() if audits[key].digest != _digest(one.record)]
        changes = changed_keys(plan, files.snapshot_id, changed, builder.key_contents, {})
    finally:
        work.release()
    live = runtime.lakehouse.slice_files(table, files.snapshot_id, todo.keys())
    slices = []
    for key, one in sorted(judged.items()):
        record = replace(refused_beside(one.record, beside[key]), file_hash=live.get(key, NO_FILES).file_hash)
        prior, audit = todo[key].record, audits[key]
        figures = prior.figures if prior is not None and prior.digest != EMPTY else {}
        measures = {name: (figures.get(name), audit.measures.get(name)) for name in table.measures if name != "rows"}
        difference = SliceDifference((_digest(prior).rows, audit.digest.rows), measures, changes.get(key))
        slices.append(RebuiltSlice(record, _digest(prior), difference))
        if not record.verdict.is_good:
            runtime.log(f"rebuild {rebuild.number}: {table.key} {key} is {record.verdict.value}: {record.reason}")
    failpoint(Failpoint.BEFORE_LEDGER, table.key)
    runtime.ledger.rebuilds.record(rebuild, slices)


def _green_facts(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, slices: Collection[Slice], green: GreenSlices, now: datetime
) -> Facts:
    facts = Facts.read(runtime.ledger, runtime.settings, slices, (), now).reading(runtime.ledger, [table])
    rebuilt = {
        name: {**facts.records[name], **{key: one.record for key, one in green[name].items()}}
        for name in table.upstream
        if name in rebuild.tables
    }
    return replace(facts, records={**facts.records, **rebuilt})


def _accepted(rebuild: RebuildRecord, table: Table) -> Acceptances:
    """An operator accepts the report, so bounds on changes refuse no slice of a rebuild."""
    return {(table.key, key): rebuild.acceptance for key in rebuild.slices}


def _pin(runtime: Runtime, rebuild: RebuildRecord, name: str) -> int:
    table = table_by_key(name)
    head = runtime.lakehouse.branches.head(table, rebuild.branch) if name in rebuild.tables else None
    # Without a green branch its slices are left out or empty, so nothing is read.
    return sync_ledger(runtime, table, rebuild.run_id or "") if head is None else head


def _left_out(table: Table, plan: SlicePlan) -> RebuiltSlice:
    prior = plan.record or SliceRecord(table.key, plan.key, Verdict.WAITING)
    verdict, hint = Verdict.HELD, "Release it, and start the rebuild again"
    if plan.todo is not Todo.HOLD:
        verdict = Verdict.WAITING
        hint = "It is built when what it waits for is there and good: start the rebuild again then"
    return RebuiltSlice(replace(prior, verdict=verdict, reason=plan.reason, hint=hint), prior.digest)


def _is_computed(runtime: Runtime, table: Table, known: RebuiltSlice | None, plan: SlicePlan, live: SliceFiles) -> bool:
    """Whether the green branch holds the result of the present code and inputs, whatever its verdict."""
    if known is None or not known.is_built or known.record.file_hash != live.file_hash:
        return False
    record, rejection = known.record, known.record.rejection
    if record.verdict.is_good:
        is_of_code, inputs = record.code_version == table.code_version(runtime.settings), record.input_state
    elif rejection is not None:
        is_of_code = (rejection.judged_by or "").startswith(judging(table, runtime.settings))
        inputs = rejection.inputs
    else:
        return False
    is_due = plan.todo not in (Todo.HOLD, Todo.WAIT)
    return is_due and is_of_code and compare(inputs, plan.present, plan.key.event_date) is Match.SAME


def _is_current(
    runtime: Runtime,
    known: RebuiltSlice,
    plan: SlicePlan,
    rebuilt: Mapping[Slice, RebuiltSlice],
    table: Table,
    beside: str,
) -> bool:
    """Whether the result was compared with main's present content, and is good or would be refused again."""
    record = known.record
    if _digest(plan.record) not in (known.published, record.digest):
        return False
    if record.verdict.is_good or record.rejection is None:
        return record.verdict.is_good
    others = (rebuilt.get(Slice(day, plan.key.project_id)) for day in record.rejection.waits_for)
    is_stuck = not record.rejection.waits_for or any(one is not None and not one.goes for one in others)
    return is_stuck and is_judged_beside(runtime, table, record, beside)


def states_beside(
    settings: Settings, table: Table, key: Slice, green: Collection[Slice], main: Mapping[Slice, SliceRecord]
) -> str:
    """The state of the neighbours that a slice is audited beside, current in the green branch (`green`) or as in `main`."""
    near = sorted(neighbourhood([key], table.kind.exchange_days(settings)) - {key})
    states = {one: "rebuilt" if one in green else _digest(main.get(one)) for one in near}
    return ", ".join(f"{one.event_date} {state}" for one, state in states.items() if state != EMPTY)


def refused_beside(record: SliceRecord, beside: str) -> SliceRecord:
    """The record; a refusal for shared keys also names the neighbours."""
    if record.rejection is None or not _shares_keys(record):
        return record
    judged_by = f"{record.rejection.judged_by} beside {beside}"
    return replace(record, rejection=replace(record.rejection, judged_by=judged_by))


def is_judged_beside(runtime: Runtime, table: Table, record: SliceRecord, beside: str) -> bool:
    """Whether a refusal rests on the present code and bounds and, for shared keys, on these neighbours."""
    judged_by = judging(table, runtime.settings)
    expected = f"{judged_by} beside {beside}" if _shares_keys(record) else judged_by
    return record.rejection is not None and record.rejection.judged_by == expected


def _shares_keys(record: SliceRecord) -> bool:
    return any(one.check is Check.UNIQUE_EVENT_KEY and not one.is_passed for one in record.refused_evaluations)


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
    window, lakehouse = table.kind.exchange_days(runtime.settings), runtime.lakehouse
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
        head = lakehouse.branches.head(table, rebuild.branch)
        if head is None:
            return {}
        records = [green[table.key][key].record for key in sorted(candidates)]
        slices = [SlicePlan(one.key, Todo.REBUILD, one.input_state or InputState(), one, True) for one in records]
        pins = {name: lakehouse.head(table_by_key(name)) for name in table.upstream}
        plan = _plan(runtime, rebuild, table, lakehouse.head(table), pins, slices, now)
        links |= builder_of(table).links(plan, StagedSlices(head, {}))
        asked |= candidates
        edge = set(blocked_by(links, staying))
    tied = blocked_by(links, staying)
    return {key: tuple(f"{table.key} {other}" for other in others) for key, others in tied.items() if key in changed}


def no_longer_as_reported(runtime: Runtime, rebuild: RebuildRecord, green: GreenSlices, now: datetime) -> list[str]:
    """A sentence for each slice to swap that differs from the report beyond a load's bounds, or in unknown keys."""
    beyond = []
    for name in rebuild.tables:
        main = runtime.ledger.slices(name, rebuild.projects, {key.event_date for key in green[name]})
        for key, one in sorted(green[name].items()):
            reason = _beyond(runtime, table_by_key(name), one, main.get(key), now) if one.goes else None
            if reason is not None:
                beyond.append(f"{name} {key}: {reason}")
    return beyond


def _beyond(runtime: Runtime, table: Table, one: RebuiltSlice, main: SliceRecord | None, now: datetime) -> str | None:
    if one.reported is None or one.record.digest == one.reported.digest:
        return None
    record = one.record
    after = {measure: record.figures[measure] for measure in table.measures if measure in record.figures}
    change = explain_change(
        table.key,
        Baseline(one.reported.figures).of(after),
        after,
        None,
        content=str(record.digest),
        was_final=record.was_final(now),
        accepted_reason=None,
        cause="catching up",
        settings=runtime.settings,
    )
    if not change.is_passed:
        return change.reason
    # Equal row counts may hide other keys, and their number is unknown, so no bound applies.
    if table.kind.bounds_keys and any(known is not None and known.was_final(now) for known in (record, main)):
        return f"final slice holds other events than were reported, {one.reported.digest.rows} -> {record.digest.rows}"
    return None
