"""What is done about each slice of a rebuild: left out, current in the green branch, or to be built."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline_assets.domain.acceptance import Acceptance, AcceptanceKind, Acceptances
from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.errors import PublishConflictError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuiltSlice
from pipeline_assets.domain.records import Head, SliceRecord
from pipeline_assets.domain.retry import tries
from pipeline_assets.domain.slices import EMPTY, Slice, Verdict, neighbourhood
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.staleness.inputs import cause_of
from pipeline_assets.operations.rebuild.neighbours import is_computed, is_judged_beside, states_beside
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from resources.iceberg.metadata import NO_FILES

GreenSlices = Mapping[str, Mapping[Slice, RebuiltSlice]]
"""Table -> slice -> what the rebuild made of it."""
_PIN_TRIES, _FIRST_PAUSE_SECONDS = 8, 0.1


@dataclass(frozen=True)
class Chosen:
    """One look at some slices of a table."""

    base_id: int
    """Main's snapshot."""
    pins: Mapping[str, int]
    """Upstream table -> the snapshot it is read as: of its green branch where it is rebuilt as well."""
    to_build: tuple[SlicePlan, ...] = ()
    left_out: Mapping[Slice, RebuiltSlice] = field(default_factory=dict)
    """Held ones, and those whose inputs are not there or not good."""
    built_beside: frozenset[Slice] = frozenset()
    """Near those to build: what the green branch holds as it is now."""
    beside: Mapping[Slice, str] = field(default_factory=dict)
    """Slice to build -> the neighbours it is audited beside (neighbours.states_beside)."""


def choose(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, slices: Collection[Slice], green: GreenSlices, now: datetime
) -> Chosen:
    """Look at these slices; writes nothing but what settling finds. Raises PublishConflictError where main keeps moving."""
    near = neighbourhood(slices, table.kind.exchange_days(runtime.settings))
    for _ in tries(_PIN_TRIES, _FIRST_PAUSE_SECONDS):
        base_id = sync_ledger(runtime, table, rebuild.run_id or "")
        pins = {name: _pin(runtime, rebuild, name) for name in table.upstream}
        facts = green_facts(runtime, rebuild, table, near, green, now)
        on_main = {table.key: base_id} | {name: pin for name, pin in pins.items() if name not in rebuild.tables}
        if all(_is_head(runtime, name, pin) for name, pin in on_main.items()):
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


def green_facts(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, slices: Collection[Slice], green: GreenSlices, now: datetime
) -> Facts:
    """What decisions rest on, with what the rebuild made of upstream slices in place of what main holds."""
    facts = Facts.read(runtime.ledger, runtime.settings, slices, (), now).reading(runtime.ledger, [table])
    rebuilt = {
        name: {**facts.records[name], **{key: one.record for key, one in green[name].items()}}
        for name in table.upstream
        if name in rebuild.tables
    }
    return replace(facts, records={**facts.records, **rebuilt})


def accepted(rebuild: RebuildRecord, table: Table) -> Acceptances:
    """The report is what a person accepts, so bounds on changes refuse no slice of a rebuild."""
    kind, reason = AcceptanceKind.CHANGE, rebuild.acceptance
    return Acceptances(tuple(Acceptance(kind, table.key, key, reason) for key in sorted(rebuild.slices)))


def _pin(runtime: Runtime, rebuild: RebuildRecord, name: str) -> int:
    table = table_by_key(name)
    head = runtime.lakehouse.branches.head(table, rebuild.branch) if name in rebuild.tables else None
    # Where nothing of it was built its slices are left out or empty, and nothing is read.
    return sync_ledger(runtime, table, rebuild.run_id or "") if head is None else head


def _is_head(runtime: Runtime, name: str, pin: int) -> bool:
    return runtime.ledger.head(name) == Head(pin) and runtime.lakehouse.head(table_by_key(name)) == pin


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
    """Whether what was computed was compared with what main holds, and is good or would be refused again.

    `beside`: the neighbours that it would be audited beside now.
    """
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
