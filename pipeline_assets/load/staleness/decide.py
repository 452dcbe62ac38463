"""Decides from facts alone what a load does with each slice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto

from pipeline_assets.domain.changes import UNCHANGED, Cause, CauseKind
from pipeline_assets.domain.checks import UNREAD_OBJECTS, Acceptances, Evaluation
from pipeline_assets.domain.deliveries import BatchKey, SnapshotDelivery
from pipeline_assets.domain.identity import is_tie
from pipeline_assets.domain.records import InputState, Rejection, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, BatchVerdict, Digest, Slice, Verdict, neighbourhood
from pipeline_assets.load.deliveries.arrivals import is_empty_by_setting
from pipeline_assets.load.deliveries.snapshots import is_ruled_out
from pipeline_assets.load.staleness.as_of import Wait, items_of_days, state_of_month, wait_of_month, wait_of_snapshot
from pipeline_assets.load.staleness.facts import (
    Facts,
    Match,
    cause_of,
    compare,
    inputs_on_record,
    is_compared_with_another,
    judging,
    rests_on,
)
from pipeline_assets.load.staleness.finality import finality, is_moot, was_final
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table, is_dimension


class Todo(Enum):
    """A load's action on a slice."""

    REBUILD = auto()
    """Build it: its inputs changed, or its code did and the slice was requested."""
    CHECK = auto()
    """Other days in the dedupe window changed: compare rows with shared keys."""
    KEEP = auto()
    KEEP_REFUSED = auto()
    WAIT = auto()
    WAIT_TIED = auto()
    """An earlier build shared events with days that could not be published."""
    HOLD = auto()
    REFUSE = auto()
    """Refused without a build: an input is missing or ambiguous."""


CHANGING = (Todo.REBUILD, Todo.CHECK, Todo.WAIT_TIED)
_BLOCKED = (Todo.KEEP_REFUSED, Todo.WAIT, Todo.WAIT_TIED, Todo.HOLD, Todo.REFUSE)


@dataclass(frozen=True)
class SlicePlan:
    """A load's action on one slice, and why."""

    key: Slice
    todo: Todo
    present: InputState
    record: SliceRecord | None
    is_requested: bool
    is_final: bool = False
    was_final: bool = False
    is_settled: bool = False
    final_at: str | None = None
    reason: str | None = None
    cause: Cause = UNCHANGED
    is_early: bool = False
    is_outdated: bool = False
    failure: Evaluation | None = None
    delivered: SnapshotDelivery | None = None
    months: Mapping[tuple[str, Slice], Digest] = field(default_factory=dict)
    is_judged_again: bool = False
    """Refused earlier in comparison with a slice that is built now."""

    @property
    def waits_for(self) -> list[Slice]:
        """The slices that it was refused without, if it was."""
        rejection = self.record.rejection if self.record is not None else None
        return [Slice(day, self.key.project_id) for day in (rejection.waits_for if rejection is not None else ())]

    @property
    def is_blocked(self) -> bool:
        """Whether the slice stays as it is although it may be stale."""
        return self.todo in _BLOCKED or (self.todo is Todo.KEEP and self.is_outdated)


def decide(
    facts: Facts, table: Table, requested: Collection[Slice], accepted: Acceptances, now: datetime
) -> list[SlicePlan]:
    """One plan per slice of the facts that is on record, requested (also for changed code alone), or has inputs."""
    rule = _Rule(facts, table, frozenset(requested), accepted, now)
    plans = (rule.plan_of(key) for key in sorted(facts.slices, key=lambda key: (key.project_id, key.event_date)))
    return [plan for plan in plans if plan is not None]


