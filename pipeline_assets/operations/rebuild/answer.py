"""Abandon a rebuild, or take back one that was swapped in.

Contains: these two answers.
Add here: another one.
Does not contain: swapping in (swap.py), rolling back (operations/rollback.py).
"""

from __future__ import annotations

from datetime import UTC, datetime

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rebuild.swap import drop_branches, has_begun
from pipeline_assets.operations.rollback import roll_back
from pipeline_assets.operations.rollback_plan import RollbackRequest
from pipeline_assets.operations.slice_restores import SliceRestore
from pipeline_assets.tables.registry import table_by_key


def abandon(runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None) -> RebuildRecord:
    """Forget what was computed; main never saw it. Raises UsageError where main shows some of it, or it is answered."""
    if not rebuild.state.is_open:
        raise UsageError(
            f"rebuild {rebuild.number}",
            f"is {rebuild.state.value}",
            f"Look at it: tidemark rebuild show {rebuild.number}",
        )
    for name in rebuild.tables if rebuild.state is RebuildState.SWAPPING else ():
        # What a killed swap committed is on record then.
        sync_ledger(runtime, table_by_key(name), rebuild.run_id or "")
    if rebuild.state is RebuildState.SWAPPING and has_begun(runtime, rebuild):
        raise UsageError(
            f"rebuild {rebuild.number}",
            "is being swapped in, and main shows some of it",
            f"Complete it: tidemark rebuild swap {rebuild.number}; or take it back: tidemark rebuild undo {rebuild.number}",
        )
    rebuild = runtime.ledger.rebuilds.change(
        rebuild, state=RebuildState.ABANDONED, finished_at=_now(), answered_by=who, answer=why
    )
    drop_branches(runtime, rebuild)
    return rebuild


def undo(
    runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None
) -> tuple[RebuildRecord, list[SliceRestore]]:
    """Roll the slices that were swapped back to what they were before, held until they are released; by metadata alone.

    An undo that died is completed by the same again. Raises UsageError where nothing was swapped in, and what a rollback raises.
    """
    if rebuild.state not in (RebuildState.SWAPPING, RebuildState.SWAPPED) or rebuild.swap_after is None:
        raise UsageError(
            f"rebuild {rebuild.number}",
            f"is {rebuild.state.value}, so main shows nothing of it",
            "`tidemark rebuild show` tells which were swapped in",
        )
    swapped = {
        name: frozenset(key for key, one in of_table.items() if one.goes and one.is_changed)
        for name, of_table in runtime.ledger.rebuilds.slices(rebuild).items()
    }
    tables = tuple(name for name in rebuild.tables if swapped[name])
    restores: list[SliceRestore] = []
    if tables:
        told = f": {why}" if why else ""
        request = RollbackRequest(
            tables,
            rebuild.projects,
            rebuild.first,
            rebuild.last,
            rebuild.swap_after,
            f"undo of rebuild {rebuild.number} ({rebuild.reason}){told}",
            rebuild.run_id or "",
            swapped,
        )
        restores = roll_back(runtime, request)
    rebuild = runtime.ledger.rebuilds.change(
        rebuild, state=RebuildState.UNDONE, finished_at=_now(), answered_by=who, answer=why
    )
    drop_branches(runtime, rebuild)
    return rebuild, restores


def _now() -> str:
    return datetime.now(UTC).isoformat()
