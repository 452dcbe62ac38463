"""Begin a rebuild, or go on with the one that is open: what was asked for, and who works on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import DERIVED, downstream_of
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger

IsLive = Callable[[str], bool | None]
"""Whether a run still works; None where nobody knows it."""


@dataclass(frozen=True)
class RebuildRequest:
    """Which slices are built again, and why."""

    tables: tuple[str, ...]
    """Keys of derived tables; none = all of them."""
    projects: tuple[str, ...]
    first: date
    last: date
    reason: str
    who: str


def begin(runtime: Runtime, request: RebuildRequest, run_id: str, is_live: IsLive) -> RebuildRecord:
    """The rebuild that was asked for, claimed by this run: a new one, or the open one about exactly these slices.

    Raises UsageError for tables or days that cannot be served, where another open rebuild is about some of them, or where
    another run works on it.
    """
    asked = asked_for(request, run_id)
    tables = tables_of(asked.tables)
    rebuild = runtime.ledger.rebuilds.begin(asked)
    if rebuild.run_id != run_id or rebuild.reason != request.reason:
        runtime.log(f"rebuild {rebuild.number} of these days is open since {rebuild.started_at[:16]}; going on with it")
        if rebuild.reason != request.reason:
            runtime.log(f"rebuild {rebuild.number}: its reason stays: {rebuild.reason}")
    if rebuild.state is RebuildState.SWAPPING:
        raise rebuild.refused("is being swapped in", rebuild.next_of_swap.capitalize())
    left = _left_behind(tables)
    if left:
        runtime.log(
            f"rebuild {rebuild.number}: {', '.join(left)} follow from what is rebuilt and are no part of it: the first load "
            "after the swap builds them, within the bounds on changes; to report and accept them too, rebuild them as well"
        )
    return claimed(runtime.ledger, rebuild, run_id, is_live)


def asked_for(request: RebuildRequest, run_id: str | None = None) -> RebuildRecord:
    """What a request would begin, without a number; raises UsageError for tables or days that cannot be served."""
    tables = tables_of(request.tables)
    if request.last < request.first:
        subject = f"--from {request.first} --to {request.last}"
        raise UsageError(subject, "the range ends before it begins", "Swap the two days")
    return RebuildRecord(
        0,
        tuple(table.key for table in tables),
        request.first,
        request.last,
        request.projects,
        request.reason,
        request.who,
        RebuildState.BUILDING,
        run_id,
    )


def claimed(ledger: Ledger, rebuild: RebuildRecord, run_id: str, is_live: IsLive) -> RebuildRecord:
    """The rebuild, with this run at work; raises UsageError where another run is."""
    if rebuild.run_id == run_id:
        return rebuild
    if rebuild.run_id is not None and is_live(rebuild.run_id.replace("-", "")):
        raise rebuild.refused(f"run {rebuild.run_id} works on it", "Wait until it is done, or stop it: tidemark status")
    return ledger.rebuilds.claim(rebuild, run_id)


def tables_of(names: Sequence[str]) -> tuple[Table, ...]:
    """Derived tables in topological order, all where none is named; raises UsageError for one that is not built."""
    known = {table.key: table for table in DERIVED}
    for name in names:
        if name not in known:
            raise UsageError(
                name,
                "is not built, so it cannot be rebuilt",
                f"Raw keeps what was delivered: load its days. Others can be rebuilt: {', '.join(known)}",
            )
    return tuple(table for key, table in known.items() if not names or key in names)


def _left_behind(tables: Sequence[Table]) -> list[str]:
    chosen = {table.key for table in tables}
    below = [other.key for table in tables for other in downstream_of(table.key)]
    return [name for name in dict.fromkeys(below) if name not in chosen]
