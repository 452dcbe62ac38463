"""Plan a recovery's hours, and the runs that repair days that do not agree, from ledger and landing, without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from pipeline_assets.domain.days import Hour, HourRange, days_between, deadline, requested_hours, stretches
from pipeline_assets.domain.deliveries import BatchKey, Delivery, unplaced_hours
from pipeline_assets.domain.errors import SettingsError, UsageError
from pipeline_assets.domain.records import BatchRecord, DeliveryRecord
from pipeline_assets.domain.repairs import DayFacts, Repair, RepairKind, Tried, repairs_of, together
from pipeline_assets.domain.requests import Recover
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source, Verdict
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.staleness.facts import slices_to_look_at
from pipeline_assets.load.staleness.finality import hours_on_record, is_short
from pipeline_assets.load.staleness.scan import scan_stale_days
from pipeline_assets.tables.registry import DERIVED
from resources.export_api import export_keys
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

EXPORT_DELAY = timedelta(hours=2)
"""The vendor's time to export an hour after its end; until then no answer says that it has no data."""
_DAYS_AT_ONCE = 31


class HourState(StrEnum):
    """The state of one arrival hour of one project."""

    RECOVERED = "recovered"
    """The backfill prefix holds the complete hour: its marker exists."""
    NO_DATA = "no data"
    """The backfill prefix holds only its marker: the vendor had no data when asked."""
    WHOLE = "whole"
    """Raw holds the hour, or it was accepted as empty."""
    DELIVERED = "delivered"
    REFUSED = "refused"
    LOST = "lost"
    """Raw holds objects of the hour that landing lost; its batch is refused for that."""
    MISSING = "missing"
    UNFINISHED = "unfinished"
    """The backfill prefix holds objects of it, and the recovery that wrote them has not ended."""

    @property
    def is_bad(self) -> bool:
        """Whether a recovery of refused days requests the hour."""
        return self in (HourState.REFUSED, HourState.LOST, HourState.MISSING, HourState.UNFINISHED)


@dataclass(frozen=True)
class RecoveryRequest:
    """An operator's request."""

    projects: tuple[str, ...]
    hours: HourRange
    is_refused_only: bool = False
    """True: only bad hours of days that are refused, short of hours or half recovered; False: every hour of the range."""
    is_asking_again: bool = False


def recovery_request(settings: Settings, request: Recover) -> RecoveryRequest:
    """The request, parsed; raises UsageError and SettingsError. One for refused days defaults to the whole calendar."""
    chosen = settings.require_projects(tuple(request.projects))
    if not request.refused and not (request.first and request.last):
        hint = "Give --from and --to, or --refused for what `tidemark status` calls refused"
        raise UsageError("recover", "names no range", hint)
    start, end = request.first or str(settings.calendar_start), request.last or str(datetime.now(UTC).date())
    return RecoveryRequest(chosen, requested_hours(start, end, settings), request.refused, request.ask_again)


@dataclass(frozen=True)
class PlannedHour:
    """One hour of one project, and what a recovery does with it."""

    project_id: str
    hour: Hour
    state: HourState
    reason: str | None
    is_asked: bool
    is_exported: bool
    has_rows: bool
    """Or an unreadable delivery: the vendor must have had data."""
    is_settled: bool
    is_gap: bool = False
    """Whether nothing came of the hour, while other hours of the day came."""

    @property
    def is_fetched(self) -> bool:
        """Whether to request the hour from the vendor."""
        return self.is_asked and self.is_exported and not self.is_settled

    @property
    def is_waited_for(self) -> bool:
        """Whether the hour is requested but the vendor cannot have exported it yet."""
        return self.is_asked and not self.is_exported and not self.is_settled


