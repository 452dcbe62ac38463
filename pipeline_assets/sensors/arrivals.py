"""`regular_exports_arrived` and `backfill_exports_arrived`: what landing holds and raw does not is loaded when it is complete.

Lives here: one look at a prefix of landing, and the source assets' figures. Put here: what an evaluation looks at. Keep out: when
a batch is due (load_path/readiness.py) and runs (requests.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, datetime, timedelta

import dagster as dg

from pipeline_assets.domain.deliveries import BatchKey, Delivery, Listing, Marker
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.jobs import JOB_OF_SOURCE, PRIORITIES
from pipeline_assets.landing import delivered
from pipeline_assets.load import Clock
from pipeline_assets.load_path.raw.batches import BatchPlan, Recorded, first_arrivals, plan_batches
from pipeline_assets.load_path.readiness import look, state_of
from pipeline_assets.partitions import days_between
from pipeline_assets.sensors.cursor import Cursor
from pipeline_assets.sensors.requests import ask, default_status, digest, guarded, result
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.landing_store import LandingStore
from resources.ledger import Ledger


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
        def evaluate(ledger: Ledger, cursor: Cursor) -> dg.SensorResult:
            return _arrivals(context, settings, source, landing, ledger, cursor, clock.now())

        return guarded(context, settings, evaluate)

    return arrived


def _arrivals(
    context: dg.SensorEvaluationContext,
    settings: Settings,
    source: Source,
    landing: LandingStore,
    ledger: Ledger,
    cursor: Cursor,
    now: datetime,
) -> dg.SensorResult:
    windows = _windows(settings, cursor, now.date())
    plans: dict[BatchKey, BatchPlan] = {}
    firsts: dict[str, date] = {}
    events: list[dg.AssetMaterialization] = []
    for first, last in windows:
        listing = landing.list(source, settings.projects, first, last)
        # The same in every window: a listing knows the first arrival wherever it lies.
        firsts = first_arrivals(ledger, listing, settings.projects)
        plans |= _plans(settings, source, ledger, listing, days_between(first, last), now)
        events += _told(source, listing, cursor)
    found = look(plans, firsts, cursor.seen, settings, now)
    due = _by_day(found.due)
    states = {day: digest(state_of(plans[key], settings) for key in keys) for day, keys in due.items()}
    asked = ask(context, settings, JOB_OF_SOURCE[source], states, cursor, now, reach=settings.reprocessing_window_days)
    cursor.seen = dict(found.seen)
    reasons = {day: "; ".join(dict.fromkeys(found.due[key] for key in keys)) for day, keys in due.items()}
    waits = [f"{key}: {why}" for key, why in found.waiting.items()]
    return result(asked, JOB_OF_SOURCE[source], reasons, waits, cursor, events, priority=PRIORITIES[source])


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


def _plans(
    settings: Settings, source: Source, ledger: Ledger, listing: Listing, days: Sequence[date], now: datetime
) -> dict[BatchKey, BatchPlan]:
    recorded = Recorded.read(ledger, source, settings.projects, days[0], days[-1])
    code = RAW_TABLES[source].code_version(settings)
    return plan_batches(
        source, settings.projects, days, listing, recorded, settings, now, code_version=code, accepted_reasons={}
    )


def _told(source: Source, listing: Listing, cursor: Cursor) -> list[dg.AssetMaterialization]:
    """What is new of the source asset's days, for Dagster."""
    objects: dict[date, list[Delivery]] = {}
    markers: dict[date, list[Marker]] = {}
    for delivery in listing.deliveries:
        objects.setdefault(delivery.batch.arrival_date, []).append(delivery)
    for marker in listing.markers:
        markers.setdefault(marker.batch.arrival_date, []).append(marker)
    events = []
    for day in sorted(objects.keys() | markers.keys()):
        here, marked = objects.get(day, []), markers.get(day, [])
        told = digest([*(f"{one.key} {one.etag}" for one in here), *(one.key for one in marked)])
        if cursor.told.get(day.isoformat()) != told:
            cursor.told[day.isoformat()] = told
            events.append(delivered(source, day, here, marked))
    return events


def _by_day(batches: Collection[BatchKey]) -> dict[date, list[BatchKey]]:
    days: dict[date, list[BatchKey]] = {}
    for key in sorted(batches):
        days.setdefault(key.arrival_date, []).append(key)
    return days
