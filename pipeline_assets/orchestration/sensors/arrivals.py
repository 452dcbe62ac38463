"""`regular_exports_arrived` and `backfill_exports_arrived`: load complete deliveries that are in landing but not in raw."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date

import dagster as dg

from pipeline_assets.domain.arrival_days import describe_strays
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.deliveries.batch import Recorded, plan_batches
from pipeline_assets.load.deliveries.losses import find_relocated
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.readiness import ArrivalStatus, evaluate_arrivals, state_of
from pipeline_assets.load.staleness.finality import first_arrivals
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.jobs import JOB_OF_SOURCE, PRIORITIES
from pipeline_assets.orchestration.landing_assets import delivered
from pipeline_assets.orchestration.sensors.cursor import Cursor, Subject
from pipeline_assets.orchestration.sensors.requests import Due, Tick, default_status, digest, guarded, request
from pipeline_assets.orchestration.sensors.windows import list_windows
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.landing.store import LandingStore


def arrival_sensor(settings: Settings, source: Source) -> dg.SensorDefinition:
    """Return the sensor of one source."""

    @dg.sensor(
        name=f"{source.value}_exports_arrived",
        job_name=JOB_OF_SOURCE[source],
        minimum_interval_seconds=60,
        default_status=default_status(settings),
        description=(
            f"Lists the {source.value} prefix of landing and loads the days that are due: hours complete, changed or gone, "
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
            f"TIDEMARK_CALENDAR_START {settings.calendar_start} lies in the future, so there is no day to list"
        )
    found = list_windows(landing, source, settings, cursor, today)
    plans: dict[BatchKey, BatchPlan] = {}
    elsewhere: set[BatchKey] = set()
    strays: tuple[Delivery, ...] = ()
    for (first, last), listing in found:
        strays += listing.strays
        recorded = Recorded.read(tick.ledger, source, settings.projects, first, last, settings)
        relocated = find_relocated(source, listing, recorded.accepted, landing, tick.ledger, settings)
        recorded = replace(recorded, relocated=relocated)
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
    return request(
        tick,
        JOB_OF_SOURCE[source],
        {
            Subject(day, day): Due(
                digest(state_of(plans[key], settings) for key in keys),
                "; ".join(dict.fromkeys(status.due[key] for key in keys)),
            )
            for day, keys in _by_day(status.due).items()
        },
        priority=PRIORITIES[source],
        reach=settings.reprocessing_window_days,
        is_looked_at=lambda subject: any(first <= subject.day <= last for (first, last), _ in found),
        waits=_waits(source, status, firsts, strays, settings),
        events=_materializations(source, plans, status, settings, cursor),
    )


def _waits(
    source: Source, status: ArrivalStatus, firsts: Mapping[str, date], strays: Sequence[Delivery], settings: Settings
) -> list[str]:
    waits = [describe_strays([stray.key for stray in strays])] if strays else []
    waits += [f"{key}: {why}" for key, why in status.waiting.items()]
    if source is Source.REGULAR and not firsts:
        names = ", ".join(settings.projects)
        waits.append(
            f"landing lists nothing for {names}; check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS if it should"
        )
    return waits


def _materializations(
    source: Source, plans: Mapping[BatchKey, BatchPlan], status: ArrivalStatus, settings: Settings, cursor: Cursor
) -> list[dg.AssetMaterialization]:
    """Materializations of the source asset's days that changed; a day whose objects are gone is reported as empty."""
    by_day: dict[date, list[BatchKey]] = _by_day(plans)
    events = []
    for day, keys in by_day.items():
        deliveries = [delivery for key in keys for delivery in plans[key].listed.values()]
        complete = {(key.project_id, hour) for key in keys for hour in _complete_hours(plans[key], status, settings)}
        is_known = day.isoformat() in cursor.reported
        state = digest([*(f"{delivery.key} {delivery.etag}" for delivery in deliveries), *map(str, sorted(complete))])
        if cursor.reported.get(day.isoformat()) != state and (deliveries or complete or is_known):
            cursor.reported[day.isoformat()] = state
            events.append(delivered(source, day, deliveries, complete))
    return events


def _complete_hours(plan: BatchPlan, status: ArrivalStatus, settings: Settings) -> frozenset[int]:
    """Hours with a marker. Where the exporter writes no markers, hours that are loaded or no longer change."""
    if plan.key.source is Source.REGULAR and settings.hours_complete_by is Completeness.MARKERS:
        return plan.hours_marked
    return frozenset(delivery.hour for delivery in plan.listed.values()) - status.incomplete.get(plan.key, frozenset())


def _by_day(batches: Collection[BatchKey]) -> dict[date, list[BatchKey]]:
    days: dict[date, list[BatchKey]] = {}
    for key in sorted(batches):
        days.setdefault(key.arrival_date, []).append(key)
    return days
