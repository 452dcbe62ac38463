"""Plan runs that repair days which do not agree, from ledger and landing; no JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from pipeline_assets.domain.days import deadline, stretches
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.hours import Hour, HourRange
from pipeline_assets.domain.repairs import DayFacts, Repair, RepairKind, repairs_of, together
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source, Verdict
from pipeline_assets.load.staleness.facts import slices_to_look_at
from pipeline_assets.load.staleness.scan import scan_stale_days
from pipeline_assets.operations.recover_plan import PlannedHour, RecoveryRequest, plan_recovery
from pipeline_assets.tables.registry import DERIVED
from resources.export_api.credentials import ExportCredentials
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

_DAYS_AT_ONCE = 31


def plan_repairs(
    ledger: Ledger,
    landing: LandingStore,
    settings: Settings,
    lacking: Mapping[Slice, bool],
    now: datetime,
    tried: Set[tuple[RepairKind, Slice]] = frozenset(),
) -> list[Repair]:
    """Proposals for the days that do not agree; writes nothing. `lacking`: day -> whether too little is published.

    `tried`: earlier runs that did not close a day. Raises the errors of ledger and landing where they cannot be reached.
    """
    found: list[Repair] = []
    for project in sorted({key.project_id for key in lacking}):
        days = sorted(key.event_date for key in lacking if key.project_id == project)
        for part in stretches(days, _DAYS_AT_ONCE):
            look = _Look(ledger, landing, settings, project, part, now)
            for facts in look.facts(lacking):
                found += repairs_of(facts, tried)
    return [_with_obstacle(one) for one in together(found, settings.days_per_run)]


def _with_obstacle(one: Repair) -> Repair:
    if one.kind not in (RepairKind.RECOVER, RepairKind.RECOVER_DAYS):
        return one
    try:
        ExportCredentials.of(one.project_id)
    except SettingsError as error:
        return replace(one, obstacle=str(error))
    return one


@dataclass(frozen=True)
class _Look:
    """Access to the facts about consecutive days of a project."""

    ledger: Ledger
    landing: LandingStore
    settings: Settings
    project_id: str
    days: Sequence[date]
    now: datetime

    def facts(self, lacking: Mapping[Slice, bool]) -> list[DayFacts]:
        unread, excluded = self._unread(), self._excluded()
        hours, stale = self._hours(), self._stale()
        tables = {table.key: table for table in DERIVED}
        records = {name: self.ledger.slices(name, [self.project_id], self.days) for name in tables}
        holds = {name: self.ledger.interventions.holds(name, [self.project_id]) for name in tables}
        found = []
        for day in self.days:
            key = Slice(day, self.project_id)
            of_day = {name: records[name][key] for name in tables if key in records[name]}
            reach = self._reach(day, day)
            closes_at = deadline(day, self.settings)
            found.append(
                DayFacts(
                    key,
                    lacking[key],
                    unread={
                        source: near
                        for source, arrivals in unread.items()
                        if (near := {at for at in arrivals if reach[0] <= at <= reach[1]})
                    },
                    stale=stale.get(key),
                    lacking_hours=tuple(
                        one.hour
                        for one in hours[day]
                        if one.state.is_bad and one.is_exported and one.hour.end <= self.now
                    ),
                    hours_to_ask=tuple(one.hour for one in hours[day] if one.is_fetched),
                    open_until=closes_at if self.now <= closes_at else None,
                    holds={name: holds[name][key] for name in tables if key in holds[name]},
                    refused={
                        name: record.reason or ""
                        for name, record in of_day.items()
                        if record.verdict is Verdict.REFUSED and key not in holds[name]
                    },
                    excluded={name: reason for name, (at, reason) in excluded.items() if reach[0] <= at <= reach[1]},
                    outdated=tuple(
                        name
                        for name, record in of_day.items()
                        if record.code_version not in (None, tables[name].code_version(self.settings))
                    ),
                )
            )
        return found

    def _reach(self, first: date, last: date) -> tuple[date, date]:
        """The arrival days whose objects usually hold events of these days; an event may be a day ahead of its arrival."""
        window = timedelta(days=self.settings.reprocessing_window_days)
        earliest = max(first - timedelta(days=1), self.settings.calendar_start)
        return earliest, min(last + window, self.now.date())

    def _unread(self) -> dict[Source, set[date]]:
        first, last = self._reach(self.days[0], self.days[-1])
        found: dict[Source, set[date]] = {}
        for source in Source:
            listing = self.landing.list(source, [self.project_id], first, last)
            known = {
                (key, record.etag)
                for is_accepted in (True, False)
                for key, record in self.ledger.deliveries(
                    source, [self.project_id], first, last, is_accepted=is_accepted
                ).items()
            }
            ruled_out = self.ledger.interventions.exclusions(source, [self.project_id], first, last)
            for one in listing.deliveries:
                is_ruled_out = any(exclusion.names(one.etag, None) for exclusion in ruled_out.get(one.key, ()))
                if (one.key, one.etag) not in known and not is_ruled_out:
                    found.setdefault(source, set()).add(one.batch.arrival_date)
        return found

    def _excluded(self) -> dict[str, tuple[date, str]]:
        first, last = self._reach(self.days[0], self.days[-1])
        return {
            key: (exclusions[-1].batch.arrival_date, exclusions[-1].reason)
            for source in Source
            for key, exclusions in self.ledger.interventions.exclusions(source, [self.project_id], first, last).items()
        }

    def _hours(self) -> dict[date, list[PlannedHour]]:
        asked = HourRange(Hour(self.days[0], 0), Hour(self.days[-1], 23))
        request = RecoveryRequest((self.project_id,), asked)
        found: dict[date, list[PlannedHour]] = {day: [] for day in self.days}
        for one in plan_recovery(self.ledger, self.landing, self.settings, request, self.now).hours:
            found[one.hour.day].append(one)
        return found

    def _stale(self) -> dict[Slice, str]:
        looked_at = slices_to_look_at(self.ledger, self.settings, [self.project_id], self.days)
        stale = scan_stale_days(self.ledger, self.settings, self.now, looked_at)
        return {
            Slice(day, self.project_id): one.reason
            for day, reasons in stale.items()
            for one in reversed(reasons)
            if one.is_built and day in self.days
        }