class _Rule:
    def __init__(
        self, facts: Facts, table: Table, requested: frozenset[Slice], accepted: Acceptances, now: datetime
    ) -> None:
        self.facts, self.table, self.requested, self.accepted, self.now = facts, table, requested, accepted, now
        self.items = items_of_days(facts, table.dimension, now) if table.dimension is not None else None
        self.records = facts.records[table.key]
        self.upstream = {name: facts.records[name] for name in table.upstream}
        self.settings, self.code = facts.settings, table.code_version(facts.settings)

    def plan_of(self, key: Slice) -> SlicePlan | None:
        facts, table, settings = self.facts, self.table, self.settings
        record, is_requested = self.records.get(key), key in self.requested
        beside = [records[key] for records in self.upstream.values() if key in records]
        present = self._present(key, record)
        has_rows = any(one.digest != EMPTY for one in beside)
        has_rows = has_rows and (self.items is None or self.items.begin_by(key.event_date))
        if table.kind.is_shared:
            has_rows = not present.is_nothing
        if record is None and (not (is_requested or has_rows) or (self.items is not None and not beside)):
            return None
        was_settled = was_final(facts, record, self.now)
        is_settled = is_final = was_settled and record is not None and record.is_final
        if not is_final:
            is_settled, is_final = finality(facts, key, self.now)
        is_settled = is_settled or was_settled
        since = record.final_at if record is not None and was_settled else None
        months: dict[tuple[str, Slice], Digest] = {}
        for name in present.upstream:
            upstream = table_by_key(name.table)
            if name.table in self.upstream and upstream.reads_history(settings):
                month = Slice(upstream.kind.slice_day(name.day), ALL_PROJECTS)
                of_month = self.upstream[name.table].get(month)
                months[name.table, month] = of_month.digest if of_month is not None else EMPTY
        plan = SlicePlan(
            key,
            Todo.KEEP,
            present,
            record,
            is_requested,
            is_final,
            was_settled,
            is_settled,
            final_at=(since or self.now.isoformat()) if is_settled else None,
            delivered=facts.delivered.get(key),
            months=months,
        )
        is_readable = plan.delivered is not None or not table.reads_landing(settings)
        hold, loss = facts.hold_of(table.key, key), facts.loss(table.key, key)
        if hold is not None:
            plan = replace(plan, todo=Todo.HOLD, reason=f"held: {hold}")
        elif (wait := self._wait(plan, beside, has_rows)) is not None:
            todo = Todo.WAIT if wait.failure is None else Todo.REFUSE
            plan = replace(plan, todo=todo, reason=wait.reason, failure=wait.failure, is_early=wait.is_early)
        elif has_rows or (record is not None and record.digest != EMPTY):
            plan = self._compared(plan, is_readable)
        if loss is None:
            return plan
        if facts.is_read_again and is_readable and plan.todo not in (Todo.WAIT, Todo.HOLD, Todo.REFUSE):
            return replace(plan, todo=Todo.REBUILD, cause=Cause.of(CauseKind.FILES_GONE))
        return refused_as_lost(plan, loss)

    def _present(self, key: Slice, record: SliceRecord | None) -> InputState:
        if self.table.reads_history(self.settings):
            return state_of_month(self.facts.history, self.table, key, record)
        if self.table.reads_landing(self.settings):
            listed = self.facts.delivered.get(key)
            if listed is not None or is_ruled_out(self.facts.exclusions, record):
                return InputState(delivered=listed.version if listed is not None else None)
            return (record.input_state if record is not None else None) or InputState()
        upstream = inputs_on_record(self.table, self.upstream, key, self.settings)
        if self.items is not None and upstream:
            upstream.update(self.items.inputs(key.event_date))
        return InputState(upstream)

    def _wait(self, plan: SlicePlan, beside: Sequence[SliceRecord], has_rows: bool) -> Wait | None:
        key, facts = plan.key, self.facts
        if self.table.reads_history(self.settings):
            return wait_of_month(facts.history, self.table, key, plan.record, self.settings, self.now)
        if self.table.reads_landing(self.settings):
            return wait_of_snapshot(facts, self.table, key, plan.record, self.now)
        if self.table.kind.is_shared:
            # Inputs are read as published, whatever was refused since, so that an unrepairable day does not block others.
            return None
        first_arrival = facts.first_arrivals.get(key.project_id)
        is_awaited = first_arrival is None or key.event_date >= first_arrival
        if self.table.kind.delivered_by:
            obstacle = self._batches_lacking(key) if is_awaited else None
        else:
            obstacle = self._upstream_lacking(key, beside, is_awaited)
        if obstacle is not None:
            verdicts = {upstream.verdict for upstream in beside}
            return Wait(obstacle, key in facts.early and verdicts.isdisjoint((Verdict.REFUSED, Verdict.HELD)))
        return self.items.wait_of(key.event_date) if self.items is not None and has_rows else None

    def _upstream_lacking(self, key: Slice, recorded: Sequence[SliceRecord], is_awaited: bool) -> str | None:
        if not recorded and is_awaited:
            names = [name for name in self.table.upstream if not is_dimension(name)]
            return f"{', '.join(names)} {key} is not built yet"
        for upstream in recorded:
            is_released = upstream.verdict is Verdict.HELD and (upstream.table, key) in self.facts.released
            if not upstream.verdict.is_good and not is_released:
                return f"{upstream.table} {key} is {upstream.verdict.value}"
        return None

    def _batches_lacking(self, key: Slice) -> str | None:
        sources = self.table.kind.delivered_by
        known = [self.facts.batches.get(BatchKey(source, key.project_id, key.event_date)) for source in sources]
        batches = [batch for batch in known if batch is not None and not is_moot(self.facts, batch)]
        if not batches:
            is_early = key.event_date < self.settings.calendar_start
            is_empty = is_early or is_empty_by_setting(key.project_id, key.event_date, self.settings, self.now)
            return (
                None if is_empty else f"the deliveries that arrived on {key.event_date.isoformat()} are not loaded yet"
            )
        blocking = [batch for batch in batches if batch.verdict is not BatchVerdict.ACCEPTED]
        # An empty source does not make up for a refused delivery of the other.
        if any(batch not in blocking and (batch.deliveries or batch.is_loss_accepted) for batch in batches):
            return None
        blocks = (f"{RAW_TABLES[batch.key.source].key} {key} is {batch.verdict.value}" for batch in blocking)
        return "; ".join(blocks) or None

    def _compared(self, plan: SlicePlan, is_readable: bool) -> SlicePlan:
        record, present, day = plan.record, plan.present, plan.key.event_date
        if record is None:
            return replace(plan, todo=Todo.REBUILD, cause=Cause.of(CauseKind.FIRST_BUILD))
        has_new_code = record.input_state is not None and record.code_version != self.code
        is_code_asked = has_new_code and plan.is_requested and is_readable
        match = compare(record.input_state, present, day)
        if match is Match.SAME and not is_code_asked:
            same = replace(present, cross_day=record.input_state.cross_day) if record.input_state else present
            return replace(plan, present=same, is_outdated=has_new_code)
        stale = replace(plan, cause=cause_of(record.input_state, present, has_new_code=has_new_code))
        rejection = _valid_rejection(self.settings, self.table, self.accepted, record)
        if self.facts.item_counts is not None and is_compared_with_another(record, self.facts.item_counts):
            rejection = None
        refused = Match.DIFFERENT if rejection is None else compare(rejection.inputs, present, day)
        if rejection is not None and refused is Match.SAME:
            same = replace(present, cross_day=rejection.inputs.cross_day)
            return replace(stale, todo=_todo_of(rejection), present=same)
        if Match.NEIGHBOURS_DIFFER in (match, refused) and not is_code_asked:
            return replace(stale, todo=Todo.CHECK)
        return replace(stale, todo=Todo.REBUILD)


