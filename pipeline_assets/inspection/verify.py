"""Replay a range of days from landing into scratch tables, in another order and split, and compare with the published tables."""

from __future__ import annotations

import time
import uuid
from calendar import monthrange
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum

from pipeline_assets.domain.checks import Acceptances, lost_file
from pipeline_assets.domain.days import days_between, stretches
from pipeline_assets.domain.records import DeliveryRecord, Exclusion, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Source, neighbourhood, widen
from pipeline_assets.load.deliveries.snapshots import exclusions_of_dimensions
from pipeline_assets.load.file_tasks import slice_digests
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.as_of import days_on_record, month_of
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import AS_OF_TABLES, ASSET_TABLES, DERIVED, DIMENSIONS, OPTIONAL_TABLES
from pipeline_assets.tables.table import Table


class ReplayMatch(StrEnum):
    """How a published slice compares with its replay."""

    EQUAL = "equal"
    DIFFERS = "differs"
    MISSING = "missing"
    EXTRA = "extra"
    LOST = "lost"
    """A data file of it is gone."""
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
    code_versions: Mapping[str, str]
    arrivals: int
    objects: int
    excluded: int
    seconds: float
    slices: tuple[Compared, ...]

    @property
    def is_proven(self) -> bool:
        """Whether there is at least one slice and all are equal."""
        return bool(self.slices) and all(compared.match is ReplayMatch.EQUAL for compared in self.slices)


def prove(runtime: Runtime, scratch: Runtime, first: date, last: date, projects: Sequence[str], now: datetime) -> Proof:
    """Replay all arrivals that contribute to the event days of the range, and compare; writes only to `scratch`."""
    started_at, days = time.monotonic(), days_between(first, last)
    of_dimensions = tuple(table for table in OPTIONAL_TABLES if runtime.lakehouse.knows(table))
    tables = (*ASSET_TABLES, *of_dimensions)
    work = _Replay(runtime, scratch, days, tuple(_arrivals(runtime, days, projects)), tuple(projects), now)
    snapshots = {table.key: runtime.lakehouse.head(table) for table in tables}
    lost: dict[str, dict[Slice, str]] = {}
    published: dict[str, dict[Slice, Digest]] = {}
    for table in tables:
        wanted, head = work.slices_of(table), snapshots[table.key]
        lost[table.key] = runtime.lakehouse.lost_slices(table, head, wanted)
        found = slice_digests(runtime, table, head, wanted - lost[table.key].keys())
        published[table.key] = dict.fromkeys(lost[table.key], EMPTY) | {**found}
    exclusions = work.copied_exclusions(is_of_dimensions=bool(of_dimensions))
    work.replay(of_dimensions)
    of_events, lacking = work.lacking(), work.lacking_of_dimensions() if of_dimensions else {}
    compared: list[Compared] = []
    for table in tables:
        own, replayed = published[table.key], dict[Slice, Digest]()
        if scratch.lakehouse.knows(table):
            replayed |= slice_digests(scratch, table, scratch.lakehouse.head(table), work.slices_of(table))
        for key in sorted(own.keys() | replayed.keys()):
            before, after = own.get(key, EMPTY), replayed.get(key, EMPTY)
            why = lacking.get((table.key, key)) or of_events.get(key)
            verdict = _match(runtime, table, key, before, after, why)
            if key in lost[table.key]:
                loss = lost_file(table.key, key, lost[table.key][key])
                verdict = ReplayMatch.LOST, f"{loss.reason}. {loss.hint}"
            compared.append(Compared(table.key, key, before, after, *verdict))
    objects = sum(len(scratch.ledger.deliveries(source, projects, *work.span)) for source in Source)
    codes = {table.key: table.code_version(runtime.settings) for table in tables}
    seconds = round(time.monotonic() - started_at, 1)
    counts = len(work.arrivals), objects, len(exclusions)
    return Proof(first, last, work.projects, now, snapshots, codes, *counts, seconds, tuple(compared))


def _arrivals(runtime: Runtime, days: Sequence[date], projects: Sequence[str]) -> list[date]:
    """The event days, their neighbours within the dedupe window, and all arrival days with rows of those."""
    near = widen(days, runtime.settings.dedupe_window_days)
    arrivals = set(near)
    for source in Source:
        for project in projects:
            # Days beyond the neighbours do not decide about the winners on the days themselves.
            held = runtime.ledger.batch_days_of(source, project, sorted(near))
            arrivals |= {batch.arrival_date for batches in held.values() for batch in batches}
    return sorted(arrivals)


def _match(
    runtime: Runtime, table: Table, key: Slice, left: Digest, right: Digest, why: str | None
) -> tuple[ReplayMatch, str | None]:
    if left == right:
        return ReplayMatch.EQUAL, None
    record = runtime.ledger.slices(table.key, [key.project_id], [key.event_date]).get(key)
    is_good = record is None or record.verdict.is_good
    if is_good and why is not None:
        return ReplayMatch.UNPROVEN, why
    match = ReplayMatch.MISSING if left == EMPTY else ReplayMatch.EXTRA if right == EMPTY else ReplayMatch.DIFFERS
    return match, None if record is None or is_good else f"is {record.verdict.value}: {record.reason}"


