"""What is not as its inputs say, over everything on record: from the ledger alone, no JVM.

Contains: the scan that `heal` acts on.
Add here: another reason to build a day without news from landing.
Does not contain: the decision about one slice (decide.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Verdict
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide, release_waits
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, DIMENSIONS
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger


@dataclass(frozen=True)
class Stale:
    """A slice that a load would change, or change the verdict of."""

    table: str
    reason: str
    state: str
    """Names what it would be built from."""
    is_built: bool
    """Whether its rows would be, and not its verdict alone."""


def scan_stale_days(
    ledger: Ledger, settings: Settings, now: datetime, slices: Collection[Slice] | None = None
) -> dict[date, list[Stale]]:
    """Event day -> what of it is not as its recorded inputs and their verdicts say, over these slices or all on record.

    Of dimensions only where all are asked for.
    """
    present = [one for one in DIMENSIONS if any(ledger.first_day(table.key) is not None for table in one.tables)]
    of_dimensions = present if slices is None else []
    if slices is None:
        upstream = sorted({name for table in DERIVED for name in table.upstream})
        slices = {key for name in upstream for key in ledger.slices(name, settings.projects)}
    facts = Facts.read(ledger, settings, slices, (), now)
    stale: dict[date, list[Stale]] = {}
    joined = [table for table in AS_OF_TABLES if table.dimension in present]
    for table in (*DERIVED, *joined) if slices else ():
        _add(stale, table, decide(facts.reading(ledger, [table]), table, (), Acceptances(), now))
    for one in of_dimensions:
        # Of what is delivered landing alone tells: its sensor looks there.
        if one.intervals_are_delivered(settings):
            continue
        days = {key.event_date for key in ledger.slices(one.snapshot.key, None)}
        months = frozenset(Slice(one.validity.kind.slice_day(day), ALL_PROJECTS) for day in days)
        of_months = Facts(settings, months, {}, {}).reading(ledger, [one.validity])
        _add(stale, one.validity, decide(of_months, one.validity, (), Acceptances(), now), settings.calendar_start)
    return stale


def _add(stale: dict[date, list[Stale]], table: Table, plans: Sequence[SlicePlan], not_before: date = date.min) -> None:
    """`not_before`: a slice of several days is asked for by a later one of them where its first one cannot be."""
    for plan in release_waits(plans):
        reason = _reason_to_load(plan)
        if reason is not None:
            state = f"{plan.todo.name} {plan.present} {plan.is_final}"
            day = max(plan.key.event_date, not_before)
            day = day if table.kind.slice_day(day) == plan.key.event_date else plan.key.event_date
            is_built = plan.todo in (Todo.REBUILD, Todo.CHECK)
            stale.setdefault(day, []).append(Stale(table.key, reason, state, is_built))


def _reason_to_load(plan: SlicePlan) -> str | None:
    record = plan.record
    if plan.todo is Todo.REBUILD:
        return plan.cause.text
    if plan.todo is Todo.REFUSE and (record is None or record.verdict is not Verdict.REFUSED):
        return plan.reason
    if plan.todo is Todo.CHECK:
        return "days near it changed"
    if plan.todo is Todo.KEEP and record is not None:
        if not record.verdict.is_good:
            return f"is no longer {record.verdict.value}"
        if plan.is_final and not plan.was_final:
            return "is final now"
        if record.is_final and not plan.is_final:
            return "was judged final by a clock that was ahead"
    return None
