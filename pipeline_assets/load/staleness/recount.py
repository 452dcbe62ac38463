"""Judges snapshots again that were refused for their count, if the load changes the snapshot they were compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import date, datetime, timedelta

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice
from pipeline_assets.load.staleness.counts import REACH, counts_on_record, former_day, refusal_of_count
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger


def with_counts_judged_again(
    ledger: Ledger,
    facts: Facts,
    table: Table,
    plans: Iterable[SlicePlan],
    requested: Collection[Slice],
    accepted: Acceptances,
    now: datetime,
) -> list[SlicePlan]:
    """The plans, with a rebuild of each snapshot whose count was refused in comparison with one that is built now, and so on.

    Snapshots are built in the order of their days, so each is compared with the new state of the one before it. Plans of
    facts without counts are not about snapshots and stay as they are.
    """
    found = {plan.key: plan for plan in plans}
    changing = {key.event_date for key, plan in found.items() if plan.todo is Todo.REBUILD}
    while facts.item_counts is not None and changing:
        refused = _refused_beside(ledger, table, changing)
        if refused - found.keys():
            days = {key.event_date for key in refused}
            beyond = replace(facts, item_counts=counts_on_record(ledger, table, days))
            beyond = beyond.extended(ledger, refused - found.keys(), [table])
            found |= {plan.key: plan for plan in decide(beyond, table, requested, accepted, now)}
        again = {key for key in refused & found.keys() if found[key].todo is Todo.KEEP_REFUSED}
        if not again:
            break
        found |= {key: replace(found[key], todo=Todo.REBUILD, is_judged_again=True) for key in again}
        changing |= {key.event_date for key in again}
    return list(found.values())


def _refused_beside(ledger: Ledger, table: Table, changing: Collection[date]) -> set[Slice]:
    """Snapshots refused for their count whose preceding snapshot is, or will be, that of a day in `changing`."""
    days = {day + timedelta(days=number) for day in changing for number in range(1, REACH.days + 1)}
    counted = counts_on_record(ledger, table, days).keys() | set(changing)
    return {
        key
        for key, record in ledger.slices(table.key, [ALL_PROJECTS], days).items()
        if refusal_of_count(record) is not None and former_day(counted, key.event_date) in changing
    }
