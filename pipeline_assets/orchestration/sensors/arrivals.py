"""`regular_exports_arrived` and `backfill_exports_arrived`: what landing holds and raw does not is loaded when it is complete.

Contains: one look at a prefix of landing, and the source assets' figures.
Add here: what an evaluation looks at.
Does not contain: when a batch is due (deliveries/readiness.py) and runs (requests.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta

import dagster as dg

from pipeline_assets.domain.arrival_days import asked_for, told_strays
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.deliveries.batch import Recorded, plan_batches
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.readiness import Look, look, state_of
from pipeline_assets.load.deliveries.relocated import find_relocated
from pipeline_assets.load.staleness.first_arrival import first_arrivals
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.jobs import JOB_OF_SOURCE, PRIORITIES
from pipeline_assets.orchestration.landing_assets import delivered
from pipeline_assets.orchestration.sensors.cursor import Cursor
from pipeline_assets.orchestration.sensors.requests import Due, Tick, default_status, digest, guarded, request
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.landing.store import LandingStore


def arrival_sensor(settings: Settings, source: Source) -> dg.SensorDefinition:
    """The sensor of one source."""

    @dg.sensor(
        name=f"{source.value}_exports_arrived",
        job_name=JOB_OF_SOURCE[source],
        minimum_interval_seconds=60,
        default_status=default_status(settings),
        description=(
            f"Looks at the {source.value} prefix of landing and loads the days that are due: hours complete, changed or gone, "
            "or their deadline passed. Says what it waits for."
        ),
    )
    def arrived(
        context: dg.SensorEvaluationContext,
        landing: dg.ResourceParam[LandingStore],
        clock: dg.ResourceParam[Clock],
    ) -> dg.SensorResult:
        return guarded(context, settings, clock.now(), lambda tick: _arrivals(tick, source, landing))

    return arrived


def _arrivals(tick: Tick, source: Source, landing: LandingStore) -> dg.SensorResult:
    settings, cursor = tick.settings, tick.cursor
    today = tick.now.date()
    if settings.calendar_start > today:
        return tick.skip(
            f"TIDEMARK_CALENDAR_START {settings.calendar_start} lies ahead; nothing before it is looked at"
        )
    windows = _windows(settings, cursor, today)
    plans: dict[BatchKey, BatchPlan] = {}
    elsewhere: set[BatchKey] = set()
    strays: tuple[Delivery, ...] = ()
    for first, last in windows:
        # Of the recent days, which come first, what lies outside of all days is asked for as well.
        asked = asked_for(settings, today) if last == today else None
        listing = landing.list(source, settings.projects, first, last, asked)
        strays += listing.strays
        recorded = Recorded.read(tick.ledger, source, settings.projects, first, last)
        relocated = find_relocated(source, listing, recorded.accepted, landing, tick.ledger, settings)
        recorded = replace(recorded, relocated=relocated)
        elsewhere |= recorded.delivered_elsewhere(source).keys()
        plans |= plan_batches(
            source, settings.projects, days_between(first, last), listing, recorded, settings, tick.now,
            code_version=RAW_TABLES[source].code_version(settings), accepted_reasons={},
        )  # fmt: skip
    # The last listing serves as well as any: each knows the first arrival wherever it lies.
    firsts = first_arrivals(tick.ledger, settings, settings.projects, today, listing=listing, source=source)
    tick.ledger.strays.replace(source, settings.projects, strays)
    found = look(plans, firsts, elsewhere, cursor.seen, settings, tick.now)
    looked_at = {str(key) for key in plans}
    kept = {name: one for name, one in cursor.seen.items() if name.rpartition("/")[0] not in looked_at}
    cursor.seen = kept | dict(found.seen)
    return request(
        tick,
        JOB_OF_SOURCE[source],
        {
            day: Due(
                digest(state_of(plans[key], settings) for key in keys),
                "; ".join(dict.fromkeys(found.due[key] for key in keys)),
            )
            for day, keys in _by_day(found.due).items()
        },
        priority=PRIORITIES[source],
        reach=settings.reprocessing_window_days,
        is_looked_at=lambda day: any(first <= day <= last for first, last in windows),
        waits=_waits(source, found, firsts, strays, settings),
        events=_told(source, plans, found, settings, cursor),
    )


def _waits(
    source: Source, found: Look, firsts: Mapping[str, date], strays: Sequence[Delivery], settings: Settings
) -> list[str]:
    waits = [told_strays([one.key for one in strays])] if strays else []
    waits += [f"{key}: {why}" for key, why in found.waiting.items()]
    if source is Source.REGULAR and not firsts:
        names = ", ".join(settings.projects)
        waits.append(
            f"landing lists nothing for {names}; check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS if it should"
        )
    return waits


def _windows(settings: Settings, cursor: Cursor, today: date) -> list[tuple[date, date]]:
    """The arrival days to list: all inside the redelivery horizon, and a part of the older ones, another one each time."""
    recent = max(settings.calendar_start, today - timedelta(days=settings.redelivery_horizon_days))
    windows = [(recent, today)]
    if recent > settings.calendar_start:
        first = (
            cursor.sweep_from if cursor.sweep_from and settings.calendar_start <= cursor.sweep_from < recent else None
        )
        first = first or settings.calendar_start
        last = min(first + timedelta(days=settings.sensor_days_per_tick), recent) - timedelta(days=1)
        windows.append((first, last))
        cursor.sweep_from = last + timedelta(days=1)
    return windows


def _told(
    source: Source, plans: Mapping[BatchKey, BatchPlan], found: Look, settings: Settings, cursor: Cursor
) -> list[dg.AssetMaterialization]:
    """What is new of the source asset's days, for Dagster; a day whose objects are gone is told as empty."""
    by_day: dict[date, list[BatchKey]] = _by_day(plans)
    events = []
    for day, keys in by_day.items():
        deliveries = [one for key in keys for one in plans[key].listed.values()]
        complete = {(key.project_id, hour) for key in keys for hour in _complete_hours(plans[key], found, settings)}
        is_known = day.isoformat() in cursor.told
        told = digest([*(f"{one.key} {one.etag}" for one in deliveries), *map(str, sorted(complete))])
        if cursor.told.get(day.isoformat()) != told and (deliveries or complete or is_known):
            cursor.told[day.isoformat()] = told
            events.append(delivered(source, day, deliveries, complete))
    return events


def _complete_hours(plan: BatchPlan, found: Look, settings: Settings) -> frozenset[int]:
    """Those with a marker; where the exporter writes none, those that rest or are loaded."""
    if plan.key.source is Source.REGULAR and settings.hours_complete_by is Completeness.MARKERS:
        return plan.hours_marked
    return frozenset(one.hour for one in plan.listed.values()) - found.incomplete.get(plan.key, frozenset())


def _by_day(batches: Collection[BatchKey]) -> dict[date, list[BatchKey]]:
    days: dict[date, list[BatchKey]] = {}
    for key in sorted(batches):
        days.setdefault(key.arrival_date, []).append(key)
    return days
