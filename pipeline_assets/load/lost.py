"""Slices of which a data file is gone: which a load looks for, what waits for them, and which batches bring raw's back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice, Source, days_by_project, neighbourhood, widen
from pipeline_assets.load.request import LoadRequest
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, refused_as_lost
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.staleness.inputs import rests_on
from pipeline_assets.tables.kinds import VALIDITY
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger

_CHANGING = (Todo.REBUILD, Todo.CHECK, Todo.WAIT_TIED)


def slices_read(near: AbstractSet[Slice], settings: Settings, request: LoadRequest, table: Table) -> frozenset[Slice]:
    """The slices of a table that a load may read or build; `near`: `slices_to_look_at`.

    Of a dimension: what events of these days are joined with; of a requested one also the whole months, which intervals cover.
    """
    if not table.kind.is_shared:
        return frozenset(neighbourhood(near, settings.dedupe_window_days))
    days = widen({key.event_date for key in near}, settings.previous_snapshot_days)
    if table.key in request.tables:
        days |= {day for one in request.days for day in VALIDITY.input_days("", one.replace(day=1), settings)}
    return frozenset(Slice(table.kind.slice_day(day), project) for day in days for project in table.kind.projects(()))


def await_lost(facts: Facts, table: Table, plans: Sequence[SlicePlan]) -> list[SlicePlan]:
    """The plans, where a slice waits whose build would read another one of which a data file is gone."""
    by_slice = {plan.key: plan for plan in plans}
    is_settled = False
    while not is_settled:
        is_settled = True
        for key, plan in by_slice.items():
            if plan.todo not in _CHANGING:
                continue
            near = neighbourhood([key], table.kind.exchange_days(facts.settings))
            beside = [(table.key, one) for one in near if one not in by_slice or by_slice[one].todo is not Todo.REBUILD]
            inputs = rests_on(table, facts.settings, key, plan.present, plan.months)
            losses = [(place, loss) for place in (*inputs, *sorted(beside)) if (loss := facts.loss(*place)) is not None]
            if losses:
                (name, other), loss = losses[0]
                own, reason = facts.loss(table.key, key), f"reads {name} {other}: {loss.reason}"
                waits = replace(plan, todo=Todo.WAIT, reason=reason, is_early=False)
                by_slice[key] = waits if own is None else refused_as_lost(waits, own)
                is_settled = False
    return list(by_slice.values())


def batches_holding(
    ledger: Ledger, source: Source, slices: Collection[Slice], of_lines: Collection[Slice] = ()
) -> dict[Slice, set[BatchKey]]:
    """Slice of raw -> the batches that brought rows of it; of `of_lines` also the one whose refused lines are filed under it."""
    holding = {
        Slice(day, project): {batch for batch, part in batches.items() if part.digest != EMPTY}
        for project, days in days_by_project(slices).items()
        for day, batches in ledger.batch_days_of(source, project, sorted(days)).items()
    }
    for key in of_lines:
        holding.setdefault(key, set()).add(BatchKey(source, key.project_id, key.event_date))
    return holding


def brought_back(
    holding: Mapping[Slice, AbstractSet[BatchKey]], able: AbstractSet[BatchKey]
) -> tuple[set[Slice], set[BatchKey]]:
    """The lost slices that are whole again, and the batches that cannot be accepted.

    A slice is whole again where all batches that hold rows of it are read again and accepted (`able`); a batch is accepted only
    if every lost slice that it brings rows to is whole again, because each is published as a whole or not at all.
    """
    whole = {key for key, batches in holding.items() if batches}
    while broken := {key for key in whole if not holding[key] <= able}:
        whole -= broken
        able = able - {batch for key in broken for batch in holding[key]}
    return whole, {batch for key, batches in holding.items() if key not in whole for batch in batches}
