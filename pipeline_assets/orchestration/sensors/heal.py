"""`heal`: compare published days with the current state of their inputs in the ledger, and rebuild those that differ."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import dagster as dg

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.staleness.scan import Stale, days_on_record, scan_stale_days
from pipeline_assets.orchestration.jobs import HEAL_JOB, PRIORITIES
from pipeline_assets.orchestration.live_runs import OWN_TABLES, under_way
from pipeline_assets.orchestration.sensors.cursor import Subject
from pipeline_assets.orchestration.sensors.requests import (
    NOTHING_TO_DO,
    Tick,
    load_sensor,
    request,
)
from pipeline_assets.tables.registry import DIMENSIONS
from resources.ledger.store import Ledger

MOST_SLICES = 10_000
"""Number of (day, project) pairs that one evaluation scans, which takes about ten seconds."""
_OF_EACH_LOOK = frozenset(one.validity.key for one in DIMENSIONS)
"""Tables that every evaluation scans completely."""


def heal_sensor(settings: Settings) -> dg.SensorDefinition:
    """Return the sensor."""
    description = (
        "Compares each published day with its inputs, from the ledger alone, and rebuilds the days that are "
        "stale, missing or newly final. Where there are more than 10,000 days of projects, each look is at the newest "
        "days and a part of the others, another one each time. Waits while a load is under way."
    )
    return load_sensor(settings, "heal", HEAL_JOB, 300, description, _stale_days, needs=["clock"])


def _stale_days(tick: Tick) -> dg.SensorResult:
    settings = tick.settings
    # Runs that load tables of ours, possibly beside other assets.
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
    """All recorded days; if these are too many for one evaluation, the recent ones and the next part of the others."""
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
    """States and reasons of stale slices by subject; also the days that cannot be rebuilt through any day of the calendar.

    A day outside the calendar has no partition: it is rebuilt with the last arrival day, within the calendar's reach, that has
    events of it. Every evaluation scans all intervals of dimensions, so these are subjects of their own.
    """
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
