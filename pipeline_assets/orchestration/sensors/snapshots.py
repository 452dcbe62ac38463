"""`dimension_snapshots_arrived`: what landing holds of dimensions and their tables do not is loaded when it is marked.

Contains: one look at the dimensions' folders, and the source assets' figures.
Add here: what an evaluation looks at.
Does not contain: when a snapshot is due (load/staleness/snapshots.py) and runs (requests.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import dagster as dg

from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.deliveries.snapshots import SnapshotListing, list_snapshots
from pipeline_assets.load.dimensions import plans_of_snapshots
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.jobs import DIMENSION_JOB, PRIORITY_OF_DIMENSIONS
from pipeline_assets.orchestration.landing_assets import snapshot_delivered
from pipeline_assets.orchestration.sensors.cursor import Cursor
from pipeline_assets.orchestration.sensors.requests import Due, Tick, default_status, digest, guarded, request
from pipeline_assets.tables.registry import DIMENSIONS
from resources.landing.store import LandingStore


def snapshot_sensor(settings: Settings) -> dg.SensorDefinition:
    """The sensor of all dimensions."""

    @dg.sensor(
        name="dimension_snapshots_arrived",
        job_name=DIMENSION_JOB,
        minimum_interval_seconds=60,
        default_status=default_status(settings),
        description=(
            "Lists the folders of dimensions in landing and loads the snapshots that are due: marked, changed, or their "
            "deadline passed. Says what it waits for."
        ),
    )
    def arrived(
        context: dg.SensorEvaluationContext,
        landing: dg.ResourceParam[LandingStore],
        clock: dg.ResourceParam[Clock],
    ) -> dg.SensorResult:
        return guarded(context, settings, clock.now(), lambda tick: _arrivals(tick, landing))

    return arrived


def _arrivals(tick: Tick, landing: LandingStore) -> dg.SensorResult:
    listings = {one.name: list_snapshots(landing, one.name) for one in DIMENSIONS}
    if not any(listing.days for listing in listings.values()):
        return tick.skip("landing holds no snapshot of a dimension")
    today, start = tick.now.date(), tick.settings.calendar_start
    due: dict[date, list[tuple[str, SlicePlan, str]]] = {}
    waits: list[str] = []
    beyond: list[str] = []
    for one in DIMENSIONS:
        for plan in plans_of_snapshots(tick.ledger, tick.settings, one, listings[one.name], tick.now):
            day = plan.key.event_date
            if not start <= day <= today:
                beyond.append(plan.delivered.key if plan.delivered is not None else f"{one.snapshot.key} {day}")
                continue
            reason = _reason_to_load(plan)
            if reason is not None:
                due.setdefault(day, []).append((one.snapshot.key, plan, reason))
            elif plan.todo is Todo.WAIT:
                waits.append(f"{one.snapshot.key} {day}: {plan.reason}")
    return request(
        tick,
        DIMENSION_JOB,
        {
            day: Due(
                digest(f"{name} {plan.todo.name} {plan.present} {reason}" for name, plan, reason in of_day),
                "; ".join(f"{name} {reason}" for name, _, reason in of_day),
            )
            for day, of_day in sorted(due.items())
        },
        priority=PRIORITY_OF_DIMENSIONS,
        waits=[f"outside of the calendar ({start} to {today}) lie {few(beyond, 5)}", *waits] if beyond else waits,
        events=_materializations(listings, tick.cursor, start, today),
    )


def _reason_to_load(plan: SlicePlan) -> str | None:
    """Why a load would change what is on record of a day; what waits for its deadline, or is on record as it is, is left."""
    if plan.todo is Todo.REBUILD:
        return plan.cause.text
    is_told = (
        plan.record is not None
        and not plan.record.verdict.is_good
        and (plan.record.reason or "").endswith(plan.reason or "")
    )
    if plan.todo in (Todo.WAIT, Todo.REFUSE) and not plan.is_early and not is_told:
        return plan.reason
    if plan.todo is Todo.KEEP and plan.record is not None and not plan.record.verdict.is_good:
        return f"is no longer {plan.record.verdict.value}"
    return None


def _materializations(
    listings: Mapping[str, SnapshotListing], cursor: Cursor, first: date, last: date
) -> list[dg.AssetMaterialization]:
    """What is new of the source assets' days, for Dagster."""
    events = []
    days = {day for listing in listings.values() for day in listing.days if first <= day <= last}
    for day in sorted(days):
        there = {name: listing.days[day] for name, listing in listings.items() if day in listing.days}
        state = digest(f"{name} {one.version} {one.is_marked}" for name, one in sorted(there.items()))
        if cursor.reported.get(day.isoformat()) != state:
            cursor.reported[day.isoformat()] = state
            events += [snapshot_delivered(name, day, one) for name, one in sorted(there.items())]
    return events
