"""The days around a slice of a rebuild, of which the green branch holds some and main the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuiltSlice
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, neighbourhood
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.inputs import Match, compare, judging
from pipeline_assets.tables.table import Table
from resources.iceberg.metadata import SliceFiles


def is_computed(runtime: Runtime, table: Table, known: RebuiltSlice | None, plan: SlicePlan, live: SliceFiles) -> bool:
    """Whether the green branch holds what the present code makes of the present inputs, whatever was judged of it."""
    if known is None or not known.is_built or known.record.file_hash != live.file_hash:
        return False
    record, code = known.record, table.code_version(runtime.settings)
    if plan.todo in (Todo.HOLD, Todo.WAIT):
        return False
    if record.verdict.is_good:
        is_of_code, inputs = record.code_version == code, record.input_state
    elif record.rejection is not None:
        # `refused_beside` writes behind it.
        is_of_code = (record.rejection.judged_by or "").startswith(judging(table, runtime.settings))
        inputs = record.rejection.inputs
    else:
        return False
    return is_of_code and compare(inputs, plan.present, plan.key.event_date) is Match.SAME


def states_beside(
    settings: Settings, table: Table, key: Slice, green: Collection[Slice], main: Mapping[Slice, SliceRecord]
) -> str:
    """What a slice is audited beside: the day and state of each neighbour, the same text as long as these stay.

    `green`: slices that the green branch holds as they are now, or as soon as this one is built; `main`: what main holds.
    """
    days = []
    for other in sorted(neighbourhood([key], table.kind.exchange_days(settings)) - {key}):
        if other in green:
            days.append(f"{other.event_date} rebuilt")
        elif other in main and main[other].digest != EMPTY:
            days.append(f"{other.event_date} {main[other].digest}")
    return ", ".join(days)


def digests_beside(runtime: Runtime, rebuild: RebuildRecord, table: Table) -> dict[tuple[str, Slice], Digest]:
    """What main holds of a rebuild's slices and of those around them: (table, slice) -> digest, EMPTY where there is nothing.

    Nothing of a table whose slices give each other no rows.
    """
    window = table.kind.exchange_days(runtime.settings)
    if not window:
        return {}
    near = neighbourhood(rebuild.slices, window)
    main = runtime.ledger.slices(table.key, rebuild.projects, {key.event_date for key in near})
    return {(table.key, key): main[key].digest if key in main else EMPTY for key in near}


def refused_beside(record: SliceRecord, beside: str) -> SliceRecord:
    """The record, whose refusal rests on its neighbours as well where it shares a key with them."""
    if record.rejection is None or not _shares_keys(record):
        return record
    judged_by = f"{record.rejection.judged_by} beside {beside}"
    return replace(record, rejection=replace(record.rejection, judged_by=judged_by))


def is_judged_beside(runtime: Runtime, table: Table, record: SliceRecord, beside: str) -> bool:
    """Whether a refusal rests on the present code and bounds and, where it shares a key with them, on these neighbours."""
    judged_by = judging(table, runtime.settings)
    expected = f"{judged_by} beside {beside}" if _shares_keys(record) else judged_by
    return record.rejection is not None and record.rejection.judged_by == expected


def _shares_keys(record: SliceRecord) -> bool:
    return any(one.check is Check.UNIQUE_EVENT_KEY and not one.is_passed for one in record.refused_evaluations)