@dataclass(frozen=True)
class RecoveryPlan:
    """Every hour of the days that a request touches, ascending by project and hour."""

    hours: tuple[PlannedHour, ...]
    controls: Mapping[str, Hour] = field(default_factory=dict)
    """Project -> an hour with rows in raw: keys that do not bring it are another project's."""

    @property
    def asked(self) -> tuple[PlannedHour, ...]:
        """The hours that the request includes."""
        return tuple(one for one in self.hours if one.is_asked)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning per refused day that a load would publish without hours that are neither in raw nor requested."""
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
    """Hours of a day as short text, with consecutive hours as ranges."""
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
    """Plan a recovery from ledger and landing; writes nothing. Raises their errors where they cannot be reached."""
    first, last = request.hours.first.day, request.hours.last.day
    planned: list[PlannedHour] = []
    controls: dict[str, Hour] = {}
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    for project in request.projects:
        days: Sequence[date] = days_between(first, last)
        claimed: set[date] = set()
        if request.is_refused_only:
            batches = ledger.batches([project], first, last)
            refused = {key.arrival_date for key, one in batches.items() if one.verdict is BatchVerdict.REFUSED}
            short = {key.arrival_date for key in batches if is_short(batches, key)}
            bad = refused | {day for day in short if now > deadline(day, settings)}
            claimed = {one.hour.day for one in ledger.recoveries.open([project]) if first <= one.hour.day <= last} - bad
            days = sorted(bad | claimed)
        for part in stretches(days, _DAYS_AT_ONCE):
            hours = _planned(ledger, landing, settings, project, part, request, now)
            # On an accepted day, hours without any object or marker are silent.
            planned += [one for one in hours if one.hour.day not in claimed or one.state is HourState.UNFINISHED]
        near = ledger.near_with_rows(project, last)
        if near and (control := _hour_of(grammar, near[0])) is not None:
            controls[project] = control
    return RecoveryPlan(tuple(planned), controls)


@dataclass
class _SourceHours:
    listed: set[Hour]
    marked: set[Hour]
    accepted: set[Hour] = field(default_factory=set)
    gone: set[Hour] = field(default_factory=set)
    refused: set[Hour] = field(default_factory=set)
    with_rows: set[Hour] = field(default_factory=set)
    batches: dict[date, BatchRecord] = field(default_factory=dict)

    def is_whole(self, hour: Hour) -> bool:
        """Whether raw holds all deliveries of the hour, or it was accepted as empty."""
        batch = self.batches.get(hour.day)
        is_accepted = batch is not None and batch.verdict is BatchVerdict.ACCEPTED
        return hour in self.accepted - self.refused or (is_accepted and hour.hour in hours_on_record(batch))


def _source_hours(
    ledger: Ledger, landing: LandingStore, grammar: ObjectKeys, source: Source, project: str, days: Sequence[date]
) -> _SourceHours:
    of = (source, [project], days[0], days[-1])
    listing = landing.list(*of)
    listed = {one.key: Hour(one.batch.arrival_date, one.hour) for one in listing.deliveries}
    marked = {Hour(one.batch.arrival_date, one.hour) for one in listing.markers}
    for batch, keys in unplaced_hours(listing.odd_objects, listed.keys()).items():
        marked -= {Hour(batch.arrival_date, hour) for hour in keys.values()}
    known = _SourceHours(set(listed.values()), marked)
    read: set[str] = set()
    for is_accepted, hours in ((True, known.accepted), (False, known.refused)):
        records = ledger.deliveries(*of, is_accepted=is_accepted)
        read |= records.keys()
        for record in records.values():
            if (hour := _hour_of(grammar, record)) is not None:
                hours.add(hour)
                if is_accepted and record.object_key not in listed:
                    known.gone.add(hour)
                if record.rows or record.error:
                    known.with_rows.add(hour)
    known.with_rows |= {listed[one.key] for one in listing.deliveries if one.key not in read and one.size_bytes}
    return known


def _planned(
    ledger: Ledger,
    landing: LandingStore,
    settings: Settings,
    project: str,
    days: Sequence[date],
    request: RecoveryRequest,
    now: datetime,
) -> list[PlannedHour]:
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    sources = {source: _source_hours(ledger, landing, grammar, source, project, days) for source in Source}
    # Where the vendor was asked again, a marker may lie beside half an hour.
    claimed = {one.hour for one in ledger.recoveries.open([project])}
    batches = ledger.batches([project], days[0], days[-1])
    for key, batch in batches.items():
        sources[key.source].batches[key.arrival_date] = batch
    planned = []
    for hour in (Hour(day, number) for day in days for number in range(24)):
        state, reason = _state(hour, sources, claimed)
        is_in_range = request.hours.first <= hour <= request.hours.last
        is_bad = state.is_bad and hour.end <= now
        is_on_record = any(hour.hour in hours_on_record(known.batches.get(hour.day)) for known in sources.values())
        planned.append(
            PlannedHour(
                project,
                hour,
                state,
                reason,
                is_asked=is_in_range and (is_bad or not request.is_refused_only),
                is_settled=state is HourState.RECOVERED or (state is HourState.NO_DATA and not request.is_asking_again),
                is_gap=not is_on_record and is_short(batches, BatchKey(Source.REGULAR, project, hour.day)),
                is_exported=hour.end + EXPORT_DELAY <= now,
                has_rows=any(hour in known.with_rows for known in sources.values()),
            )
        )
    return planned


def _state(hour: Hour, sources: Mapping[Source, _SourceHours], claimed: Set[Hour]) -> tuple[HourState, str | None]:
    backfill = sources[Source.BACKFILL]
    came = backfill.listed | backfill.accepted
    if hour in backfill.marked and hour not in backfill.refused | claimed:
        return HourState.RECOVERED if hour in came else HourState.NO_DATA, None
    if hour in claimed and hour in came:
        return HourState.UNFINISHED, None
    if hour in backfill.accepted - backfill.refused:
        return HourState.WHOLE, None
    for known in sources.values():
        batch = known.batches.get(hour.day)
        if batch is None or batch.verdict is not BatchVerdict.REFUSED:
            continue
        if hour in known.refused or hour in (known.listed | known.marked) - known.accepted:
            return HourState.REFUSED, batch.reason
        if batch.is_missing and hour in known.gone:
            return HourState.LOST, batch.reason
    if any(known.is_whole(hour) for known in sources.values()):
        return HourState.WHOLE, None
    is_there = any(hour in known.listed | known.marked for known in sources.values())
    return HourState.DELIVERED if is_there else HourState.MISSING, None


def _hour_of(grammar: ObjectKeys, record: DeliveryRecord) -> Hour | None:
    parsed = grammar.parse(record.batch.source, record.batch.project_id, record.object_key, "", 0)
    return Hour(record.batch.arrival_date, parsed.hour) if isinstance(parsed, Delivery) else None


def plan_repairs(
    ledger: Ledger,
    landing: LandingStore,
    settings: Settings,
    lacking: Mapping[Slice, bool],
    now: datetime,
    tried: Tried = frozenset(),
) -> list[Repair]:
    """Proposals for days that do not agree; `lacking`: day -> whether too little is published; `tried`: failed runs."""
    found = [
        repair
        for project in sorted({key.project_id for key in lacking})
        for part in stretches(sorted(key.event_date for key in lacking if key.project_id == project), _DAYS_AT_ONCE)
        for facts in _facts(ledger, landing, settings, project, part, now)
        for repair in repairs_of(replace(facts, is_lacking=lacking[facts.key]), tried)
    ]
    asking = (RepairKind.RECOVER, RepairKind.RECOVER_DAYS)
    return [
        replace(one, obstacle=str(error)) if one.kind in asking and (error := lacking_keys(one.project_id)) else one
        for one in together(found, settings.days_per_run)
    ]


def lacking_keys(project: str) -> SettingsError | None:
    """The error of a project without keys of the vendor's API."""
    try:
        export_keys(project)
    except SettingsError as error:
        return error
    return None


