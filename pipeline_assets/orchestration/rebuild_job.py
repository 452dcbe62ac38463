"""The job `rebuild`: build slices again beside main, report, swap them in, abandon them or undo the swap."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import dagster as dg

from pipeline_assets.domain.checks import a_reason
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.rebuilds import RebuiltSlice, measure_texts
from pipeline_assets.domain.report import Table
from pipeline_assets.domain.requests import Rebuild, RebuildAction
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rebuild_build import build
from pipeline_assets.operations.rebuild_choose import GreenSlices, begin, claimed
from pipeline_assets.operations.rebuild_swap import abandon, swap, undo
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.events import markdown_table, standing_events
from pipeline_assets.orchestration.live_runs import liveness
from pipeline_assets.orchestration.operation_job import operation_job

REBUILD_JOB = "rebuild"
REBUILD_OP = "rebuild_slices"


@operation_job(REBUILD_JOB, REBUILD_OP)
def rebuild_job(context: dg.OpExecutionContext, runtime: Runtime, request: Rebuild, clock: Clock) -> Iterator[Any]:
    """Rebuild. It needs no pool: loads continue beside it, and the swap is refused where they changed its slices."""
    ledger, now = runtime.ledger, clock.now()
    read_back(ledger, runtime.log)
    is_live = liveness(context.instance, ledger, context.run_id)
    who = recordable(request.who or f"run {context.run_id}")
    if request.action not in list(RebuildAction):
        known = ", ".join(RebuildAction)
        raise UsageError(f"action {request.action!r}", "is nothing that can be done about a rebuild", known)
    action = RebuildAction(request.action)
    if action is RebuildAction.START:
        rebuild = begin(runtime, request, who, context.run_id, is_live)
        runtime.log(f"rebuild {rebuild.number}: {', '.join(rebuild.tables)}, {rebuild.first} to {rebuild.last}")
        rebuild = build(runtime, rebuild, now)
    else:
        rebuild = ledger.rebuilds.get(request.number)
        if action is not RebuildAction.SHOW:
            rebuild = claimed(ledger, rebuild, context.run_id, is_live)
    why = a_reason("reason", request.reason) if request.reason else None
    changed: set[tuple[str, date]] = set()
    if action is RebuildAction.ABANDON:
        rebuild = abandon(runtime, rebuild, who, why)
    elif action is RebuildAction.UNDO:
        rebuild, restores = undo(runtime, rebuild, who, why)
        changed = {(one.table, one.key.event_date) for one in restores}
    elif action is RebuildAction.SWAP or (action is RebuildAction.START and request.swap):
        rebuild = swap(runtime, rebuild, who, why, now)
        green = ledger.rebuilds.slices(rebuild)
        changed = {(name, key.event_date) for name in green for key, one in green[name].items() if one.goes}
    yield from standing_events(context.instance, runtime, changed, is_materialized=True)
    green = ledger.rebuilds.slices(rebuild)
    left_out = [f"{key} {name}: {one.why_not}" for name, key, one in in_order(green) if not one.goes]
    report = markdown_table(*rebuild_table(green), lists={"Left out": left_out})
    context.add_output_metadata({"rebuild": rebuild.number, "state": rebuild.state.value, "report": report})


def in_order(green: GreenSlices) -> list[tuple[str, Slice, RebuiltSlice]]:
    """Table, key and slice, by day."""
    listed = [(name, key, one) for name, of_table in green.items() for key, one in of_table.items()]
    return sorted(listed, key=lambda entry: entry[1])


def rebuild_table(green: GreenSlices) -> Table:
    """One row per slice that was built and differs, or is left out."""
    rows = []
    for name, key, one in in_order(green):
        if one.difference is not None and (one.is_changed or not one.goes):
            (old, new), keys = one.difference.rows, one.difference.keys
            parts = (keys.totals.get(part, 0) if keys else 0 for part in ("keys_added", "keys_removed", "keys_changed"))
            cells = (f"{old:,} -> {new:,}", ", ".join(measure_texts(one)), *parts)
            rows.append((key.event_date, name, key.project_id, *cells))
    headings = ("day", "table", "project", "rows", "measures", "keys only rebuilt", "only published", "different")
    return Table(headings, rows)
