"""`dimension_snapshots_arrived`: load marked snapshots of dimensions that are in landing but not in their tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import dagster as dg

from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.deliveries.snapshots import SnapshotListing, by_version, exclusions_of_dimensions
from pipeline_assets.load.dimensions import list_of, news_of_intervals, plans_of_snapshots
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.orchestration.jobs import DIMENSION_JOB
from pipeline_assets.orchestration.sensors.cursor import Cursor, Subject
from pipeline_assets.orchestration.sensors.requests import Tick, digest, load_sensor, request
from pipeline_assets.orchestration.specs import source_of
from pipeline_assets.tables.registry import DIMENSIONS
from pipeline_assets.tables.table import Table


def snapshot_sensor(settings: Settings) -> dg.SensorDefinition:
    """Return the sensor of all dimensions."""
    description = (
        "Lists the folders of dimensions in landing and loads the snapshots that are due: marked, changed, or their "
        "deadline passed. Says what it waits for."
    )
    return load_sensor(settings, "dimension_snapshots_arrived", DIMENSION_JOB, 60, description, _arrivals)


def _arrivals(tick: Tick) -> dg.SensorResult:
    # Evaluations do not read bytes: the next load finds excluded bytes that arrived under another etag.
    why_excluded = by_version(exclusions_of_dimensions(tick.ledger))
    listings = {
        table: list_of(tick.landing, one, table, why_excluded)
        for one in DIMENSIONS
        for table in one.tables
        if table.reads_landing(tick.settings)
    }
    if not any(listing.days or listing.excluded for listing in listings.values()):
        return tick.skip("landing holds no snapshot of a dimension")
    today, start = tick.now.date(), tick.settings.calendar_start
    due: dict[Subject, list[tuple[str, str]]] = {}
    waits: list[str] = []
    beyond: list[str] = []
    for one in DIMENSIONS:
        for plan in plans_of_snapshots(tick.ledger, tick.settings, one, listings[one.snapshot], tick.now):
            day = plan.key.event_date
            if not start <= day <= today:
                beyond.append(plan.delivered.key if plan.delivered is not None else f"{one.snapshot.key} {day}")
                continue
            reason = _reason_to_load(plan)
            if reason is not None:
                state = f"{one.snapshot.key} {plan.todo.name} {plan.present} {reason}"
                due.setdefault(Subject(day, day), []).append((state, f"{one.snapshot.key} {reason}"))
            elif plan.todo is Todo.WAIT:
                waits.append(f"{one.snapshot.key} {day}: {plan.reason}")
        if one.intervals_are_delivered(tick.settings):
            news, awaited = news_of_intervals(tick.ledger, tick.settings, one, listings[one.validity], tick.now)
            waits += [f"{one.validity.key}: {text}" for text in awaited]
            if news is not None:
                day, reason, state = news
                texts = (f"{one.validity.key} {state}", f"{one.validity.key} {reason}")
                due.setdefault(Subject(day, day), []).append(texts)
    return request(
        tick,
        DIMENSION_JOB,
        due,
        waits=[f"outside of the calendar ({start} to {today}) lie {few(beyond, 5)}", *waits] if beyond else waits,
        events=_materializations(tick.settings, listings, tick.cursor, start, today),
    )


def _reason_to_load(plan: SlicePlan) -> str | None:
    """Why a load would change the record of a day; None where it waits for its deadline or the record is up to date."""
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
    settings: Settings, listings: Mapping[Table, SnapshotListing], cursor: Cursor, first: date, last: date
) -> list[dg.AssetMaterialization]:
    """Materializations of the source assets' days that changed."""
    events = []
    days = {day for listing in listings.values() for day in listing.days if first <= day <= last}
    for day in sorted(days):
        there = {table: listing.days[day] for table, listing in listings.items() if day in listing.days}
        sources = sorted(
            (str(key), key, there[table]) for table in there if (key := source_of(table, settings)) is not None
        )
        state = digest(f"{name} {one.version} {one.is_marked}" for name, _, one in sources)
        if cursor.reported.get(day.isoformat()) != state:
            cursor.reported[day.isoformat()] = state
            events += [
                dg.AssetMaterialization(
                    key,
                    partition=day.isoformat(),
                    metadata={
                        "object": dg.MetadataValue.text(one.key),
                        "bytes": one.size_bytes,
                        "is_marked": one.is_marked,
                    },
                )
                for _, key, one in sources
            ]
    return events
