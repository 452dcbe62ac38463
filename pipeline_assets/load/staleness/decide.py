"""Where slices stand: which are stale, ready, final, refused before. From the ledger alone, no JVM.

Contains: readiness and the decision per slice.
Add here: a rule about whether a slice is rebuilt.
Does not contain: the facts it stands on (facts.py), what it is built from (inputs.py) and
rebuilding (derived/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date, datetime
from enum import Enum, auto

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.identity import is_tie
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict, neighbourhood
from pipeline_assets.load.deliveries.batch import is_empty_by_setting
from pipeline_assets.load.request import Books, LoadRequest
from pipeline_assets.load.staleness.facts import Facts, facts_of, is_closed_window, is_final_day, is_moot
from pipeline_assets.load.staleness.inputs import (
    CODE_KEY,
    COMPETING_KEY,
    WAITS_KEY,
    Inputs,
    Match,
    cause_of,
    compare,
    judging,
)
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.table import Table
from resources.ledger.records import SliceRecord


class Todo(Enum):
    """What a load does about a slice."""

    REBUILD = auto()
    """Its inputs, or on an explicit request its code, differ from what it was built from."""
    CHECK = auto()
    """Other days within the dedupe window differ: whether rows that share a key do is asked of the tables."""
    KEEP = auto()
    """It stands."""
    KEEP_REFUSED = auto()
    """Stale, but the same inputs were refused before and nobody accepted them."""
    WAIT = auto()
    """Something it reads is not there or is refused."""
    WAIT_TIED = auto()
    """Built from the same inputs before, it shared events with days that could not be published."""
    HOLD = auto()
    """A person holds it."""


_BLOCKED = (Todo.KEEP_REFUSED, Todo.WAIT, Todo.WAIT_TIED, Todo.HOLD)


@dataclass(frozen=True)
class SlicePlan:
    """What is done about one slice, and on what ground."""

    key: Slice
    todo: Todo
    present: Mapping[str, str]
    """The input state now."""
    record: SliceRecord | None
    is_requested: bool
    is_final: bool = False
    was_final: bool = False
    """Whether it stood final before, by a time that has come: what is published is bounded."""
    final_at: str | None = None
    """Since when it is final; None where it is not."""
    reason: str | None = None
    """Of a slice that waits or is held; where a refusal stands, the record has it."""
    cause: str = ""
    is_early: bool = False
    """It waits for deliveries whose deadline lies ahead."""
    is_outdated: bool = False
    """Kept as other code built it, because nobody asked for the day."""

    @property
    def is_blocked(self) -> bool:
        """Whether the slice stays as it is although it is, or may be, stale."""
        return self.todo in _BLOCKED or (self.todo is Todo.KEEP and self.is_outdated)


def decide(books: Books, request: LoadRequest, table: Table, facts: Facts) -> list[SlicePlan]:
    """One decision per candidate slice of a derived table, and per slice near one that may change.

    The neighbours of a slice that is built may hold its events, so they are looked at as well, and theirs if they are
    stale, until what is built lies among slices that stand.
    """
    decisions = decide_all(books, request, table, facts)
    looked_at = {Slice(day, project) for project, days in facts.candidates.items() for day in days}
    while True:
        active = [d.key for d in decisions if d.todo in (Todo.REBUILD, Todo.CHECK, Todo.WAIT_TIED)]
        beyond = neighbourhood(active, table.kind.exchange_days(books.settings)) - looked_at
        if not beyond:
            return decisions
        looked_at |= beyond
        days: dict[str, set[date]] = {}
        for key in beyond:
            days.setdefault(key.project_id, set()).add(key.event_date)
        candidates = {project: frozenset(found) for project, found in days.items()}
        decisions += decide_all(books, request, table, facts_of(books, candidates, facts.first_arrivals))


def decide_all(
    books: Books,
    request: LoadRequest,
    table: Table,
    facts: Facts,
    *,
    released: Set[tuple[str, Slice]] = frozenset(),
) -> list[SlicePlan]:
    """One decision per candidate slice, whatever lies beside them; as if these (table, slice) were held no more."""
    decisions: list[SlicePlan] = []
    for project in sorted(facts.candidates):
        days = sorted(facts.candidates[project])
        records = books.ledger.slices(table.key, [project], days)
        inputs = Inputs(books, table, project, days)
        holds = {
            key: reason
            for key, reason in books.ledger.interventions.holds(table.key, [project]).items()
            if (table.key, key) not in released
        }
        for day in days:
            key = Slice(day, project)
            decision = _decide(books, request, table, facts, inputs, records.get(key), key, holds.get(key), released)
            if decision is not None:
                decisions.append(decision)
    return decisions


def _decide(
    books: Books,
    request: LoadRequest,
    table: Table,
    facts: Facts,
    inputs: Inputs,
    record: SliceRecord | None,
    key: Slice,
    hold: str | None,
    released: Set[tuple[str, Slice]],
) -> SlicePlan | None:
    present = inputs.state(key.event_date)
    is_requested = key.event_date in request.days
    if record is None and not is_requested and not inputs.has_own_rows(key.event_date):
        return None
    code = table.code_version(books.settings)
    was_final = _was_final(books, request, facts, record)
    is_final = was_final or is_final_day(books, request, facts, key)
    since = record.final_at if record is not None and was_final else None
    final_at = (since or request.now.isoformat()) if is_final else None

    def decision(
        todo: Todo, reason: str | None = None, cause: str = "", *, with_rivals: Mapping[str, str] | None = None
    ) -> SlicePlan:
        known = {COMPETING_KEY: with_rivals[COMPETING_KEY]} if with_rivals and COMPETING_KEY in with_rivals else {}
        state = {**present, **known}
        return SlicePlan(
            key, todo, state, record, is_requested, is_final, was_final, final_at, reason=reason, cause=cause
        )

    if hold is not None:
        return decision(Todo.HOLD, f"held: {hold}")
    obstacle = _obstacle(books, request.now, table, facts, inputs, key, released)
    if obstacle is not None:
        is_early = key in facts.early and not any(
            upstream.verdict in (Verdict.REFUSED, Verdict.HELD) for upstream in inputs.upstream(key.event_date)
        )
        return replace(decision(Todo.WAIT, obstacle), is_early=is_early)
    if not inputs.has_own_rows(key.event_date) and (record is None or record.digest == EMPTY):
        return decision(Todo.KEEP)
    if record is None:
        return decision(Todo.REBUILD, cause="first build")
    has_new_code = record.input_state is not None and record.code_version != code
    standing = compare(record.input_state, present, key.event_date)
    if standing is Match.SAME and not (has_new_code and is_requested):
        kept = decision(Todo.KEEP, with_rivals=record.input_state)
        return replace(kept, is_outdated=has_new_code)
    cause = cause_of(table, record.input_state or {}, present, has_new_code=has_new_code)
    before = _refused_before(books, request, table, record)
    refused = compare(before, present, key.event_date)
    if refused is Match.SAME and before is not None:
        return decision(_todo_of(before), cause=cause, with_rivals=before)
    if Match.NEIGHBOURS_DIFFER in (standing, refused) and not (has_new_code and is_requested):
        return decision(Todo.CHECK, cause=cause)
    return decision(Todo.REBUILD, cause=cause)


def _was_final(books: Books, request: LoadRequest, facts: Facts, record: SliceRecord | None) -> bool:
    """Whether a recorded finality counts: it does not where a clock that was ahead judged it, and falls with what it rests on.

    A row that does not say when it was judged is asked for what it must rest on, as far as that is a matter of time.
    """
    if record is None or not record.was_final(request.now):
        return False
    return record.final_at is not None or is_closed_window(books, request, facts, record.key)


def _refused_before(books: Books, request: LoadRequest, table: Table, record: SliceRecord) -> Mapping[str, str] | None:
    """The inputs that the present code and bounds refused last, unless a person accepts the change now."""
    state = record.refused_state
    is_accepted = request.accepted.change(table.key, record.key) is not None
    if state is None or is_accepted or state.get(CODE_KEY) != judging(table, books.settings):
        return None
    return state


def _todo_of(refused_state: Mapping[str, str]) -> Todo:
    return Todo.WAIT_TIED if WAITS_KEY in refused_state else Todo.KEEP_REFUSED


def resolve(books: Books, request: LoadRequest, table: Table, decision: SlicePlan, competing_digests: str) -> SlicePlan:
    """What a slice to CHECK is to become, now that the digest of its rivals is known."""
    record, day = decision.record, decision.key.event_date
    present = {**decision.present, COMPETING_KEY: competing_digests}
    cause = "changed rows of its events on other days"
    found = replace(decision, todo=Todo.REBUILD, present=present, cause=cause)
    if record is None or is_tie(competing_digests):
        return found

    def is_same(recorded: Mapping[str, str] | None) -> bool:
        return (
            recorded is not None
            and recorded.get(COMPETING_KEY) == competing_digests
            and compare(recorded, present, day) is not Match.DIFFERENT
        )

    if is_same(record.input_state):
        has_new_code = record.code_version != table.code_version(books.settings)
        return replace(found, todo=Todo.KEEP, is_outdated=has_new_code)
    before = _refused_before(books, request, table, record)
    if before is not None and is_same(before):
        return replace(found, todo=_todo_of(before))
    return found


def release_waits(decisions: Sequence[SlicePlan]) -> list[SlicePlan]:
    """Slices that waited for others to be published with them are built again where none of those stays blocked."""
    found = {decision.key: decision for decision in decisions}
    is_settled = False
    while not is_settled:
        is_settled = True
        for key, decision in found.items():
            state = decision.record.refused_state if decision.record is not None else None
            if decision.todo is not Todo.WAIT_TIED or state is None:
                continue
            others = [Slice(date.fromisoformat(day), key.project_id) for day in state[WAITS_KEY].split(",")]
            if not any(other in found and found[other].is_blocked for other in others):
                found[key] = replace(decision, todo=Todo.REBUILD)
                is_settled = False
    return list(found.values())


def _obstacle(
    books: Books,
    now: datetime,
    table: Table,
    facts: Facts,
    inputs: Inputs,
    key: Slice,
    released: Set[tuple[str, Slice]],
) -> str | None:
    """Why the slice must wait; None = ready."""
    first_arrival = facts.first_arrivals.get(key.project_id)
    is_before_history = first_arrival is not None and key.event_date < first_arrival
    if not table.kind.delivered_by:
        recorded = inputs.upstream(key.event_date)
        if not recorded and not is_before_history:
            return f"{', '.join(table.upstream)} {key} is not built yet"
        for upstream in recorded:
            is_released = upstream.verdict is Verdict.HELD and (upstream.table, key) in released
            if not upstream.verdict.is_good and not is_released:
                return f"{upstream.table} {key} is {upstream.verdict.value}"
        return None
    if is_before_history:
        return None
    batches = [
        facts.batches.get(BatchKey(source, key.project_id, key.event_date)) for source in table.kind.delivered_by
    ]
    standing = [batch for batch in batches if batch is not None and not is_moot(facts, batch)]
    # Nobody can ask for a day outside the calendar, so it is not waited for.
    if not standing and key.event_date < books.settings.calendar_start:
        return None
    if not standing and is_empty_by_setting(key.project_id, key.event_date, books.settings, now):
        return None
    if not standing:
        return f"the deliveries that arrived on {key.event_date.isoformat()} are not loaded yet"
    accepted = [batch for batch in standing if batch.verdict is BatchVerdict.ACCEPTED]
    # Nothing delivered is no recovery of what was delivered and refused.
    if len(accepted) == len(standing) or any(batch.deliveries or batch.is_loss_accepted for batch in accepted):
        return None
    return "; ".join(
        f"{RAW_TABLES[batch.key.source].key} {key} is {batch.verdict.value}"
        for batch in standing
        if batch.verdict is not BatchVerdict.ACCEPTED
    )