def _facts(
    ledger: Ledger, landing: LandingStore, settings: Settings, project: str, days: Sequence[date], now: datetime
) -> Iterator[DayFacts]:
    def reach(first: date, last: date) -> tuple[date, date]:
        # Arrival days whose objects usually hold events of these days; an event may be a day ahead of its arrival.
        latest = min(last + timedelta(days=settings.reprocessing_window_days), now.date())
        return max(first - timedelta(days=1), settings.calendar_start), latest

    unread, excluded = _objects(ledger, landing, project, *reach(days[0], days[-1]))
    asked = RecoveryRequest((project,), HourRange(Hour(days[0], 0), Hour(days[-1], 23)))
    hours = plan_recovery(ledger, landing, settings, asked, now).hours
    stale = scan_stale_days(ledger, settings, now, slices_to_look_at(ledger, settings, [project], days))
    records = [(table, ledger.slices(table.key, [project], days)) for table in DERIVED]
    holds = {table.key: ledger.interventions.holds(table.key, [project]) for table in DERIVED}
    for day in days:
        key, closes_at = Slice(day, project), deadline(day, settings)
        first, last = reach(day, day)
        of_day = [(table, of_table[key]) for table, of_table in records if key in of_table]
        near = {source: {at for at in arrivals if first <= at <= last} for source, arrivals in unread.items()}
        held = {name: of_table[key] for name, of_table in holds.items() if key in of_table}
        yield DayFacts(
            key,
            is_lacking=True,
            unread={source: arrivals for source, arrivals in near.items() if arrivals},
            stale=next((one.reason for one in stale.get(day, ()) if one.is_built), None),
            lacking_hours=tuple(
                one.hour
                for one in hours
                if one.hour.day == day and one.state.is_bad and one.is_exported and one.hour.end <= now
            ),
            hours_to_ask=tuple(one.hour for one in hours if one.hour.day == day and one.is_fetched),
            open_until=closes_at if now <= closes_at else None,
            holds=held,
            refused={
                table.key: record.reason or ""
                for table, record in of_day
                if record.verdict is Verdict.REFUSED and table.key not in held
            },
            excluded={name: reason for name, (at, reason) in excluded.items() if first <= at <= last},
            outdated=tuple(
                table.key for table, record in of_day if record.code_version not in (None, table.code_version(settings))
            ),
        )


def _objects(
    ledger: Ledger, landing: LandingStore, project: str, first: date, last: date
) -> tuple[dict[Source, set[date]], dict[str, tuple[date, str]]]:
    """Source -> arrival days with objects that no load has read; excluded object -> its arrival day and reason."""
    unread: dict[Source, set[date]] = {}
    excluded: dict[str, tuple[date, str]] = {}
    for source in Source:
        of = (source, [project], first, last)
        exclusions = ledger.interventions.exclusions(*of)
        excluded |= {key: (every[-1].batch.arrival_date, every[-1].reason) for key, every in exclusions.items()}
        known = {
            (key, record.etag)
            for is_accepted in (True, False)
            for key, record in ledger.deliveries(*of, is_accepted=is_accepted).items()
        }
        for one in landing.list(*of).deliveries:
            is_excluded = any(exclusion.names(one.etag, None) for exclusion in exclusions.get(one.key, ()))
            if (one.key, one.etag) not in known and not is_excluded:
                unread.setdefault(source, set()).add(one.batch.arrival_date)
    return unread, excluded
