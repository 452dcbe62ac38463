"""Choose the slices of a rebuild: left out, current in the green branch, or to be built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline_assets.domain.changes import Baseline, Cause, CauseKind, explain_change
from pipeline_assets.domain.checks import Acceptances, Check, a_reason
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import PublishConflictError, UsageError, tries
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice
from pipeline_assets.domain.records import Head, SliceRecord
from pipeline_assets.domain.requests import Rebuild
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict, neighbourhood
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts, Match, cause_of, compare, judging
from pipeline_assets.tables.registry import DERIVED, downstream_of, table_by_key
from pipeline_assets.tables.table import Table
from resources.iceberg.metadata import NO_FILES, SliceFiles
from resources.ledger.store import Ledger

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
            raise UsageError(
                name,
                "is not built, so it cannot be rebuilt",
                f"Raw keeps what was delivered: load its days. Others can be rebuilt: {', '.join(known)}",
            )
    return tuple(table for key, table in known.items() if not names or key in names)


def is_computed(runtime: Runtime, table: Table, known: RebuiltSlice | None, plan: SlicePlan, live: SliceFiles) -> bool:
    """Whether the green branch holds the result of the present code and inputs, whatever its verdict."""
    if known is None or not known.is_built or known.record.file_hash != live.file_hash:
        return False
    record, code = known.record, table.code_version(runtime.settings)
    if plan.todo in (Todo.HOLD, Todo.WAIT):
        return False
    if record.verdict.is_good:
        is_of_code, inputs = record.code_version == code, record.input_state
    elif record.rejection is not None:
        is_of_code = (record.rejection.judged_by or "").startswith(judging(table, runtime.settings))
        inputs = record.rejection.inputs
    else:
        return False
    return is_of_code and compare(inputs, plan.present, plan.key.event_date) is Match.SAME


def states_beside(
    settings: Settings, table: Table, key: Slice, green: Collection[Slice], main: Mapping[Slice, SliceRecord]
) -> str:
    """The state of the neighbours that a slice is audited beside, current in the green branch (`green`) or as in `main`."""
    days = []
    for other in sorted(neighbourhood([key], table.kind.exchange_days(settings)) - {key}):
        if other in green:
            days.append(f"{other.event_date} rebuilt")
        elif other in main and main[other].digest != EMPTY:
            days.append(f"{other.event_date} {main[other].digest}")
    return ", ".join(days)


def digests_beside(runtime: Runtime, rebuild: RebuildRecord, table: Table) -> dict[tuple[str, Slice], Digest]:
    """Main's digests of a rebuild's slices and their neighbours: (table, slice) -> digest; none where slices exchange no rows."""
    window = table.kind.exchange_days(runtime.settings)
    if not window:
        return {}
    near = neighbourhood(rebuild.slices, window)
    main = runtime.ledger.slices(table.key, rebuild.projects, {key.event_date for key in near})
    return {(table.key, key): main[key].digest if key in main else EMPTY for key in near}


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


GreenSlices = Mapping[str, Mapping[Slice, RebuiltSlice]]
_PIN_TRIES, _FIRST_PAUSE_SECONDS = 8, 0.1


@dataclass(frozen=True)
class Chosen:
    """One look at some slices of a table."""

    base_id: int
    pins: Mapping[str, int]
    """Upstream table -> its snapshot, from the green branch where the rebuild has the table."""
    to_build: tuple[SlicePlan, ...] = ()
    left_out: Mapping[Slice, RebuiltSlice] = field(default_factory=dict)
    built_beside: frozenset[Slice] = frozenset()
    beside: Mapping[Slice, str] = field(default_factory=dict)


def choose(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, slices: Collection[Slice], green: GreenSlices, now: datetime
) -> Chosen:
    """Examine these slices; writes only results of ledger syncs. Raises PublishConflictError where main keeps moving."""
    near = neighbourhood(slices, table.kind.exchange_days(runtime.settings))
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
    rebuilt = green[table.key]
    files = {} if head is None else runtime.lakehouse.slice_files(table, head, near & rebuilt.keys())
    to_build, left_out = [], {}
    plans = decide(facts, table, slices, accepted(rebuild, table), now)
    computed = {
        plan.key
        for plan in plans
        if is_computed(runtime, table, rebuilt.get(plan.key), plan, files.get(plan.key, NO_FILES))
    }

    def beside(key: Slice, also: Collection[Slice] = ()) -> str:
        return states_beside(runtime.settings, table, key, computed | {*also}, facts.records[table.key])

    for plan in plans:
        if plan.key not in slices:
            continue
        known = rebuilt.get(plan.key)
        if plan.todo in (Todo.HOLD, Todo.WAIT):
            left_out[plan.key] = _left_out(table, plan)
        elif not _has_content(facts, table, plan) and known is None:
            continue
        elif (
            known is None
            or plan.key not in computed
            or not _is_current(runtime, table, known, plan, rebuilt, beside(plan.key))
        ):
            to_build.append(replace(plan, todo=Todo.REBUILD, cause=_cause(runtime, table, plan)))
    keys = {plan.key for plan in to_build}
    return Chosen(
        base_id,
        pins,
        tuple(to_build),
        left_out,
        frozenset(computed - keys),
        {key: beside(key, keys) for key in keys},
    )


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


def accepted(rebuild: RebuildRecord, table: Table) -> Acceptances:
    """An operator accepts the report, so bounds on changes refuse no slice of a rebuild."""
    return {(table.key, key): rebuild.acceptance for key in rebuild.slices}


def _pin(runtime: Runtime, rebuild: RebuildRecord, name: str) -> int:
    table = table_by_key(name)
    head = runtime.lakehouse.branches.head(table, rebuild.branch) if name in rebuild.tables else None
    # Without a green branch its slices are left out or empty, so nothing is read.
    return sync_ledger(runtime, table, rebuild.run_id or "") if head is None else head


def _left_out(table: Table, plan: SlicePlan) -> RebuiltSlice:
    prior = plan.record or SliceRecord(table.key, plan.key, Verdict.WAITING)
    verdict = Verdict.HELD if plan.todo is Todo.HOLD else Verdict.WAITING
    hint = (
        "Release it, and start the rebuild again"
        if plan.todo is Todo.HOLD
        else "It is built when what it waits for is there and good: start the rebuild again then"
    )
    return RebuiltSlice(replace(prior, verdict=verdict, reason=plan.reason, hint=hint), prior.digest)


def _has_content(facts: Facts, table: Table, plan: SlicePlan) -> bool:
    is_empty = plan.record is None or plan.record.digest == EMPTY
    records = (facts.records[name].get(plan.key) for name in table.upstream)
    return not is_empty or any(record is not None and record.digest != EMPTY for record in records)


def _is_current(
    runtime: Runtime,
    table: Table,
    known: RebuiltSlice,
    plan: SlicePlan,
    rebuilt: Mapping[Slice, RebuiltSlice],
    beside: str,
) -> bool:
    """Whether the result was compared with main's present content, and is good or would be refused again."""
    record, main = known.record, plan.record.digest if plan.record is not None else EMPTY
    if main not in (known.published, record.digest):
        return False
    if record.verdict.is_good or record.rejection is None:
        return record.verdict.is_good
    others = (rebuilt.get(Slice(day, plan.key.project_id)) for day in record.rejection.waits_for)
    is_stuck = not record.rejection.waits_for or any(one is not None and not one.goes for one in others)
    return is_stuck and is_judged_beside(runtime, table, record, beside)


def _cause(runtime: Runtime, table: Table, plan: SlicePlan) -> Cause:
    record = plan.record
    if record is None:
        return Cause.of(CauseKind.FIRST_BUILD)
    has_new_code = record.code_version != table.code_version(runtime.settings)
    return cause_of(record.input_state, plan.present, has_new_code=has_new_code)


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
