"""The sensors of dimension snapshots, of stale days (`heal`) and of notices; and the list of all sensors."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import dagster as dg

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.plain_text import few, shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.deliveries.snapshots import SnapshotListing, by_version, exclusions_of_dimensions
from pipeline_assets.load.dimensions import list_of, news_of_intervals, plans_of_snapshots
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.scan import Stale, days_on_record, scan_stale_days
from pipeline_assets.operations.notices import register_receivers, send_notices
from pipeline_assets.orchestration.arrival_sensors import arrival_sensor
from pipeline_assets.orchestration.live_runs import OWN_TABLES, dead_runs_sensor, under_way
from pipeline_assets.orchestration.sensor_requests import (
    NOTHING_TO_DO,
    Cursor,
    Subject,
    Tick,
    digest,
    load_sensor,
    request,
)
from pipeline_assets.orchestration.specs import DIMENSION_JOB, HEAL_JOB, PRIORITIES, source_of
from pipeline_assets.tables.registry import DIMENSIONS
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger, own_ledger

MOST_SLICES = 10_000
"""(day, project) pairs that one evaluation scans, in about ten seconds."""
_OF_EACH_LOOK = frozenset(one.validity.key for one in DIMENSIONS)


def heal_sensor(settings: Settings) -> dg.SensorDefinition:
    """Return the sensor that rebuilds stale days."""
    description = (
        "Compares each published day with its inputs, from the ledger alone, and rebuilds the days that are "
        "stale, missing or newly final. Where there are more than 10,000 days of projects, each look is at the newest "
        "days and a part of the others, another one each time. Waits while a load is under way."
    )
    return load_sensor(settings, "heal", HEAL_JOB, 300, description, _stale_days, needs=["clock"])


def _stale_days(tick: Tick) -> dg.SensorResult:
    settings = tick.settings
    loads = [
        run
        for run in under_way(tick.context.instance, tick.ledger)
        if run.job_name in PRIORITIES or not OWN_TABLES.isdisjoint(run.asset_selection or ())
    ]
    if loads:
        return tick.skip(f"loads under way: {len(loads)}; the sensor looks again when they have ended")
    on_record = days_on_record(tick.ledger)
    days = _days_to_look_at(tick, on_record)
    found = scan_stale_days(tick.ledger, settings, tick.now, days=days)
    due, beyond = _by_subject(found, settings, tick.ledger, tick.now.date())
    waits = [
        f"{day} is stale, but the calendar does not reach it; set TIDEMARK_CALENDAR_START earlier" for day in beyond
    ]
    looked_at = frozenset(days)
    is_all = len(days) == len(on_record)
    in_turn = f", of the {len(days)} days of {len(on_record)} that this look is at; the others follow in turn"
    return request(
        tick,
        HEAL_JOB,
        due,
        is_looked_at=lambda subject: is_all or bool(subject.table) or subject.day in looked_at,
        waits=waits,
        nothing=f"{NOTHING_TO_DO}{'' if is_all else in_turn}",
    )


def _days_to_look_at(tick: Tick, on_record: Sequence[date]) -> Sequence[date]:
    room = max(1, MOST_SLICES // len(tick.settings.projects))
    if len(on_record) <= room:
        return on_record
    recent = [day for day in on_record if tick.is_recent(day)]
    others = on_record[: len(on_record) - len(recent)]
    start = bisect_left(others, tick.cursor.sweep_from or date.min)
    start = start if start < len(others) else 0
    part = others[start : start + max(1, room - len(recent))]
    tick.cursor.sweep_from = part[-1] + timedelta(days=1) if part else None
    return [*part, *recent]


def _by_subject(
    by_day: Mapping[date, Sequence[Stale]], settings: Settings, ledger: Ledger, today: date
) -> tuple[dict[Subject, list[tuple[str, str]]], list[date]]:
    """States and reasons of stale slices by subject, and days outside the calendar that no arrival day in reach can rebuild."""
    reach = timedelta(days=settings.reprocessing_window_days)
    found: dict[Subject, list[tuple[str, str]]] = {}
    beyond = []
    for day, stale in by_day.items():
        days = {day}
        if not settings.calendar_start <= day <= today:
            batches = [
                batch
                for source in Source
                for project in settings.projects
                for batch in ledger.batch_days_of(source, project, [day])[day]
            ]
            days = {
                max(batch.arrival_date, settings.calendar_start)
                for batch in batches
                if settings.calendar_start - reach <= batch.arrival_date <= today
            }
        if not days:
            beyond.append(day)
            continue
        for one in stale:
            subject = Subject(day, max(days), one.table if one.table in _OF_EACH_LOOK else "")
            found.setdefault(subject, []).append((one.state, f"{one.table} {one.reason}"))
    return found, beyond


def snapshot_sensor(settings: Settings) -> dg.SensorDefinition:
    """Return the sensor of all dimensions."""
    description = (
        "Lists the folders of dimensions in landing and loads the snapshots that are due: marked, changed, or their "
        "deadline passed. Says what it waits for."
    )
    return load_sensor(settings, "dimension_snapshots_arrived", DIMENSION_JOB, 60, description, _arrivals)


def _arrivals(tick: Tick) -> dg.SensorResult:
    # Evaluations read no bytes: the next load finds excluded bytes under another etag.
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


def notice_sensors(settings: Settings) -> list[dg.SensorDefinition]:
    """Return the sensor if receivers are configured. It is on by default, because it starts no run."""
    if not settings.notify_urls:
        return []

    @dg.sensor(
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Sends the notices that no run could send, to webhooks that were away. Starts nothing. Waits while runs are "
            "under way: each sends its own at its end."
        ),
    )
    def notices(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            with own_ledger(settings) as ledger:
                told: Sequence[object] = ()
                if any(one.waiting for one in register_receivers(ledger, settings).values()):
                    if runs := under_way(context.instance, ledger):
                        return dg.SkipReason(f"runs under way: {len(runs)}; each sends its notices at its end")
                    told = send_notices(ledger, settings, is_due_only=True)
                return dg.SkipReason(shown("; ".join(map(str, told)) or "everybody was told of everything"))
        except TidemarkError as error:
            return dg.SkipReason(str(error))

    return [notices]


def all_sensors(settings: Settings) -> list[dg.SensorDefinition]:
    """Return one sensor per source, one for all dimensions, `heal`, and those of dead runs and notices."""
    exports = (arrival_sensor(settings, source) for source in Source)
    loads = (*exports, snapshot_sensor(settings), heal_sensor(settings))
    return [*loads, dead_runs_sensor(settings), *notice_sensors(settings)]