@dataclass(frozen=True)
class _Replay:
    runtime: Runtime
    scratch: Runtime
    days: tuple[date, ...]
    arrivals: tuple[date, ...]
    projects: tuple[str, ...]
    now: datetime

    @property
    def span(self) -> tuple[date, date]:
        reach = timedelta(days=self.runtime.settings.reprocessing_window_days)
        return self.arrivals[0] - reach, self.arrivals[-1] + reach

    def slices_of(self, table: Table) -> set[Slice]:
        owners = table.kind.projects(self.projects)
        return {Slice(table.kind.slice_day(day), owner) for day in self.days for owner in owners}

    def copied_exclusions(self, *, is_of_dimensions: bool) -> list[Exclusion]:
        own, found = self.runtime.ledger.interventions, []
        for source in Source:
            found += [one for of in own.exclusions(source, self.projects, *self.span).values() for one in of]
        if is_of_dimensions:
            found += [one for of in exclusions_of_dimensions(self.runtime.ledger).values() for one in of]
        self.scratch.ledger.interventions.exclude(found, "proof")
        return found

    def replay(self, of_dimensions: Sequence[Table]) -> None:
        """Replay the latest arrivals first, recoveries before regular exports, in other chunk sizes; then the days, backwards."""
        losses = self._accepted_losses()
        size = max(1, self.scratch.settings.days_per_run // 2 - 1)
        for part in reversed(stretches(self.arrivals, size)):
            for source in (Source.BACKFILL, Source.REGULAR):
                self._load(part, [RAW_TABLES[source]], losses)
            self.scratch.log(f"replayed the arrivals of {part[0]} to {part[-1]}")
        for part in reversed(stretches(self.days, size)):
            self._load(part, DERIVED, losses)
        # A month is one slice, and snapshots of earlier months may stand in for these days.
        settings, end = self.scratch.settings, self.days[-1]
        first = (self.days[0] - timedelta(days=settings.previous_snapshot_days)).replace(day=1)
        whole = days_between(
            max(first, settings.calendar_start),
            min(end.replace(day=monthrange(end.year, end.month)[1]), self.now.date()),
        )
        if of_dimensions and whole:
            self._load(whole, [table for table in of_dimensions if table.kind.is_shared])
            self._load(self.days, [table for table in of_dimensions if not table.kind.is_shared])

    def _load(self, days: tuple[date, ...], tables: Sequence[Table], losses: Acceptances | None = None) -> None:
        keys = frozenset(table.key for table in tables)
        request = LoadRequest(days, self.projects, keys, str(uuid.uuid4()), self.now, losses or {})
        for _ in run_load(self.scratch, request, lambda _: True):
            continue

    def _accepted_losses(self) -> Acceptances:
        return {
            (RAW_TABLES[key.source].key, Slice(key.arrival_date, key.project_id)): "accepted where it was published"
            for key, batch in self.runtime.ledger.batches(self.projects, *self.span).items()
            if batch.is_loss_accepted
        }

    def lacking(self) -> dict[Slice, str]:
        """Slices whose batches differ between raw and landing -> the difference in words."""
        lacking: dict[Slice, str] = {}
        both = self.runtime.ledger, self.scratch.ledger
        for source in Source:
            of = (source, self.projects, *self.span)
            known, again = (ledger.deliveries(*of) for ledger in both)
            days, new_days = (ledger.batch_days(*of) for ledger in both)
            for key in sorted(known.keys() | again.keys()):
                reason = _difference(key, known.get(key), again.get(key))
                if reason is not None:
                    batch = (known.get(key) or again[key]).batch
                    touched = (Slice(day, batch.project_id) for by in (days, new_days) for day in by.get(batch, {}))
                    for near in neighbourhood(touched, self.runtime.settings.dedupe_window_days):
                        lacking.setdefault(near, reason)
        return lacking

    def lacking_of_dimensions(self) -> dict[tuple[str, Slice], str]:
        """(table, slice) whose objects in landing differ from the loaded ones -> the difference in words."""
        lacking: dict[tuple[str, Slice], str] = {}
        settings = self.runtime.settings
        for dimension in DIMENSIONS:
            read = [one for one in dimension.tables if one.reads_landing(settings)]
            for table, (day, reason) in ((one, told) for one in read for told in self._differing(one).items()):
                places = [(one.key, month_of(one, day)) for one in (table, dimension.validity)]
                # An older snapshot may stand in for later days.
                places += [
                    (joined.key, Slice(day + timedelta(days=number), project))
                    for joined in AS_OF_TABLES
                    if joined.dimension == dimension
                    for number in range(settings.previous_snapshot_days + 1)
                    for project in self.projects
                ]
                for place in places:
                    lacking.setdefault(place, reason)
        return lacking

    def _differing(self, table: Table) -> dict[date, str]:
        records = [one.ledger.slices(table.key, [ALL_PROJECTS]) for one in (self.runtime, self.scratch)]
        known, again = ({key: _version(one) for key, one in side.items()} for side in records)
        if not table.reads_history(self.runtime.settings):
            pairs = {key: (known.get(key, ""), again.get(key, "")) for key in sorted(known.keys() | again.keys())}
            return {key.event_date: _other_version(*pair) for key, pair in pairs.items() if pair[0] != pair[1]}
        days = [days_on_record(table, side) for side in records]
        newest = (month_of(table, max(of)) if of else None for of in days)
        version, present = (of.get(key, "") if key else "" for of, key in zip((known, again), newest, strict=True))
        return {} if version == present else dict.fromkeys(days[0], _other_version(version, present))


def _version(record: SliceRecord) -> str:
    """Empty where nothing is published."""
    return (record.input_state.delivered or "") if record.input_state is not None and record.digest != EMPTY else ""


def _difference(name: str, known: DeliveryRecord | None, again: DeliveryRecord | None) -> str | None:
    if known is not None and again is not None and known.sha256 in (None, again.sha256):
        return None
    return _other_version(name if known is not None else "", name if again is not None else "")


def _other_version(version: str, present: str) -> str:
    """Versions begin with the object's name, and are empty for none."""
    name = version.partition(" ")[0]
    if not name:
        return f"{present.partition(' ')[0]} is in landing and not loaded"
    if not present:
        return f"landing no longer holds {name}, or holds a version that is refused"
    return f"landing holds another version of {name} than the one loaded"
