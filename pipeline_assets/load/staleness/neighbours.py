"""Plans for slices and their neighbours, because building a slice may move events to or from neighbouring days."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from datetime import datetime

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.slices import Slice, neighbourhood
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.staleness.recount import with_counts_judged_again
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger


def decide_with_neighbours(
    ledger: Ledger, facts: Facts, table: Table, requested: Collection[Slice], accepted: Acceptances, now: datetime
) -> list[SlicePlan]:
    """Plans for the slices of the facts, for the neighbours of those that may change, and so on until none are left.

    Facts about neighbours are read on demand, once per round.
    """
    plans = decide(facts, table, requested, accepted, now)
    decided_about = set(facts.slices)
    while beyond := not_yet_decided(plans, decided_about, table.kind.exchange_days(facts.settings)):
        decided_about |= beyond
        plans += decide(facts.extended(ledger, beyond, [table]), table, requested, accepted, now)
    return with_counts_judged_again(ledger, facts, table, plans, requested, accepted, now)


def not_yet_decided(plans: Iterable[SlicePlan], decided_about: Set[Slice], window_days: int) -> set[Slice]:
    """Slices without a decision that lie at most `window_days` days from a slice that may change."""
    changing = [plan.key for plan in plans if plan.todo in (Todo.REBUILD, Todo.CHECK, Todo.WAIT_TIED)]
    return neighbourhood(changing, window_days) - decided_about
