"""Replay a range of days from landing into scratch tables, in another order and split, and compare with the published tables."""

from __future__ import annotations

import time
import uuid
from calendar import monthrange
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import StrEnum

from pipeline_assets.domain.acceptance import Acceptance, AcceptanceKind, Acceptances
from pipeline_assets.domain.checks import lost_file
from pipeline_assets.domain.days import chunks, days_between, stretches
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import DeliveryRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Source, neighbourhood, widen
from pipeline_assets.load.deliveries.snapshots import exclusions_of_dimensions
from pipeline_assets.load.file_tasks import slice_digests
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.as_of import days_on_record, month_of
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import AS_OF_TABLES, ASSET_TABLES, DERIVED, DIMENSIONS, OPTIONAL_TABLES
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


class ReplayMatch(StrEnum):
    """How a published slice compares with its replay."""

    EQUAL = "equal"
    DIFFERS = "differs"
    MISSING = "missing"
    """The replay has rows where nothing is published."""
    EXTRA = "extra"
    """Rows are published where the replay has none."""
    LOST = "lost"
    """A data file of it is gone, so nobody can read what was published."""
    UNPROVEN = "unproven"
    """It differs, but landing no longer holds the loaded objects, or holds others, so this proves nothing."""


@dataclass(frozen=True)
class Compared:
    """The comparison of one slice of one table."""

    table: str
    key: Slice
    published: Digest
    replayed: Digest
    match: ReplayMatch
    reason: str | None = None
    """Why a difference may be legitimate: the day's verdict, or missing objects in landing."""


@dataclass(frozen=True)
class Proof:
    """The result of a replay."""

    first: date
    last: date
    projects: tuple[str, ...]
    proven_at: datetime
    snapshots: Mapping[str, int]
    """Table -> the compared published snapshot."""
    code_versions: Mapping[str, str]
    arrivals: int
    """Number of arrival days replayed."""
    objects: int
    """Number of objects read again."""
    excluded: int
    """Number of excluded deliveries, which the replay left out as well."""
    seconds: float
    slices: tuple[Compared, ...]

    @property
    def is_proven(self) -> bool:
        """Whether there is at least one slice and all are equal."""
        return bool(self.slices) and all(compared.match is ReplayMatch.EQUAL for compared in self.slices)


def prove(runtime: Runtime, scratch: Runtime, first: date, last: date, projects: Sequence[str], now: datetime) -> Proof:
    """Replay all arrivals that contribute to the event days of the range, and compare; writes only to `scratch`."""
    started_at = time.monotonic()
    days = days_between(first, last)
    of_dimensions = tables_of_dimensions(runtime)
    tables = (*ASSET_TABLES, *of_dimensions)
    snapshots = {table.key: runtime.lakehouse.head(table) for table in tables}
    lost: dict[str, dict[Slice, str]] = {}
    published = {}
    for table in tables:
        wanted, head = slices_of(table, days, projects), snapshots[table.key]
        lost[table.key] = runtime.lakehouse.lost_slices(table, head, wanted)
        published[table.key] = dict.fromkeys(lost[table.key], EMPTY)
        published[table.key] |= slice_digests(runtime, table, head, set(wanted) - lost[table.key].keys())
    arrivals = _arrivals(runtime, days, projects)
    excluded = _copy_exclusions(runtime, scratch, arrivals, projects)
    _replay(scratch, days, arrivals, now, _accepted_losses(runtime, arrivals, projects), projects)
    if of_dimensions:
        excluded += copy_exclusions_of_dimensions(runtime, scratch)
        _replay_dimensions(scratch, of_dimensions, days, now, projects)
    replayed = {
        table.key: slice_digests(scratch, table, scratch.lakehouse.head(table), slices_of(table, days, projects))
        if scratch.lakehouse.knows(table)
        else {}
        for table in tables
    }
    of_events = _lacking(runtime, scratch, arrivals, projects)
    lacking = {(table.key, key): reason for table in tables for key, reason in of_events.items()}
    if of_dimensions:
        lacking |= lacking_of_dimensions(runtime, scratch, days, projects)
    compared = [
        _compare(runtime, table, key, (published[table.key], replayed[table.key]), lacking, lost[table.key].get(key))
        for table in tables
        for key in sorted(published[table.key].keys() | replayed[table.key].keys())
    ]
    span = _reach(runtime, arrivals)
    objects = sum(len(scratch.ledger.deliveries(source, projects, *span)) for source in Source)
    return Proof(
        first,
        last,
        tuple(projects),
        now,
        snapshots,
        {table.key: table.code_version(runtime.settings) for table in tables},
        len(arrivals),
        objects,
        excluded,
        round(time.monotonic() - started_at, 1),
        tuple(compared),
    )


def _arrivals(runtime: Runtime, days: Sequence[date], projects: Sequence[str]) -> list[date]:
    """The event days and their neighbours within the dedupe window, and all arrival days whose deliveries hold rows of those."""
    settings = runtime.settings
    near = widen(days, settings.dedupe_window_days)
    arrivals = set(near)
    for source in Source:
        for project in projects:
            # Days beyond the neighbours decide only about the neighbours' rows, not about the winners on the days themselves.
            held = runtime.ledger.batch_days_of(source, project, sorted(near))
            arrivals |= {batch.arrival_date for batches in held.values() for batch in batches}
    return sorted(arrivals)


