"""Plans of many slices: those of a load with their neighbours, and all stale ones on record (no JVM)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from pipeline_assets.domain.checks import Acceptances
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Verdict, neighbourhood
from pipeline_assets.load.staleness.decide import CHANGING, SlicePlan, Todo, await_lost, decide, release_waits
from pipeline_assets.load.staleness.facts import REACH, Facts, counts_on_record, former_day, refusal_of_count
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, DIMENSIONS
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger


def decide_with_neighbours(
    ledger: Ledger, facts: Facts, table: Table, requested: Collection[Slice], accepted: Acceptances, now: datetime
) -> list[SlicePlan]:
    """Plans for the slices of the facts, and for those that may change with them: neighbours, and counts compared with theirs."""
    plans = decide(facts, table, requested, accepted, now)
    decided_about = set(facts.slices)
    while beyond := not_yet_decided(plans, decided_about, table.kind.exchange_days(facts.settings)):
        decided_about |= beyond
        plans += decide(facts.extended(ledger, beyond, [table]), table, requested, accepted, now)
    if facts.item_counts is None:
        return plans
    # A snapshot whose count was refused in comparison with one that is built now is built again, and so on.
    found = {plan.key: plan for plan in plans}
    changing = {key.event_date for key, plan in found.items() if plan.todo is Todo.REBUILD}
    while changing:
        days = {day + timedelta(days=number) for day in changing for number in range(1, REACH.days + 1)}
        counted = counts_on_record(ledger, table, days).keys() | set(changing)
        refused = {
            key
            for key, record in ledger.slices(table.key, [ALL_PROJECTS], days).items()
            if refusal_of_count(record) is not None and former_day(counted, key.event_date) in changing
        }
        if refused - found.keys():
            counts = counts_on_record(ledger, table, {key.event_date for key in refused})
            others = replace(facts, item_counts=counts).extended(ledger, refused - found.keys(), [table])
            found |= {plan.key: plan for plan in decide(others, table, requested, accepted, now)}
        again = {key for key in refused & found.keys() if found[key].todo is Todo.KEEP_REFUSED}
        if not again:
            break
        found |= {key: replace(found[key], todo=Todo.REBUILD, is_judged_again=True) for key in again}
        changing |= {key.event_date for key in again}
    return list(found.values())


def not_yet_decided(plans: Iterable[SlicePlan], decided_about: Set[Slice], window_days: int) -> set[Slice]:
    """Slices without a decision that lie at most `window_days` days from a slice that may change."""
    changing = [plan.key for plan in plans if plan.todo in CHANGING]
    return neighbourhood(changing, window_days) - decided_about


_UPSTREAM = sorted({name for table in DERIVED for name in table.upstream})
_SLICES_AT_ONCE = 6_000
"""Slices in memory at a time, with the records of their inputs: about 100 MB."""


@dataclass(frozen=True)
class Stale:
    """A slice whose rows or verdict a load would change."""

    table: str
    reason: str
    state: str
    is_built: bool
    """Whether its rows would be built, not only its verdict changed."""


def days_on_record(ledger: Ledger) -> list[date]:
    """The days that a full scan covers, ascending."""
    return ledger.event_days(_UPSTREAM)


def scan_stale_days(
    ledger: Ledger,
    settings: Settings,
    now: datetime,
    slices: Collection[Slice] | None = None,
    days: Collection[date] | None = None,
) -> dict[date, list[Stale]]:
    """Event day -> its stale slices, among `slices`; None: all on record (of `days`), dimensions included. Bounds memory."""
    present = [one for one in DIMENSIONS if any(ledger.first_day(table.key) is not None for table in one.tables)]
    joined = [table for table in AS_OF_TABLES if table.dimension in present]
    stale: dict[date, list[Stale]] = {}
    for part in _parts(ledger, settings, days) if slices is None else [slices]:
        facts = Facts.read(ledger, settings, part, (), now)
        for table in (*DERIVED, *joined) if part else ():
            _add(stale, table, _plans(ledger, facts, table, now))
    for one in present if slices is None else ():
        # News of delivered intervals come from landing alone, which a sensor watches.
        if one.intervals_are_delivered(settings):
            continue
        known = {key.event_date for key in ledger.slices(one.snapshot.key, None)}
        months = frozenset(Slice(one.validity.kind.slice_day(day), ALL_PROJECTS) for day in known)
        of_months = Facts(settings, months, {}, {}).reading(ledger, [one.validity])
        plans = release_waits(decide(of_months, one.validity, (), {}, now))
        _add(stale, one.validity, plans, settings.calendar_start)
    return stale


def _parts(ledger: Ledger, settings: Settings, days: Collection[date] | None) -> Iterator[set[Slice]]:
    wanted = sorted(days) if days is not None else days_on_record(ledger)
    span = timedelta(days=max(1, _SLICES_AT_ONCE // max(1, len(settings.projects))))
    while wanted:
        end = bisect_left(wanted, min(wanted[0], date.max - span) + span)
        part, wanted = frozenset(wanted[:end]), wanted[end:]
        found = ledger.slice_keys(_UPSTREAM, settings.projects, min(part), max(part))
        yield {key for key in found if key.event_date in part}


def _plans(ledger: Ledger, facts: Facts, table: Table, now: datetime) -> list[SlicePlan]:
    facts = facts.reading(ledger, [table])
    plans = decide(facts, table, (), {}, now)
    decided_about = set(facts.slices)
    while True:
        beyond = {other for plan in plans if plan.todo is Todo.WAIT_TIED for other in plan.waits_for} - decided_about
        if not beyond:
            return [plan for plan in release_waits(await_lost(facts, table, plans)) if plan.key in facts.slices]
        decided_about |= beyond
        plans += decide(facts.extended(ledger, beyond, [table]), table, (), {}, now)


def _add(stale: dict[date, list[Stale]], table: Table, plans: Sequence[SlicePlan], not_before: date = date.min) -> None:
    """A slice of several days that begins earlier is filed under `not_before`, the earliest day that loads request."""
    for plan in plans:
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
        if plan.is_final and not (plan.was_final and record.is_final):
            return "is final now"
        if plan.is_settled and not plan.was_final:
            return "its deadline has passed, and hours of it are missing"
        if record.is_final and not plan.is_final:
            return "was judged final by a clock that was ahead"
    return None
