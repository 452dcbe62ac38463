"""What is not as its inputs say, over everything on record: from the ledger alone, no JVM.

Contains: the scan that `heal` acts on.
Add here: another reason to build a day without news from landing.
Does not contain: the decision about one slice (decide.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide, release_waits
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.registry import DERIVED
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
    """Event day -> what of it is not as its recorded inputs and their verdicts say, over these slices or all on record."""
    if slices is None:
        upstream = sorted({name for table in DERIVED for name in table.upstream})
        slices = {key for name in upstream for key in ledger.slices(name, settings.projects)}
    if not slices:
        return {}
    facts = Facts.read(ledger, settings, slices, (), now)
    stale: dict[date, list[Stale]] = {}
    for table in DERIVED:
        for plan in release_waits(decide(facts.reading(ledger, [table]), table, (), Acceptances(), now)):
            reason = _reason_to_load(plan)
            if reason is not None:
                state = f"{plan.todo.name} {plan.present} {plan.is_final}"
                stale.setdefault(plan.key.event_date, []).append(
                    Stale(table.key, reason, state, plan.todo in (Todo.REBUILD, Todo.CHECK))
                )
    return stale


def _reason_to_load(plan: SlicePlan) -> str | None:
    record = plan.record
    if plan.todo is Todo.REBUILD:
        return plan.cause.text
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