def _copy_exclusions(runtime: Runtime, scratch: Runtime, arrivals: Sequence[date], projects: Sequence[str]) -> int:
    """Exclude in the replay the object versions that an operator excluded; returns their number."""
    span = _reach(runtime, arrivals)
    exclusions = [
        exclusion
        for source in Source
        for of_object in runtime.ledger.interventions.exclusions(source, projects, *span).values()
        for exclusion in of_object
    ]
    scratch.ledger.interventions.exclude(exclusions, "proof")
    return len(exclusions)


def _accepted_losses(runtime: Runtime, arrivals: Sequence[date], projects: Sequence[str]) -> Acceptances:
    """The losses that an operator accepted when publishing, as acceptances for the replay."""
    batches = runtime.ledger.batches(projects, *_reach(runtime, arrivals))
    return Acceptances(
        tuple(
            Acceptance(
                AcceptanceKind.MISSING,
                RAW_TABLES[key.source].key,
                Slice(key.arrival_date, key.project_id),
                "accepted where it was published",
            )
            for key, batch in batches.items()
            if batch.is_loss_accepted
        )
    )


def _reach(runtime: Runtime, arrivals: Sequence[date]) -> tuple[date, date]:
    """The first and last arrival day that loads of these days consider."""
    reach = timedelta(days=runtime.settings.reprocessing_window_days)
    return arrivals[0] - reach, arrivals[-1] + reach


def _replay(
    scratch: Runtime,
    days: Sequence[date],
    arrivals: Sequence[date],
    now: datetime,
    losses: Acceptances,
    projects: Sequence[str],
) -> None:
    """Replay the latest arrivals first, recoveries before regular exports, in other chunk sizes; then the days, backwards."""
    size = max(1, scratch.settings.days_per_run // 2 - 1)
    derived = frozenset(table.key for table in DERIVED)
    for part in reversed(stretches(arrivals, size)):
        for source in (Source.BACKFILL, Source.REGULAR):
            _load(scratch, part, frozenset({RAW_TABLES[source].key}), now, losses, projects)
        scratch.log(f"replayed the arrivals of {part[0]} to {part[-1]}")
    for part in reversed(chunks(tuple(days), size)):
        _load(scratch, part, derived, now, losses, projects)


def _replay_dimensions(
    scratch: Runtime, tables: Sequence[Table], days: Sequence[date], now: datetime, projects: Sequence[str]
) -> None:
    """Load the dimensions of all months in one load, then the tables joined with them."""
    whole = days_to_replay(scratch, days, now.date())
    if whole:
        of_landing = frozenset(table.key for table in tables if table.kind.is_shared)
        _load(scratch, whole, of_landing, now, Acceptances(), projects)
        joined = frozenset(table.key for table in tables) - of_landing
        _load(scratch, tuple(days), joined, now, Acceptances(), projects)


def _load(
    scratch: Runtime,
    days: tuple[date, ...],
    tables: frozenset[str],
    now: datetime,
    losses: Acceptances,
    projects: Sequence[str],
) -> None:
    request = LoadRequest(days, tuple(projects), tables, str(uuid.uuid4()), now, losses)
    for _ in run_load(scratch, request, lambda _: True):
        continue


def _lacking(runtime: Runtime, scratch: Runtime, arrivals: Sequence[date], projects: Sequence[str]) -> dict[Slice, str]:
    """Slices whose batches differ between raw and landing -> the difference in words."""
    lacking: dict[Slice, str] = {}
    span = _reach(runtime, arrivals)
    for source in Source:
        known = runtime.ledger.deliveries(source, projects, *span)
        again = scratch.ledger.deliveries(source, projects, *span)
        days = runtime.ledger.batch_days(source, projects, *span)
        new_days = scratch.ledger.batch_days(source, projects, *span)
        for batch, reason in _differing(known, again):
            touched = {*days.get(batch, {}), *new_days.get(batch, {})}
            slices = (Slice(day, batch.project_id) for day in touched)
            for key in neighbourhood(slices, runtime.settings.dedupe_window_days):
                lacking.setdefault(key, reason)
    return lacking


def _differing(
    known: Mapping[str, DeliveryRecord], again: Mapping[str, DeliveryRecord]
) -> Iterable[tuple[BatchKey, str]]:
    for key in sorted(known.keys() | again.keys()):
        if key not in again:
            yield known[key].batch, f"landing no longer holds {key}, or holds a version that is refused"
        elif key not in known:
            yield again[key].batch, f"{key} is in landing and not loaded"
        elif known[key].sha256 is not None and known[key].sha256 != again[key].sha256:
            yield again[key].batch, f"landing holds another version of {key} than the one loaded"


def _compare(
    runtime: Runtime,
    table: Table,
    key: Slice,
    states: tuple[Mapping[Slice, Digest], Mapping[Slice, Digest]],
    lacking: Mapping[tuple[str, Slice], str],
    lost: str | None,
) -> Compared:
    left, right = (state.get(key, EMPTY) for state in states)
    if lost is not None:
        loss = lost_file(table.key, key, lost)
        return Compared(table.key, key, left, right, ReplayMatch.LOST, f"{loss.reason}. {loss.hint}")
    if left == right:
        return Compared(table.key, key, left, right, ReplayMatch.EQUAL)
    match = ReplayMatch.MISSING if left == EMPTY else ReplayMatch.EXTRA if right == EMPTY else ReplayMatch.DIFFERS
    compared = Compared(table.key, key, left, right, match)
    record = runtime.ledger.slices(table.key, [key.project_id], [key.event_date]).get(key)
    if record is not None and not record.verdict.is_good:
        return replace(compared, reason=f"is {record.verdict.value}: {record.reason}")
    reason = lacking.get((table.key, key))
    return compared if reason is None else replace(compared, match=ReplayMatch.UNPROVEN, reason=reason)