def refused_as_lost(plan: SlicePlan, loss: Evaluation) -> SlicePlan:
    """The refusal of a slice with a lost data file that is not built again."""
    also = f"; {plan.reason}" if plan.reason else ""
    return replace(
        plan, todo=Todo.REFUSE, reason=loss.reason, failure=replace(loss, reason=f"{loss.reason}{also}"), is_early=False
    )


def _valid_rejection(settings: Settings, table: Table, accepted: Acceptances, record: SliceRecord) -> Rejection | None:
    rejection = record.rejection
    is_accepted = accepted.get((table.key, record.key)) is not None
    is_unread = any(evaluation.figures.get(UNREAD_OBJECTS) for evaluation in record.refused_evaluations)
    if rejection is None or is_accepted or is_unread or rejection.judged_by != judging(table, settings):
        return None
    return rejection


def _todo_of(rejection: Rejection) -> Todo:
    return Todo.WAIT_TIED if rejection.waits_for else Todo.KEEP_REFUSED


def resolve(settings: Settings, table: Table, accepted: Acceptances, plan: SlicePlan, cross_day: str) -> SlicePlan:
    """The final plan of a slice to CHECK; `cross_day`: digest of the competing rows on other days."""
    record, day = plan.record, plan.key.event_date
    present = replace(plan.present, cross_day=cross_day)
    stale = replace(plan, todo=Todo.REBUILD, present=present, cause=Cause.of(CauseKind.CROSS_DAY))
    if record is None or is_tie(cross_day):
        return stale

    def is_same(recorded: InputState | None) -> bool:
        return (
            recorded is not None
            and recorded.cross_day == cross_day
            and compare(recorded, present, day) is not Match.DIFFERENT
        )

    if is_same(record.input_state):
        has_new_code = record.code_version != table.code_version(settings)
        return replace(stale, todo=Todo.KEEP, is_outdated=has_new_code)
    rejection = _valid_rejection(settings, table, accepted, record)
    if rejection is not None and is_same(rejection.inputs):
        return replace(stale, todo=_todo_of(rejection))
    return stale


def release_waits(plans: Sequence[SlicePlan]) -> list[SlicePlan]:
    """The plans, with a rebuild of each WAIT_TIED slice whose blocking slices are all released."""
    by_slice = {plan.key: plan for plan in plans}
    is_settled = False
    while not is_settled:
        is_settled = True
        for key, plan in by_slice.items():
            others = [by_slice[other] for other in plan.waits_for if other in by_slice]
            if plan.todo is Todo.WAIT_TIED and not any(other.is_blocked for other in others):
                by_slice[key] = replace(plan, todo=Todo.REBUILD)
                is_settled = False
    return list(by_slice.values())


def await_lost(facts: Facts, table: Table, plans: Sequence[SlicePlan]) -> list[SlicePlan]:
    """The plans, where a slice waits if its build would read a slice with a lost data file."""
    by_slice = {plan.key: plan for plan in plans}
    is_settled = False
    while not is_settled:
        is_settled = True
        for key, plan in by_slice.items():
            if plan.todo not in CHANGING:
                continue
            near = neighbourhood([key], table.kind.exchange_days(facts.settings))
            beside = [(table.key, one) for one in near if one not in by_slice or by_slice[one].todo is not Todo.REBUILD]
            inputs = rests_on(table, facts.settings, key, plan.present, plan.months)
            losses = [(place, loss) for place in (*inputs, *sorted(beside)) if (loss := facts.loss(*place)) is not None]
            if losses:
                (name, other), loss = losses[0]
                own, reason = facts.loss(table.key, key), f"reads {name} {other}: {loss.reason}"
                waits = replace(plan, todo=Todo.WAIT, reason=reason, is_early=False)
                by_slice[key] = waits if own is None else refused_as_lost(waits, own)
                is_settled = False
    return list(by_slice.values())
