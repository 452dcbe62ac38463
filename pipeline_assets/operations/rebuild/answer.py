"""Abandon a rebuild, or take back one that was swapped in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rebuild.swap import drop_branches, swap_publications, tables_shown
from pipeline_assets.operations.rollback import roll_back
from pipeline_assets.operations.rollback_plan import RollbackRequest, SliceRestore


def abandon(runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None) -> RebuildRecord:
    """Forget what was computed; main never saw it. Raises UsageError where main shows some of it, or it is answered."""
    if not rebuild.state.is_open:
        raise rebuild.refused(f"is {rebuild.state.value}", f"Look at it: tidemark rebuild show {rebuild.number}")
    shown = tables_shown(runtime, rebuild)
    if shown:
        reason = f"is being swapped in, and main shows {', '.join(shown)} of it already"
        raise rebuild.refused(reason, rebuild.next_of_swap.capitalize())
    return _closed(runtime, rebuild, RebuildState.ABANDONED, who, why)


def undo(
    runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None
) -> tuple[RebuildRecord, list[SliceRestore]]:
    """Roll the slices that were swapped back to what they were before, held until they are released; by metadata alone.

    What was swapped is what the swap's runs published, whatever the rebuild made of the slices since. An undo that died is
    completed by the same again. Raises UsageError where main shows nothing of it, and what a rollback raises.
    """
    is_answered = rebuild.state in (RebuildState.ABANDONED, RebuildState.UNDONE)
    if is_answered or rebuild.swap_after is None:
        hint = "`tidemark rebuild show` tells which were swapped in"
        raise rebuild.refused(f"is {rebuild.state.value}, so main shows nothing of it", hint)
    tables = tables_shown(runtime, rebuild)
    if not tables:
        abandon_it = f"Abandon it: tidemark rebuild abandon {rebuild.number}"
        hint = abandon_it if rebuild.state.is_open else "There is nothing to take back"
        raise rebuild.refused(f"is {rebuild.state.value}, and its swap changed nothing of main", hint)
    told = f": {why}" if why else ""
    request = RollbackRequest(
        tables,
        rebuild.projects,
        rebuild.first,
        rebuild.last,
        rebuild.swap_after,
        f"undo of rebuild {rebuild.number} ({rebuild.reason}){told}",
        rebuild.run_id or "",
        {name: _before_swap(swap_publications(runtime, rebuild, name)) for name in tables},
    )
    restores = roll_back(runtime, request)
    return _closed(runtime, rebuild, RebuildState.UNDONE, who, why), restores


def _before_swap(published: Sequence[PublicationRecord]) -> dict[Slice, int]:
    """Slice -> the last number before the swap's first change of it: what loads published until then stays."""
    first: dict[Slice, int] = {}
    for record in published:
        first.setdefault(record.key, record.number)
    return {key: number - 1 for key, number in first.items()}


def _closed(runtime: Runtime, rebuild: RebuildRecord, state: RebuildState, who: str, why: str | None) -> RebuildRecord:
    now = datetime.now(UTC).isoformat()
    rebuild = runtime.ledger.rebuilds.change(rebuild, state=state, finished_at=now, answered_by=who, answer=why)
    drop_branches(runtime, rebuild)
    return rebuild
