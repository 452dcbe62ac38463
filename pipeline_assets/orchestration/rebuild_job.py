"""The job `rebuild`: build slices again beside main, report, swap them in, abandon them or undo the swap."""

from collections.abc import Iterator
from datetime import date
from enum import StrEnum
from typing import Any

import dagster as dg
from pydantic import Field

from pipeline_assets.domain.acceptance import a_reason
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.rebuilds import RebuiltSlice, measure_texts
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rebuild_build import build
from pipeline_assets.operations.rebuild_choose import RebuildRequest, begin, claimed, tables_of
from pipeline_assets.operations.rebuild_swap import abandon, swap, undo
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.event_text import markdown_table
from pipeline_assets.orchestration.events import standing_events
from pipeline_assets.orchestration.live_runs import liveness
from pipeline_assets.orchestration.operation_job import operation_job

REBUILD_JOB = "rebuild"
# An op and a job must not share a name within a code location.
REBUILD_OP = "rebuild_slices"


class RebuildAction(StrEnum):
    """What the run does with a rebuild."""

    START = "start"
    """Build beside main and report, or resume an interrupted build."""
    SWAP = "swap"
    """Publish the reported slices to main."""
    ABANDON = "abandon"
    """Discard the rebuild."""
    UNDO = "undo"
    """Restore main to its state before the swap, and hold the slices."""


class RebuildConfig(dg.Config):
    """Run config of the `rebuild_slices` op."""

    action: str = RebuildAction.START.value
    """start, swap, abandon or undo."""
    number: int = 0
    """The rebuild to swap, abandon or undo; a start assigns a new number."""
    tables: list[str] = Field(default_factory=list)
    """For a start: subset of refined and aggregate tables; all when empty."""
    first: str = ""
    """For a start: first day, YYYY-MM-DD."""
    last: str = ""
    """For a start: last day."""
    projects: list[str] = Field(default_factory=list)
    """For a start: subset of the configured projects; all when empty."""
    reason: str = ""
    """Reason, kept on record; required for a start."""
    who: str = ""
    """Name of the operator; the run where it is empty."""
    swap: bool = False
    """For a start: swap at once, without waiting for an operator to read the report."""


def rebuild_request(config: RebuildConfig, settings: Settings, who: str) -> RebuildRequest:
    """Parse the request of a start; raises UsageError or SettingsError."""
    first, last = parse_day(config.first), parse_day(config.last)
    projects = settings.require_projects(tuple(config.projects))
    tables = tuple(table.key for table in tables_of(config.tables))
    return RebuildRequest(tables, projects, first, last, a_reason("reason", config.reason), who)


@operation_job(
    REBUILD_JOB,
    REBUILD_OP,
    (
        "Rebuild days beside main while loads go on, look at the report, then swap them in.",
        "Build slices again beside main and report what would change; swap that in, abandon it or take it back.",
    ),
)
def rebuild_job(context: dg.OpExecutionContext, runtime: Runtime, config: RebuildConfig, clock: Clock) -> Iterator[Any]:
    """Rebuild. It needs no pool: loads continue beside it, and the swap is refused where they changed its slices."""
    ledger, now = runtime.ledger, clock.now()
    read_back(ledger, runtime.log)
    is_live = liveness(context.instance, ledger, context.run_id)
    who = recordable(config.who or f"run {context.run_id}")
    try:
        action = RebuildAction(config.action)
    except ValueError:
        known = ", ".join(RebuildAction)
        raise UsageError(f"action {config.action!r}", "is nothing that can be done about a rebuild", known) from None
    if action is RebuildAction.START:
        rebuild = begin(runtime, rebuild_request(config, runtime.settings, who), context.run_id, is_live)
        runtime.log(f"rebuild {rebuild.number}: {', '.join(rebuild.tables)}, {rebuild.first} to {rebuild.last}")
        rebuild = build(runtime, rebuild, now)
    else:
        rebuild = claimed(ledger, ledger.rebuilds.get(config.number), context.run_id, is_live)
    why = a_reason("reason", config.reason) if config.reason else None
    changed: set[tuple[str, date]] = set()
    if action is RebuildAction.ABANDON:
        rebuild = abandon(runtime, rebuild, who, why)
    elif action is RebuildAction.UNDO:
        rebuild, restores = undo(runtime, rebuild, who, why)
        changed = {(one.table, one.key.event_date) for one in restores}
    elif action is RebuildAction.SWAP or config.swap:
        swapped = swap(runtime, rebuild, who, why, now)
        rebuild, green = swapped.rebuild, swapped.slices
        changed = {(name, key.event_date) for name in green for key, one in green[name].items() if one.goes}
    yield from standing_events(context.instance, runtime, changed, is_materialized=True)
    rows = [
        _row(name, key, one) for name, of in ledger.rebuilds.slices(rebuild).items() for key, one in sorted(of.items())
    ]
    report = markdown_table(_HEADINGS, rows)
    context.add_output_metadata({"rebuild": rebuild.number, "state": rebuild.state.value, "report": report})


_HEADINGS = ("table", "day", "project", "rows", "measures", "keys only rebuilt", "only published", "different", "")


def _row(name: str, key: Slice, one: RebuiltSlice) -> tuple[object, ...]:
    place = (name, key.event_date, key.project_id)
    if one.difference is None:
        return (*place, one.published.rows, "", "", "", "", one.why_not)
    old, new = one.difference.rows
    measures = ", ".join(measure_texts(one))
    totals = one.difference.keys.totals if one.difference.keys is not None else {}
    keys = tuple(totals.get(part, 0) for part in ("keys_added", "keys_removed", "keys_changed"))
    return (*place, f"{old:,} -> {new:,}", measures, *keys, one.why_not)
