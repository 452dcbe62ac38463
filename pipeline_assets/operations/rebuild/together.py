"""Slices of a rebuild that cannot go without others, or without a report: by exchanged rows, or by what they are built from."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Set
from dataclasses import replace
from datetime import datetime

from pipeline_assets.domain.input_state import InputState
from pipeline_assets.domain.rebuilds import NOT_REPORTED, RebuildRecord, RebuildState, RebuiltSlice
from pipeline_assets.domain.slices import Slice, neighbourhood
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.load.build.step import StagedSlices, TablePlan
from pipeline_assets.load.build.verdicts import blocked_by
from pipeline_assets.load.request import LoadRequest
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.operations.rebuild.choose import GreenSlices
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table


def keep_together(runtime: Runtime, rebuild: RebuildRecord, now: datetime) -> None:
    """Record of every slice what it cannot go without, as far as that does not go.

    Once the report is made, that is the report too: what a person did not see going stays, and what is tied to it.
    """
    green = {name: dict(of_table) for name, of_table in runtime.ledger.rebuilds.slices(rebuild).items()}
    changed = []
    for name in rebuild.tables:
        table = table_by_key(name)
        blockers = _upstream_left_out(table, green)
        stuck = {key for key, one in green[name].items() if not replace(one, blocked_by=blockers.get(key, ())).goes}
        blockers |= _tied(runtime, rebuild, table, green, stuck, now)
        if rebuild.state is not RebuildState.BUILDING:
            going = {key for key, one in green[name].items() if replace(one, blocked_by=blockers.get(key, ())).goes}
            unseen = {key for key in going if not green[name][key].is_reported}
            blockers |= dict.fromkeys(unseen, (NOT_REPORTED,))
            if unseen:
                blockers |= _tied(runtime, rebuild, table, green, green[name].keys() - going | unseen, now)
        for key, one in green[name].items():
            present = blockers.get(key, ())
            if one.blocked_by != present:
                green[name][key] = replace(one, blocked_by=present)
                changed.append(green[name][key])
                if present:
                    runtime.log(f"rebuild {rebuild.number}: {name} {key} is left out: {green[name][key].why_not}")
    if changed:
        runtime.ledger.rebuilds.record(rebuild, changed)


def _upstream_left_out(table: Table, green: GreenSlices) -> dict[Slice, tuple[str, ...]]:
    """Slice -> the rebuilt slices of its day that it is built from and that main does not get."""
    blockers: dict[Slice, tuple[str, ...]] = {}
    for name in table.upstream:
        for key, one in green.get(name, {}).items():
            if one.is_changed and not one.goes and key in green[table.key]:
                blockers[key] = (*blockers.get(key, ()), f"{name} {key}")
    return blockers


def _tied(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, green: GreenSlices, stuck: Set[Slice], now: datetime
) -> dict[Slice, tuple[str, ...]]:
    """Slice -> what stays as it is and shares rows with it, over any number of others."""
    window = table.kind.exchange_days(runtime.settings)
    changed = {key for key, one in green[table.key].items() if one.is_changed and key not in stuck}
    if not window or not changed:
        return {}
    beside = neighbourhood(rebuild.slices, window) - rebuild.slices
    days = {key.event_date for key in beside}
    staying = stuck | (beside & runtime.ledger.slices(table.key, rebuild.projects, days).keys())
    links: set[tuple[Slice, Slice]] = set()
    asked: set[Slice] = set()
    edge = staying
    # Outwards from what stays: most rebuilds have ties nowhere, and end after the first question.
    while candidates := (neighbourhood(edge, window) & changed) - asked:
        links |= _links(runtime, rebuild, table, green[table.key], candidates, now)
        asked |= candidates
        edge = set(blocked_by(links, staying))
    tied = blocked_by(links, staying)
    return {key: tuple(f"{table.key} {other}" for other in others) for key, others in tied.items() if key in changed}


def _links(
    runtime: Runtime,
    rebuild: RebuildRecord,
    table: Table,
    rebuilt: Mapping[Slice, RebuiltSlice],
    candidates: Collection[Slice],
    now: datetime,
) -> set[tuple[Slice, Slice]]:
    head = runtime.lakehouse.branches.head(table, rebuild.branch)
    if head is None:
        return set()
    request = LoadRequest((rebuild.first,), rebuild.projects, frozenset(rebuild.tables), rebuild.run_id or "", now)
    plans = [
        SlicePlan(key, Todo.REBUILD, rebuilt[key].record.input_state or InputState(), rebuilt[key].record, True)
        for key in sorted(candidates)
    ]
    pins = {name: runtime.lakehouse.head(table_by_key(name)) for name in table.upstream}
    plan = TablePlan(
        runtime, request, table, runtime.lakehouse.head(table), pins, rebuild.branch, plans, time.monotonic(), None
    )
    return builder_of(table).links(plan, StagedSlices(head, {}))
