"""Which hours are missing or refused, and which of them a recovery fetches from the vendor: from ledger and landing, no JVM.

Contains: the state of each hour and what follows from it.
Add here: another state an hour may be in.
Does not contain: fetching (recover.py), what makes a batch refused (load/deliveries/).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from pipeline_assets.domain.days import days_between, stretches
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.hours import Hour, HourRange, requested_hours
from pipeline_assets.domain.records import BatchRecord, DeliveryRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.staleness.coverage import hours_on_record
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

_DAYS_AT_ONCE = 31


class HourState(StrEnum):
    """What is known of one hour of arrival of one project."""

    RECOVERED = "recovered"
    """The backfill prefix holds it whole: its marker is there."""
    WHOLE = "whole"
    """Raw holds it, or it is accepted as empty."""
    DELIVERED = "delivered"
    """Landing holds something of it that no load has read yet."""
    REFUSED = "refused"
    """It came with a batch that is refused, so that raw does not hold what was delivered."""
    LOST = "lost"
    """Raw holds it and landing no longer does; its batch is refused for that."""
    MISSING = "missing"
    """Nothing of it came, neither objects nor a marker."""

    @property
    def is_bad(self) -> bool:
        """Whether a recovery of what is refused asks for it."""
        return self in (HourState.REFUSED, HourState.LOST, HourState.MISSING)


@dataclass(frozen=True)
class RecoveryRequest:
    """What an operator asks for."""

    projects: tuple[str, ...]
    hours: HourRange
    is_refused_only: bool = False
    """Only bad hours of days that `tidemark status` calls refused; else every hour of the range."""


def recovery_request(
    settings: Settings, first: str | None, last: str | None, projects: tuple[str, ...], *, is_refused_only: bool
) -> RecoveryRequest:
    """What is asked for as text, `DAY` or `DAYTHH`; raises UsageError and SettingsError.

    What is refused may be asked for without a range, which is the calendar then.
    """
    chosen = settings.require_projects(projects)
    if not is_refused_only and (first is None or last is None):
        hint = "Give --from and --to, or --refused for what `tidemark status` calls refused"
        raise UsageError("recover", "names no range", hint)
    start, end = first or str(settings.calendar_start), last or str(datetime.now(UTC).date())
    return RecoveryRequest(chosen, requested_hours(start, end, settings), is_refused_only)


@dataclass(frozen=True)
class PlannedHour:
    """One hour of one project, and what a recovery does about it."""

    project_id: str
    hour: Hour
    state: HourState
    reason: str | None
    """Of the refusal."""
    is_asked: bool
    """Whether the request means it."""
    is_exported: bool
    """Whether it is older than the vendor's delay."""
    has_rows: bool
    """Whether something was delivered of it that holds rows or could not be read: the vendor had data then."""

    @property
    def is_fetched(self) -> bool:
        """Whether the vendor is asked for it."""
        return self.is_asked and self.is_exported and self.state is not HourState.RECOVERED

    @property
    def is_waited_for(self) -> bool:
        """Whether it is asked for and the vendor cannot have exported it yet."""
        return self.is_asked and not self.is_exported and self.state is not HourState.RECOVERED


