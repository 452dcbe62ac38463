"""`regular_exports_arrived` and `backfill_exports_arrived`: load complete deliveries that are in landing but not in raw."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date, timedelta
from typing import NamedTuple

import dagster as dg

from pipeline_assets.domain.days import asked_for, days_between, describe_strays
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Listing
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.deliveries.batch import Recorded, plan_batches
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.readiness import ArrivalStatus, evaluate_arrivals, state_of
from pipeline_assets.load.staleness.finality import first_arrivals
from pipeline_assets.orchestration.sensor_requests import (
    DAYS_PER_TICK,
    Cursor,
    Subject,
    Tick,
    digest,
    load_sensor,
    request,
)
from pipeline_assets.orchestration.specs import JOB_OF_SOURCE, landing_key
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.landing.store import LandingStore


def arrival_sensor(settings: Settings, source: Source) -> dg.SensorDefinition:
    """Return the sensor of one source."""
    description = (
        f"Lists the {source.value} prefix of landing and loads the days that are due: hours complete, changed or gone, "
        "or their deadline passed. Says what it waits for."
    )
    name = f"{source.value}_exports_arrived"
    return load_sensor(settings, name, JOB_OF_SOURCE[source], 60, description, lambda tick: _arrivals(tick, source))


def _arrivals(tick: Tick, source: Source) -> dg.SensorResult:
    settings, cursor, landing = tick.settings, tick.cursor, tick.landing
    today = tick.now.date()
    if settings.calendar_start > today:
        return tick.skip(
            f"TIDEMARK_CALENDAR_START {settings.calendar_start} lies in the future, so there is no day to list"
        )
    found = list_windows(landing, source, settings, cursor, today)
    plans: dict[BatchKey, BatchPlan] = {}
    elsewhere: set[BatchKey] = set()
    strays: tuple[Delivery, ...] = ()
    for (first, last), listing in found:
        strays += listing.strays
        days = (first, last)
        recorded = Recorded.read(tick.ledger, landing, listing, source, settings.projects, days, settings)
        elsewhere |= recorded.delivered_elsewhere(source)
        plans |= plan_batches(
            source,
            settings.projects,
            days_between(first, last),
            listing,
            recorded,
            settings,
            tick.now,
            code_version=RAW_TABLES[source].code_version(settings),
            accepted_reasons={},
        )
    # Any listing will do, because each includes the first arrival.
    firsts = first_arrivals(tick.ledger, settings, settings.projects, today, listing=listing, source=source)
    tick.ledger.strays.replace(source, settings.projects, strays)
    starts = first_arrivals(tick.ledger, settings, settings.projects, today, listing=listing)
    status = evaluate_arrivals(plans, firsts, elsewhere, cursor.seen, settings, tick.now, starts)
    looked_at = {str(key) for key in plans}
    kept = {name: observation for name, observation in cursor.seen.items() if name.rpartition("/")[0] not in looked_at}
    cursor.seen = kept | dict(status.observations)
    waits = [describe_strays([stray.key for stray in strays])] if strays else []
    waits += [f"{key}: {why}" for key, why in status.waiting.items()]
    if source is Source.REGULAR and not firsts:
        hint = "check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS if it should"
        waits.append(f"landing lists nothing for {', '.join(settings.projects)}; {hint}")
    return request(
        tick,
        JOB_OF_SOURCE[source],
        {
            Subject(day, day): [(state_of(plans[key], settings), status.due[key]) for key in keys]
            for day, keys in _by_day(status.due).items()
        },
        reach=settings.reprocessing_window_days,
        is_looked_at=lambda subject: any(first <= subject.day <= last for (first, last), _ in found),
        waits=waits,
        events=_materializations(source, plans, status, settings, cursor),
    )


def _materializations(
    source: Source, plans: Mapping[BatchKey, BatchPlan], status: ArrivalStatus, settings: Settings, cursor: Cursor
) -> list[dg.AssetMaterialization]:
    events = []
    for day, keys in _by_day(plans).items():
        deliveries = [delivery for key in keys for delivery in plans[key].listed.values()]
        complete: set[tuple[str, int]] = set()
        for key in keys:
            hours = plans[key].hours_marked
            if source is Source.BACKFILL or settings.hours_complete_by is not Completeness.MARKERS:
                # Without markers, hours that are loaded or no longer change count as complete.
                hours = frozenset(one.hour for one in plans[key].listed.values()) - status.incomplete.get(
                    key, frozenset()
                )
            complete |= {(key.project_id, hour) for hour in hours}
        reported = cursor.reported.get(day.isoformat())
        state = digest([*(f"{delivery.key} {delivery.etag}" for delivery in deliveries), *map(str, sorted(complete))])
        if reported != state and (deliveries or complete or reported is not None):
            cursor.reported[day.isoformat()] = state
            delivered = {(delivery.batch.project_id, delivery.hour) for delivery in deliveries}
            metadata: dict[str, int | str] = {
                "objects": len(deliveries),
                "bytes": sum(delivery.size_bytes for delivery in deliveries),
                "hours_delivered": len(delivered),
                "hours_complete": len(complete),
                "projects": ", ".join(sorted({project for project, _ in (*delivered, *complete)})),
            }
            key_of_source = landing_key(f"{source.value}_exports")
            events.append(dg.AssetMaterialization(key_of_source, partition=day.isoformat(), metadata=metadata))
    return events


def _by_day(batches: Collection[BatchKey]) -> dict[date, list[BatchKey]]:
    days: dict[date, list[BatchKey]] = {}
    for key in sorted(batches):
        days.setdefault(key.arrival_date, []).append(key)
    return days


MOST_BATCHES = 2_000
"""(day, project) pairs of regular exports listed per evaluation: with 120 names each, about ten seconds."""
MOST_NAMES = 240_000
"""The limit of names for recovered exports, to which the limit of pairs does not apply."""
_PROJECTS_AT_ONCE = 16
_FEWEST_PARTS = 2
"""Days listed beside the newest ones, however many names they have: one of each walk."""

Window = tuple[date, date]


class _Look(NamedTuple):
    windows: list[Window]
    horizon_from: date | None
    sweep_from: date | None

    @property
    def days(self) -> int:
        return sum((last - first).days + 1 for first, last in self.windows)


def list_windows(
    landing: LandingStore, source: Source, settings: Settings, cursor: Cursor, today: date
) -> list[tuple[Window, Listing]]:
    """Return the windows of this evaluation, newest first, with the listing of each; advances the cursor.

    The limit counts days of regular exports. Recoveries lie on few, mostly old days, and an empty folder costs the same
    for a month as for a day, so the limit counts their names. Raises the errors of `LandingStore.list`.
    """
    projects = settings.projects
    fewest = _newest_days(settings) + _FEWEST_PARTS
    look = _look(settings, cursor, today, None)
    most_names = None
    if look.days * len(projects) > MOST_BATCHES:
        if source is Source.REGULAR:
            look = _look(settings, cursor, today, max(fewest, MOST_BATCHES // len(projects)))
        else:
            most_names = MOST_NAMES
    while True:
        listings, listed = _listed(landing, source, settings, look, today, most_names)
        if listings is not None:
            cursor.horizon_from, cursor.sweep_from = look.horizon_from, look.sweep_from
            return list(zip(look.windows, listings, strict=True))
        days = max(fewest, min(listed // len(projects), look.days * 3 // 4))
        look = _look(settings, cursor, today, days)
        most_names = MOST_NAMES if days > fewest else None


def _listed(
    landing: LandingStore, source: Source, settings: Settings, look: _Look, today: date, most_names: int | None
) -> tuple[list[Listing] | None, int]:
    """List each window; returns the listings, None where they exceed `most_names`, and the number of (day, project) pairs."""
    at_once = len(settings.projects) if most_names is None else _PROJECTS_AT_ONCE
    listings, names, listed = [], 0, 0
    for first, last in look.windows:
        asked = asked_for(settings, today) if last == today else None
        parts = []
        for start in range(0, len(settings.projects), at_once):
            projects = settings.projects[start : start + at_once]
            part = landing.list(source, projects, first, last, asked)
            names += len(part.deliveries) + len(part.markers)
            listed += len(projects) * ((last - first).days + 1)
            if most_names is not None and names > most_names:
                return None, listed
            parts.append(part)
        listings.append(Listing.joined(parts))
    return listings, listed


def _newest_days(settings: Settings) -> int:
    return settings.reprocessing_window_days + 2


def _look(settings: Settings, cursor: Cursor, today: date, days: int | None) -> _Look:
    """The redelivery horizon, and the next part of older days; above `days`, the newest days and parts of both."""
    recent = max(settings.calendar_start, today - timedelta(days=settings.redelivery_horizon_days))
    older = DAYS_PER_TICK if recent > settings.calendar_start else 0
    newest, in_horizon = recent, 0
    if days is not None and (today - recent).days + 1 + older > days:
        newest = max(recent, today - timedelta(days=_newest_days(settings) - 1))
        left = max(_FEWEST_PARTS, days - (today - newest).days - 1)
        older = min(older, max(1, left // 4))
        in_horizon = left - older
    windows, horizon_from, sweep_from = [(newest, today)], cursor.horizon_from, cursor.sweep_from
    if newest > recent:
        windows.append(_next_part(recent, newest, in_horizon, horizon_from))
        horizon_from = windows[-1][1] + timedelta(days=1)
    if older:
        windows.append(_next_part(settings.calendar_start, recent, older, sweep_from))
        sweep_from = windows[-1][1] + timedelta(days=1)
    return _Look(windows, horizon_from, sweep_from)


def _next_part(start: date, end: date, days: int, goes_on: date | None) -> Window:
    first = goes_on if goes_on is not None and start <= goes_on < end else start
    return first, min(first + timedelta(days=days), end) - timedelta(days=1)
