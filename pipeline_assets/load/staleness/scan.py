"""What is not as its inputs say, over everything on record: from the ledger alone, no JVM.

Contains: the look that `heal` acts on.
Add here: another reason to build a day without news from landing.
Does not contain: the decision about one slice (decide.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from pipeline_assets.load.request import Books, LoadRequest
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide_all, release_waits
from pipeline_assets.load.staleness.facts import facts_of
from pipeline_assets.load.staleness.first_arrival import first_arrivals
from pipeline_assets.tables.registry import DERIVED


@dataclass(frozen=True)
class Stale:
    """A slice that a load would change, or change the standing of."""

    table: str
    reason: str
    state: str
    """Names what it would be built from."""


def scan_stale_days(books: Books, now: datetime) -> dict[date, list[Stale]]:
    """Event day -> what of it is not as its recorded inputs and their standing say, over everything on record."""
    projects = books.settings.projects
    request = LoadRequest((), projects, frozenset(), "", now)
    days: dict[str, set[date]] = {}
    for name in sorted({name for table in DERIVED for name in table.upstream}):
        for key in books.ledger.slices(name, projects):
            days.setdefault(key.project_id, set()).add(key.event_date)
    if not days:
        return {}
    facts = facts_of(
        books,
        {project: frozenset(found) for project, found in days.items()},
        first_arrivals(books.ledger, books.settings, projects, now.date()),
    )
    stale: dict[date, list[Stale]] = {}
    for table in DERIVED:
        for decision in release_waits(decide_all(books, request, table, facts)):
            reason = _reason_to_load(decision)
            if reason is not None:
                state = f"{decision.todo.name} {sorted(decision.present.items())} {decision.is_final}"
                stale.setdefault(decision.key.event_date, []).append(Stale(table.key, reason, state))
    return stale


def _reason_to_load(decision: SlicePlan) -> str | None:
    record = decision.record
    if decision.todo is Todo.REBUILD:
        return decision.cause
    if decision.todo is Todo.CHECK:
        return "days near it changed"
    if decision.todo is Todo.KEEP and record is not None:
        if not record.verdict.is_good:
            return f"is no longer {record.verdict.value}"
        if decision.is_final and not decision.was_final:
            return "is final now"
        if record.is_final and not decision.is_final:
            return "was judged final by a clock that was ahead"
    return None
