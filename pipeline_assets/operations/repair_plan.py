"""Plan runs that repair days which do not agree, from ledger and landing; no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

from pipeline_assets.domain.days import Hour, HourRange, deadline, stretches
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.repairs import DayFacts, Repair, RepairKind, Tried, repairs_of, together
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source, Verdict
from pipeline_assets.load.staleness.facts import slices_to_look_at
from pipeline_assets.load.staleness.scan import scan_stale_days
from pipeline_assets.operations.recover_plan import RecoveryRequest, plan_recovery
from pipeline_assets.tables.registry import DERIVED
from resources.export_api import export_keys
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

_DAYS_AT_ONCE = 31


def plan_repairs(
    ledger: Ledger,
    landing: LandingStore,
    settings: Settings,
    lacking: Mapping[Slice, bool],
    now: datetime,
    tried: Tried = frozenset(),
) -> list[Repair]:
    """Proposals for the days that do not agree; writes nothing. `lacking`: day -> whether too little is published.

    `tried`: earlier runs that did not close a day. Raises the errors of ledger and landing where they cannot be reached.
    """
    found = [
        repair
        for project in sorted({key.project_id for key in lacking})
        for part in stretches(sorted(key.event_date for key in lacking if key.project_id == project), _DAYS_AT_ONCE)
        for facts in _facts(ledger, landing, settings, project, part, now)
        for repair in repairs_of(replace(facts, is_lacking=lacking[facts.key]), tried)
    ]
    return [replace(one, obstacle=_obstacle(one)) for one in together(found, settings.days_per_run)]


def _obstacle(one: Repair) -> str | None:
    try:
        if one.kind in (RepairKind.RECOVER, RepairKind.RECOVER_DAYS):
            export_keys(one.project_id)
    except SettingsError as error:
        return str(error)
    return None


def _facts(
    ledger: Ledger, landing: LandingStore, settings: Settings, project: str, days: Sequence[date], now: datetime
) -> Iterator[DayFacts]:
    """The facts about consecutive days of a project, but for what they lack."""

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
    """Source -> arrival days with objects that no load has read; excluded object -> its arrival day and why."""
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
