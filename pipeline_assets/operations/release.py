"""Release held slices: what will change first, then the release. From the ledger alone, no JVM.

Contains: which holds are in force and what the next load makes of their slices.
Add here: another thing to know before a release.
Does not contain: holding (rollback.py) and building (derived/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, days_by_project
from pipeline_assets.load.request import Books, LoadRequest
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide_all
from pipeline_assets.load.staleness.facts import facts_of
from pipeline_assets.load.staleness.first_arrival import first_arrivals
from pipeline_assets.operations.rollback import CAUSE
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import DERIVED
from resources.ledger.records import PublicationRecord


@dataclass(frozen=True)
class Held:
    """A held slice, and what becomes of it once it is released."""

    table: str
    key: Slice
    reason: str
    digest: Digest
    digest_before: Digest
    """Of what it was before it was rolled back."""
    then: str
    """What the next load does about it, in words."""


def preview(
    books: Books,
    tables: Sequence[str],
    projects: Sequence[str],
    first: date,
    last: date,
    now: datetime,
    *,
    is_load_next: bool,
) -> list[Held]:
    """The held slices of these tables (none = all) and days; writes nothing. Raises UsageError where nothing is held.

    `is_load_next`: whether a load of exactly these days follows, which builds what other code built as well.
    """
    reasons = {
        (table.key, key): reason
        for table in DERIVED
        if not tables or table.key in tables
        for key, reason in sorted(books.ledger.interventions.holds(table.key, projects).items())
        if first <= key.event_date <= last
    }
    if not reasons:
        raise UsageError(f"{first} to {last}", "nothing is held there", "`tidemark status` shows what is")
    days = days_by_project(key for _, key in reasons)
    every_day = sorted(set().union(*days.values()))
    facts = facts_of(
        books,
        {project: frozenset(of) for project, of in days.items()},
        first_arrivals(books.ledger, books.settings, projects, now.date()),
    )
    request = LoadRequest(tuple(every_day) if is_load_next else (), tuple(projects), frozenset(), "", now)
    published = books.ledger.publications()
    held: list[Held] = []
    events: dict[Slice, Todo] = {}
    for table in DERIVED:
        decisions = {d.key: d for d in decide_all(books, request, table, facts, released=reasons.keys())}
        records = books.ledger.slices(table.key, projects, set(every_day))
        for (name, key), reason in reasons.items():
            if name != table.key:
                continue
            decision = decisions.get(key)
            then = _then(decision, events.get(key))
            if table == REFINED_EVENTS and decision is not None:
                events[key] = decision.todo
            present = records[key].digest if key in records else EMPTY
            before = _before(published, name, key, present)
            held.append(Held(name, key, reason, present, before, then))
    return held


def release(books: Books, held: Sequence[Held], reason: str, run_id: str) -> None:
    """Hold these slices no more; the next load, or `heal`, builds what is stale among them. Raises UsageError for no reason."""
    if not reason.strip():
        raise UsageError("release", "needs a reason", "Say why; it stays on record")
    slices: dict[str, list[Slice]] = {}
    for hold in held:
        slices.setdefault(hold.table, []).append(hold.key)
    books.ledger.interventions.release(slices, reason, run_id)


def _before(published: Sequence[PublicationRecord], table: str, key: Slice, present: Digest) -> Digest:
    """What the slice was before its last rollback, which others may have followed."""
    for record in reversed(published):
        if (record.table, record.key, record.cause) == (table, key, CAUSE):
            return record.digest_before
    return present


_SAID: Mapping[Todo, str] = {
    Todo.CHECK: "is compared with the days near it, and built again where they share events",
    Todo.KEEP: "stays as it is: it matches its inputs",
    Todo.KEEP_REFUSED: "stays as it is: the checks refused what its inputs give",
    Todo.WAIT_TIED: "waits for days that it shares events with",
}
_FOLLOWS: Mapping[Todo, str] = {
    Todo.REBUILD: f"follows {REFINED_EVENTS.key}, which is built again",
    Todo.CHECK: f"follows {REFINED_EVENTS.key}, if that is built again",
    Todo.WAIT: f"waits for {REFINED_EVENTS.key}",
    Todo.KEEP_REFUSED: f"waits for {REFINED_EVENTS.key}",
    Todo.WAIT_TIED: f"waits for {REFINED_EVENTS.key}",
}


def _then(decision: SlicePlan | None, events: Todo | None) -> str:
    """In words; `events`: what becomes of the same slice of refined events, where that is released as well."""
    if events is not None and events in _FOLLOWS:
        return _FOLLOWS[events]
    if decision is None:
        return "stays as it is: its inputs are not on record"
    if decision.todo is Todo.REBUILD:
        return f"is built again ({decision.cause})"
    if decision.todo is Todo.WAIT:
        return f"waits: {decision.reason}"
    if decision.is_outdated:
        return "stays as it is: another version of the code built it, and the next load of the day builds it again"
    return _SAID[decision.todo]