@dataclass(frozen=True)
class RecoveryPlan:
    """Every hour of the days that a request touches, ascending by project and hour."""

    hours: tuple[PlannedHour, ...]

    @property
    def asked(self) -> tuple[PlannedHour, ...]:
        """The hours that the request means."""
        return tuple(one for one in self.hours if one.is_asked)

    def fetched(self, project_id: str) -> tuple[PlannedHour, ...]:
        """The hours of a project that the vendor is asked for."""
        return tuple(one for one in self.hours if one.is_fetched and one.project_id == project_id)

    @property
    def projects(self) -> tuple[str, ...]:
        """Projects of which hours are asked for."""
        return tuple(dict.fromkeys(one.project_id for one in self.asked))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Refused days that would be published without hours which raw does not hold and nobody asked for."""
        left: dict[tuple[str, date], list[int]] = {}
        touched = {(one.project_id, one.hour.day) for one in self.asked if one.is_fetched}
        refused = {(one.project_id, one.hour.day) for one in self.hours if one.state is HourState.REFUSED}
        for one in self.hours:
            place = (one.project_id, one.hour.day)
            is_lacking = one.state in (HourState.REFUSED, HourState.MISSING) and not one.is_asked
            if is_lacking and place in touched & refused:
                left.setdefault(place, []).append(one.hour.hour)
        return tuple(
            f"{project} {day}: hours {hours_text(hours)} are not in raw either and not asked for; "
            "a load would publish the day without them"
            for (project, day), hours in left.items()
        )


def hours_text(hours: Iterable[int]) -> str:
    """Hours of a day in few words: runs of them, and single ones."""
    runs: list[list[int]] = []
    for hour in sorted(hours):
        if runs and runs[-1][-1] == hour - 1:
            runs[-1].append(hour)
        else:
            runs.append([hour])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def plan_recovery(
    ledger: Ledger, landing: LandingStore, settings: Settings, request: RecoveryRequest, now: datetime
) -> RecoveryPlan:
    """Look at ledger and landing; writes nothing. Raises what both raise where they are out of reach."""
    first, last = request.hours.first.day, request.hours.last.day
    planned: list[PlannedHour] = []
    for project in request.projects:
        days: Sequence[date] = days_between(first, last)
        if request.is_refused_only:
            batches = ledger.batches([project], first, last)
            days = sorted({key.arrival_date for key, one in batches.items() if one.verdict is BatchVerdict.REFUSED})
        for part in stretches(days, _DAYS_AT_ONCE):
            look = _Look.of(ledger, landing, settings, project, part)
            planned += look.planned(part, request, settings, now)
    return RecoveryPlan(tuple(planned))


@dataclass
class _SourceHours:
    """Hours of one source, by what is known of them."""

    listed: set[Hour] = field(default_factory=set)
    marked: set[Hour] = field(default_factory=set)
    accepted: set[Hour] = field(default_factory=set)
    refused: set[Hour] = field(default_factory=set)
    with_rows: set[Hour] = field(default_factory=set)

    @property
    def held(self) -> set[Hour]:
        """Of which raw holds what was delivered."""
        return self.accepted - self.refused


@dataclass(frozen=True)
class _Look:
    """What ledger and landing know of some days of a project."""

    project_id: str
    sources: Mapping[Source, _SourceHours]
    batches: Mapping[BatchKey, BatchRecord]

    @classmethod
    def of(cls, ledger: Ledger, landing: LandingStore, settings: Settings, project: str, days: Sequence[date]) -> _Look:
        grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
        sources: dict[Source, _SourceHours] = {}
        for source in Source:
            known = sources.setdefault(source, _SourceHours())
            listing = landing.list(source, [project], days[0], days[-1])
            known.listed.update(Hour(one.batch.arrival_date, one.hour) for one in listing.deliveries)
            known.marked.update(Hour(one.batch.arrival_date, one.hour) for one in listing.markers)
            read: set[str] = set()
            for is_accepted, hours in ((True, known.accepted), (False, known.refused)):
                records = ledger.deliveries(source, [project], days[0], days[-1], is_accepted=is_accepted)
                read |= records.keys()
                for record in records.values():
                    hour = _hour_of(grammar, record)
                    if hour is not None:
                        hours.add(hour)
                        if record.rows or record.error:
                            known.with_rows.add(hour)
            # What no load has read may hold anything.
            known.with_rows.update(
                Hour(delivery.batch.arrival_date, delivery.hour)
                for delivery in listing.deliveries
                if delivery.key not in read and delivery.size_bytes
            )
        return cls(project, sources, ledger.batches([project], days[0], days[-1]))

    def planned(
        self, days: Sequence[date], request: RecoveryRequest, settings: Settings, now: datetime
    ) -> list[PlannedHour]:
        delay = timedelta(hours=settings.export_delay_hours)
        planned = []
        for hour in (Hour(day, number) for day in days for number in range(24)):
            state, reason = self._state(hour)
            is_in_range = request.hours.first <= hour <= request.hours.last
            # Of a refused day that is not over, nothing is missing yet of what is to come.
            is_bad = state.is_bad and hour.end <= now
            planned.append(
                PlannedHour(
                    self.project_id,
                    hour,
                    state,
                    reason,
                    is_asked=is_in_range and (is_bad or not request.is_refused_only),
                    is_exported=hour.end + delay <= now,
                    has_rows=any(hour in known.with_rows for known in self.sources.values()),
                )
            )
        return planned

    def _state(self, hour: Hour) -> tuple[HourState, str | None]:
        backfill = self.sources[Source.BACKFILL]
        if hour in backfill.marked and hour not in backfill.refused:
            return HourState.RECOVERED, None
        if hour in backfill.held:
            return HourState.WHOLE, None
        for source, known in self.sources.items():
            batch = self._batch(source, hour)
            if batch is None or batch.verdict is not BatchVerdict.REFUSED:
                continue
            is_there = hour in known.listed | known.marked
            if hour in known.refused or (is_there and hour not in known.accepted):
                return HourState.REFUSED, batch.reason
            if batch.is_missing and hour in known.accepted and not is_there:
                return HourState.LOST, batch.reason
        if any(
            hour in known.held or self._is_accepted_as_empty(source, hour) for source, known in self.sources.items()
        ):
            return HourState.WHOLE, None
        if any(hour in known.listed | known.marked for known in self.sources.values()):
            return HourState.DELIVERED, None
        return HourState.MISSING, None

    def _is_accepted_as_empty(self, source: Source, hour: Hour) -> bool:
        batch = self._batch(source, hour)
        is_accepted = batch is not None and batch.verdict is BatchVerdict.ACCEPTED
        return is_accepted and hour.hour in hours_on_record(batch)

    def _batch(self, source: Source, hour: Hour) -> BatchRecord | None:
        return self.batches.get(BatchKey(source, self.project_id, hour.day))


def _hour_of(grammar: ObjectKeys, record: DeliveryRecord) -> Hour | None:
    parsed = grammar.parse(record.batch.source, record.batch.project_id, record.object_key, "", 0)
    return Hour(record.batch.arrival_date, parsed.hour) if isinstance(parsed, Delivery) else None
