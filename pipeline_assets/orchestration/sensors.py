"""The sensors: exports and dimension snapshots that arrived, stale days (`heal`), notices; and the list of all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from itertools import groupby

import dagster as dg

from pipeline_assets.domain.days import asked_for, days_between, describe_strays
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Listing
from pipeline_assets.domain.plain_text import few, shown
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.deliveries.batch import Recorded, plan_batches
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.readiness import ArrivalStatus, evaluate_arrivals, state_of
from pipeline_assets.load.deliveries.snapshots import SnapshotListing, by_version, exclusions_of_dimensions
from pipeline_assets.load.dimensions import list_of, news_of_intervals, plans_of_snapshots
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.finality import first_arrivals
from pipeline_assets.load.staleness.scan import Stale, days_on_record, scan_stale_days
from pipeline_assets.operations.notices import register_receivers, send_notices
from pipeline_assets.orchestration import sensor_requests as requests
from pipeline_assets.orchestration import specs
from pipeline_assets.orchestration.live_runs import OWN_TABLES, dead_runs_sensor, quiet_sensor, under_way
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import DIMENSIONS
from pipeline_assets.tables.table import Table
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger


def arrival_sensor(settings: Settings, source: Source) -> dg.SensorDefinition:
    """Return the sensor of one source."""
    description = (
        f"Lists the {source.value} prefix of landing and loads the days that are due: hours complete, changed or gone, "
        "or their deadline passed. Says what it waits for."
    )
    name = f"{source.value}_exports_arrived"
    return requests.load_sensor(
        settings, name, specs.JOB_OF_SOURCE[source], 60, description, lambda tick: _due_exports(tick, source)
    )


def _due_exports(tick: requests.Tick, source: Source) -> dg.SensorResult:
    settings, cursor, ledger, today = tick.settings, tick.cursor, tick.ledger, tick.now.date()
    if settings.calendar_start > today:
        reason = f"TIDEMARK_CALENDAR_START {settings.calendar_start} lies in the future, so there is no day to list"
        return tick.skip(reason)
    found = list_windows(tick.landing, source, settings, cursor, today)
    plans: dict[BatchKey, BatchPlan] = {}
    elsewhere: set[BatchKey] = set()
    strays: tuple[Delivery, ...] = ()
    version = RAW_TABLES[source].code_version(settings)
    for window, listing in found:
        strays += listing.strays
        recorded = Recorded.read(ledger, tick.landing, listing, source, settings.projects, window, settings)
        elsewhere |= recorded.delivered_elsewhere(source)
        asked = source, settings.projects, days_between(*window), listing, recorded, settings, tick.now
        plans |= plan_batches(*asked, code_version=version, accepted_reasons={})
    # Any listing will do, because each includes the first arrival.
    firsts = first_arrivals(ledger, settings, settings.projects, today, listing=listing, source=source)
    ledger.strays.replace(source, settings.projects, strays)
    starts = first_arrivals(ledger, settings, settings.projects, today, listing=listing)
    status = evaluate_arrivals(plans, firsts, elsewhere, cursor.seen, settings, tick.now, starts)
    looked_at = {str(key) for key in plans}
    kept = {name: observation for name, observation in cursor.seen.items() if name.rpartition("/")[0] not in looked_at}
    cursor.seen = kept | dict(status.observations)
    waits = [describe_strays([stray.key for stray in strays])] if strays else []
    waits += [f"{key}: {why}" for key, why in status.waiting.items()]
    if source is Source.REGULAR and not firsts:
        hint = "check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS if it should"
        waits.append(f"landing lists nothing for {', '.join(settings.projects)}; {hint}")
    due: dict[requests.Subject, list[tuple[str, str]]] = {}
    for key in sorted(status.due):
        subject = requests.Subject(key.arrival_date, key.arrival_date)
        due.setdefault(subject, []).append((state_of(plans[key], settings), status.due[key]))
    return requests.request(
        tick,
        specs.JOB_OF_SOURCE[source],
        due,
        reach=settings.reprocessing_window_days,
        is_looked_at=lambda subject: any(first <= subject.day <= last for (first, last), _ in found),
        waits=waits,
        events=_of_exports(source, plans, status, tick),
    )


def _of_exports(
    source: Source, plans: Mapping[BatchKey, BatchPlan], status: ArrivalStatus, tick: requests.Tick
) -> list[dg.AssetMaterialization]:
    events = []
    for day, of_day in groupby(sorted(plans, key=lambda key: (key.arrival_date, key)), lambda key: key.arrival_date):
        deliveries: list[Delivery] = []
        complete: set[tuple[str, int]] = set()
        for key in of_day:
            deliveries += plans[key].listed.values()
            hours = plans[key].hours_marked
            if source is Source.BACKFILL or tick.settings.hours_complete_by is not Completeness.MARKERS:
                # Without markers, hours that are loaded or no longer change count as complete.
                open_hours = status.incomplete.get(key, frozenset())
                hours = frozenset(one.hour for one in plans[key].listed.values()) - open_hours
            complete |= {(key.project_id, hour) for hour in hours}
        name, reported = day.isoformat(), tick.cursor.reported.get(day.isoformat())
        state = requests.digest(
            [*(f"{delivery.key} {delivery.etag}" for delivery in deliveries), *map(str, sorted(complete))]
        )
        if reported != state and (deliveries or complete or reported is not None):
            tick.cursor.reported[name] = state
            delivered = {(delivery.batch.project_id, delivery.hour) for delivery in deliveries}
            metadata: dict[str, int | str] = {
                "objects": len(deliveries),
                "bytes": sum(delivery.size_bytes for delivery in deliveries),
                "hours_delivered": len(delivered),
                "hours_complete": len(complete),
                "projects": ", ".join(sorted({project for project, _ in (*delivered, *complete)})),
            }
            key_of_source = specs.landing_key(f"{source.value}_exports")
            events.append(dg.AssetMaterialization(key_of_source, partition=name, metadata=metadata))
    return events


MOST_BATCHES = 2_000
"""(day, project) pairs of regular exports listed per evaluation: with 120 names each, about ten seconds."""
MOST_NAMES = 240_000
"""The limit of names for recovered exports, to which the limit of pairs does not apply."""
_PROJECTS_AT_ONCE = 16
_FEWEST_PARTS = 2
"""Days listed beside the newest ones, however many names they have: one of each walk."""

Window = tuple[date, date]
Windows = Mapping[str, Window]


def list_windows(
    landing: LandingStore, source: Source, settings: Settings, cursor: requests.Cursor, today: date
) -> list[tuple[Window, Listing]]:
    """Return the windows of this evaluation, newest first, with the listing of each; advances the cursor.

    The limit counts days of regular exports. Recoveries lie on few, mostly old days, and an empty folder costs the same
    for a month as for a day, so the limit counts their names. Raises the errors of `LandingStore.list`.
    """
    count, newest = len(settings.projects), settings.reprocessing_window_days + 2
    fewest, most_names = newest + _FEWEST_PARTS, None
    windows = _windows(settings, cursor, today, newest, None)
    if _days_of(windows) * count > MOST_BATCHES:
        if source is Source.REGULAR:
            windows = _windows(settings, cursor, today, newest, max(fewest, MOST_BATCHES // count))
        else:
            most_names = MOST_NAMES
    while True:
        listings, listed = _listed(landing, source, settings, windows, today, most_names)
        if listings is not None:
            break
        days = max(fewest, min(listed // count, _days_of(windows) * 3 // 4))
        windows = _windows(settings, cursor, today, newest, days)
        most_names = MOST_NAMES if days > fewest else None
    for name, (_, last) in windows.items():
        if name != "newest":
            setattr(cursor, name, last + timedelta(days=1))
    return list(zip(windows.values(), listings, strict=True))


def _days_of(windows: Windows) -> int:
    return sum((last - first).days + 1 for first, last in windows.values())


def _listed(
    landing: LandingStore, source: Source, settings: Settings, windows: Windows, today: date, most_names: int | None
) -> tuple[list[Listing] | None, int]:
    """List each window; returns the listings, None where they exceed `most_names`, and the number of (day, project) pairs."""
    at_once = len(settings.projects) if most_names is None else _PROJECTS_AT_ONCE
    listings, names, listed = [], 0, 0
    for first, last in windows.values():
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


def _windows(
    settings: Settings, cursor: requests.Cursor, today: date, fewest: int, days: int | None
) -> dict[str, Window]:
    """The redelivery horizon, and the next part of older days; above `days`, the newest days and parts of both.

    Each under its field of the cursor; of no walk are the newest days, and the horizon where it is listed whole.
    """
    recent = max(settings.calendar_start, today - timedelta(days=settings.redelivery_horizon_days))
    older = requests.DAYS_PER_TICK if recent > settings.calendar_start else 0
    newest, in_horizon = recent, 0
    if days is not None and (today - recent).days + 1 + older > days:
        newest = max(recent, today - timedelta(days=fewest - 1))
        left = max(_FEWEST_PARTS, days - (today - newest).days - 1)
        older = min(older, max(1, left // 4))
        in_horizon = left - older
    windows = {"newest": (newest, today)}
    for name, start, end, length in (
        ("horizon_from", recent, newest, in_horizon),
        ("sweep_from", settings.calendar_start, recent, older),
    ):
        if start < end and length:
            goes_on = getattr(cursor, name)
            first = goes_on if goes_on is not None and start <= goes_on < end else start
            windows[name] = first, min(first + timedelta(days=length), end) - timedelta(days=1)
    return windows


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
    return requests.load_sensor(settings, "heal", specs.HEAL_JOB, 300, description, _stale_days, needs=["clock"])


def _stale_days(tick: requests.Tick) -> dg.SensorResult:
    settings = tick.settings
    runs = under_way(tick.context.instance, tick.ledger)
    loads = sum(
        run.job_name in specs.PRIORITIES or not OWN_TABLES.isdisjoint(run.asset_selection or ()) for run in runs
    )
    if loads:
        return tick.skip(f"loads under way: {loads}; the sensor looks again when they have ended")
    on_record = days_on_record(tick.ledger)
    days = _days_to_look_at(tick, on_record)
    found = scan_stale_days(tick.ledger, settings, tick.now, days=days)
    due, beyond = _by_subject(found, settings, tick.ledger, tick.now.date())
    unreached = "is stale, but the calendar does not reach it; set TIDEMARK_CALENDAR_START earlier"
    looked_at, is_all = frozenset(days), len(days) == len(on_record)
    in_turn = f", of the {len(days)} days of {len(on_record)} that this look is at; the others follow in turn"
    return requests.request(
        tick,
        specs.HEAL_JOB,
        due,
        is_looked_at=lambda subject: is_all or bool(subject.table) or subject.day in looked_at,
        waits=[f"{day} {unreached}" for day in beyond],
        nothing=f"{requests.NOTHING_TO_DO}{'' if is_all else in_turn}",
    )


def _days_to_look_at(tick: requests.Tick, on_record: Sequence[date]) -> Sequence[date]:
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
) -> tuple[dict[requests.Subject, list[tuple[str, str]]], list[date]]:
    """States and reasons of stale slices by subject, and days outside the calendar that no arrival day in reach can rebuild."""
    reach = timedelta(days=settings.reprocessing_window_days)
    found: dict[requests.Subject, list[tuple[str, str]]] = {}
    beyond = []
    for day, stale in by_day.items():
        days = {day}
        if not settings.calendar_start <= day <= today:
            places = [(source, project) for source in Source for project in settings.projects]
            arrivals = {one.arrival_date for place in places for one in ledger.batch_days_of(*place, [day])[day]}
            first = settings.calendar_start
            days = {max(arrival, first) for arrival in arrivals if first - reach <= arrival <= today}
        if not days:
            beyond.append(day)
            continue
        for one in stale:
            subject = requests.Subject(day, max(days), one.table if one.table in _OF_EACH_LOOK else "")
            found.setdefault(subject, []).append((one.state, f"{one.table} {one.reason}"))
    return found, beyond


def snapshot_sensor(settings: Settings) -> dg.SensorDefinition:
    """Return the sensor of all dimensions."""
    description = (
        "Lists the folders of dimensions in landing and loads the snapshots that are due: marked, changed, or their "
        "deadline passed. Says what it waits for."
    )
    return requests.load_sensor(
        settings, "dimension_snapshots_arrived", specs.DIMENSION_JOB, 60, description, _due_snapshots
    )


def _due_snapshots(tick: requests.Tick) -> dg.SensorResult:
    # Evaluations read no bytes: the next load finds excluded bytes under another etag.
    why_excluded = partial(by_version, exclusions_of_dimensions(tick.ledger))
    delivered = [(one, table) for one in DIMENSIONS for table in one.tables if table.reads_landing(tick.settings)]
    listings = {table: list_of(tick.landing, one, table, why_excluded) for one, table in delivered}
    if not any(listing.days or listing.excluded for listing in listings.values()):
        return tick.skip("landing holds no snapshot of a dimension")
    today, start = tick.now.date(), tick.settings.calendar_start
    due: dict[requests.Subject, list[tuple[str, str]]] = {}
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
                due.setdefault(requests.Subject(day, day), []).append((state, f"{one.snapshot.key} {reason}"))
            elif plan.todo is Todo.WAIT:
                waits.append(f"{one.snapshot.key} {day}: {plan.reason}")
        if one.intervals_are_delivered(tick.settings):
            news, awaited = news_of_intervals(tick.ledger, tick.settings, one, listings[one.validity], tick.now)
            waits += [f"{one.validity.key}: {text}" for text in awaited]
            if news is not None:
                day, reason, state = news
                texts = (f"{one.validity.key} {state}", f"{one.validity.key} {reason}")
                due.setdefault(requests.Subject(day, day), []).append(texts)
    return requests.request(
        tick,
        specs.DIMENSION_JOB,
        due,
        waits=[f"outside of the calendar ({start} to {today}) lie {few(beyond, 5)}", *waits] if beyond else waits,
        events=_of_snapshots(tick.settings, listings, tick.cursor, start, today),
    )


def _reason_to_load(plan: SlicePlan) -> str | None:
    """Why a load would change the record of a day; None where it waits for its deadline or the record is up to date."""
    if plan.todo is Todo.REBUILD:
        return plan.cause.text
    bad = plan.record if plan.record is not None and not plan.record.verdict.is_good else None
    is_told = bad is not None and (bad.reason or "").endswith(plan.reason or "")
    if plan.todo in (Todo.WAIT, Todo.REFUSE) and not plan.is_early and not is_told:
        return plan.reason
    return f"is no longer {bad.verdict.value}" if plan.todo is Todo.KEEP and bad is not None else None


def _of_snapshots(
    settings: Settings, listings: Mapping[Table, SnapshotListing], cursor: requests.Cursor, first: date, last: date
) -> list[dg.AssetMaterialization]:
    events = []
    for day in sorted({day for listing in listings.values() for day in listing.days if first <= day <= last}):
        there = {table: listing.days[day] for table, listing in listings.items() if day in listing.days}
        keys = ((specs.source_of(table, settings), one) for table, one in there.items())
        sources = sorted((str(key), key, one) for key, one in keys if key is not None)
        state = requests.digest(f"{name} {one.version} {one.is_marked}" for name, _, one in sources)
        if cursor.reported.get(day.isoformat()) != state:
            cursor.reported[day.isoformat()] = state
            for _, key, one in sources:
                metadata: dict[str, int | str] = {"object": one.key, "bytes": one.size_bytes}
                metadata["is_marked"] = one.is_marked
                events.append(dg.AssetMaterialization(key, partition=day.isoformat(), metadata=metadata))
    return events


def _send_waiting(context: dg.SensorEvaluationContext, ledger: Ledger, settings: Settings) -> str:
    told: Sequence[object] = ()
    if any(one.waiting for one in register_receivers(ledger, settings).values()):
        if runs := under_way(context.instance, ledger):
            return f"runs under way: {len(runs)}; each sends its notices at its end"
        told = send_notices(ledger, settings, is_due_only=True)
    return shown("; ".join(map(str, told)) or "everybody was told of everything")


def notice_sensors(settings: Settings) -> list[dg.SensorDefinition]:
    """Return the sensor if receivers are configured."""
    text = (
        "Sends the notices that no run could send, to webhooks that were away. Starts nothing. Waits while runs are "
        "under way: each sends its own at its end."
    )
    send = partial(_send_waiting, settings=settings)
    return [quiet_sensor(settings, "notices", 60, text, send)] if settings.notify_urls else []


def all_sensors(settings: Settings) -> list[dg.SensorDefinition]:
    """Return one sensor per source, one for all dimensions, `heal`, and those of dead runs and notices."""
    exports = (arrival_sensor(settings, source) for source in Source)
    loads = (*exports, snapshot_sensor(settings), heal_sensor(settings))
    return [*loads, dead_runs_sensor(settings), *notice_sensors(settings)]
