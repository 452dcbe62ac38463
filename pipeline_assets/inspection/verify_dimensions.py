"""The part of a replay for dimensions: tables, days, and differences between landing and the loaded state."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Slice
from pipeline_assets.load.deliveries.snapshots import exclusions_of_dimensions
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.history import days_on_record, month_of
from pipeline_assets.tables.registry import AS_OF_TABLES, DIMENSIONS, OPTIONAL_TABLES
from pipeline_assets.tables.table import Dimension, Table


def tables_of_dimensions(runtime: Runtime) -> tuple[Table, ...]:
    """The tables of dimensions, and the tables joined with them, that the lake has."""
    return tuple(table for table in OPTIONAL_TABLES if runtime.lakehouse.knows(table))


def slices_of(table: Table, days: Sequence[date], projects: Sequence[str]) -> list[Slice]:
    """The slices in which the table files these days."""
    owners = table.kind.projects(projects)
    return sorted({Slice(table.kind.slice_day(day), owner) for day in days for owner in owners})


def days_to_replay(runtime: Runtime, days: Sequence[date], today: date) -> tuple[date, ...]:
    """All days of these days' months, and of the months whose snapshots may stand in for them: a month is one slice."""
    first = days[0] - timedelta(days=runtime.settings.previous_snapshot_days)
    last = days[-1].replace(day=monthrange(days[-1].year, days[-1].month)[1])
    begin = max(first.replace(day=1), runtime.settings.calendar_start)
    return days_between(begin, min(last, today)) if begin <= min(last, today) else ()


def copy_exclusions_of_dimensions(runtime: Runtime, scratch: Runtime) -> int:
    """Exclude in the replay the object versions that an operator excluded; returns their number."""
    exclusions = [one for own in exclusions_of_dimensions(runtime.ledger).values() for one in own]
    scratch.ledger.interventions.exclude(exclusions, "proof")
    return len(exclusions)


def lacking_of_dimensions(
    runtime: Runtime, scratch: Runtime, days: Sequence[date], projects: Sequence[str]
) -> dict[tuple[str, Slice], str]:
    """(table, slice) whose objects in landing differ from the loaded ones -> the difference in words."""
    lacking: dict[tuple[str, Slice], str] = {}
    for dimension in DIMENSIONS:
        for table in dimension.tables:
            if table.reads_landing(runtime.settings):
                of_days = _by_history if table.reads_history(runtime.settings) else _by_snapshots
                for day, reason in of_days(runtime, scratch, table).items():
                    _add(lacking, runtime, dimension, table, day, projects, reason)
    wanted = set(days)
    joined = {table.key for table in AS_OF_TABLES}
    return {
        place: reason for place, reason in lacking.items() if place[0] not in joined or place[1].event_date in wanted
    }


def _add(
    lacking: dict[tuple[str, Slice], str],
    runtime: Runtime,
    dimension: Dimension,
    table: Table,
    day: date,
    projects: Sequence[str],
    reason: str,
) -> None:
    lacking.setdefault((table.key, month_of(table, day)), reason)
    lacking.setdefault((dimension.validity.key, month_of(dimension.validity, day)), reason)
    for joined in (one for one in AS_OF_TABLES if one.dimension == dimension):
        # The settings may let an older snapshot stand in for later days.
        for number in range(runtime.settings.previous_snapshot_days + 1):
            for project in projects:
                lacking.setdefault((joined.key, Slice(day + timedelta(days=number), project)), reason)


def _by_snapshots(runtime: Runtime, scratch: Runtime, table: Table) -> Mapping[date, str]:
    known, again = _versions(runtime, table), _versions(scratch, table)
    return {
        key.event_date: _reason(version, again.get(key))
        for key, version in known.items()
        if version and version != again.get(key, "")
    } | {
        key.event_date: f"{version.partition(' ')[0]} is in landing and not loaded"
        for key, version in again.items()
        if key not in known and version
    }


def _by_history(runtime: Runtime, scratch: Runtime, table: Table) -> Mapping[date, str]:
    """Compare versions of a history as a whole: another version affects every day it covers."""
    known, again = (
        (days_on_record(table, one.ledger.slices(table.key, [ALL_PROJECTS])), _versions(one, table))
        for one in (runtime, scratch)
    )
    if not known[0]:
        return {}
    last, other = max(known[0]), max(again[0], default=None)
    version = known[1].get(month_of(table, last), "")
    present = again[1].get(month_of(table, other), "") if other is not None else ""
    return {} if version == present else dict.fromkeys(known[0], _reason(version, present))


def _versions(runtime: Runtime, table: Table) -> dict[Slice, str]:
    """Slice -> the object version that it was read from; empty where nothing is published."""
    return {
        key: (record.input_state.delivered or "") if record.input_state is not None and record.digest != EMPTY else ""
        for key, record in runtime.ledger.slices(table.key, [ALL_PROJECTS]).items()
    }


def _reason(version: str, present: str | None) -> str:
    name = version.partition(" ")[0]
    if not name:
        return f"{(present or '').partition(' ')[0]} is in landing and not loaded"
    if not present:
        return f"landing no longer holds {name}, or holds a version that is refused"
    return f"landing holds another version of {name} than the one loaded"
