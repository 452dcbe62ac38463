"""From due days to runs: coalesced, capped, never beside a run that loads them, tried a bounded number of times.

Lives here: what both kinds of sensors share. Put here: a rule about requesting runs. Keep out: what makes a day due (arrivals.py,
heal.py) and what is remembered (cursor.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import dagster as dg

from pipeline_assets.domain.days import chunks, days_between
from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.sensors.cursor import Admission, Cursor, admit, attempted
from resources.ledger import Ledger

LIVE = [
    dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING,
]  # fmt: skip
RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
REASON_TAG = "tidemark/reason"
_MOST_REASONS = 3


def default_status(settings: Settings) -> dg.DefaultSensorStatus:
    """How a sensor starts that nobody has switched."""
    return dg.DefaultSensorStatus.RUNNING if settings.sensors_running else dg.DefaultSensorStatus.STOPPED


def guarded(
    context: dg.SensorEvaluationContext, settings: Settings, evaluate: Callable[[Ledger, Cursor], dg.SensorResult]
) -> dg.SensorResult:
    """What a person can mend is a reason to skip, not an error: a failing tick would be tried again without end."""
    try:
        cursor, note = Cursor.parse(context.cursor), ""
    except ValueError as error:
        cursor, note = Cursor(), f"The cursor could not be read and was started anew ({error}). "
    try:
        settings.require_projects()
        with closing(Ledger(settings.ledger_database_url)) as ledger:
            result = evaluate(ledger, cursor)
    except TidemarkError as error:
        return dg.SensorResult(skip_reason=f"{note}{error}", cursor=cursor.as_text() if note else context.cursor)
    if note:
        context.log.warning(note)
        if result.skip_reason is not None:
            skip = dg.SkipReason(f"{note}{result.skip_reason.skip_message}")
            return dg.SensorResult(skip_reason=skip, cursor=result.cursor, asset_events=result.asset_events)
    return result


@dataclass(frozen=True)
class Asked:
    """What became of the due days."""

    ranges: tuple[tuple[date, ...], ...]
    chosen: frozenset[date]
    """The due days that are requested now."""
    admission: Admission
    loading: tuple[date, ...]
    """A run that is queued or under way covers them."""
    key: str


def ask(
    context: dg.SensorEvaluationContext,
    settings: Settings,
    job_name: str,
    states: Mapping[date, str],
    cursor: Cursor,
    now: datetime,
    *,
    reach: int,
    is_looked_at: Callable[[date], bool] = lambda _: True,
) -> Asked:
    """Coalesce due days into ranges, with so many days before each: their late events may be among what arrived.

    Recent days come first, then the oldest. `is_looked_at`: whether a day that is not due was looked at.
    """
    covered = _covered(context, job_name)
    free = {day: state for day, state in states.items() if day not in covered}
    admission = admit(free, cursor.attempts, now, settings.sensor_attempts)
    by_urgency = sorted(admission.admitted, key=lambda day: (not _is_recent(day, settings, now), day))
    chosen = by_urgency[: settings.sensor_days_per_tick]
    cursor.attempts = attempted(states, cursor.attempts, chosen, now, is_looked_at)
    wanted = sorted(
        {
            day - timedelta(days=shift)
            for day in chosen
            for shift in range(reach + 1)
            if day - timedelta(days=shift) >= settings.calendar_start
        }
    )
    ranges = [part for run in _runs_of_days(wanted) for part in chunks(run, settings.days_per_run)]
    # With the time of the attempt: Dagster never launches a key again, and a state may come back after a failure.
    key = digest(f"{day} {cursor.attempts[day]}" for day in sorted(chosen))
    loading = tuple(sorted(states.keys() & covered))
    return Asked(tuple(ranges), frozenset(chosen), admission, loading, key)


def _is_recent(day: date, settings: Settings, now: datetime) -> bool:
    """Whether a day belongs to the daily load, and not to a history that is being caught up with."""
    return day >= now.date() - timedelta(days=settings.reprocessing_window_days + 1)


def _covered(context: dg.SensorEvaluationContext, job_name: str) -> set[date]:
    days: set[date] = set()
    for run in context.instance.get_runs(dg.RunsFilter(job_name=job_name, statuses=LIVE)):
        if RANGE_START in run.tags and RANGE_END in run.tags:
            first, last = (date.fromisoformat(run.tags[name][:10]) for name in (RANGE_START, RANGE_END))
            days.update(days_between(first, last))
        elif "dagster/partition" in run.tags:
            days.add(date.fromisoformat(run.tags["dagster/partition"][:10]))
    return days


def _runs_of_days(days: Sequence[date]) -> list[tuple[date, ...]]:
    found: list[list[date]] = []
    for day in days:
        if found and (day - found[-1][-1]).days == 1:
            found[-1].append(day)
        else:
            found.append([day])
    return [tuple(run) for run in found]


def result(
    context: dg.SensorEvaluationContext,
    settings: Settings,
    now: datetime,
    asked: Asked,
    job_name: str,
    reasons: Mapping[date, str],
    waits: Sequence[str],
    cursor: Cursor,
    events: Sequence[dg.AssetMaterialization],
    *,
    priority: int,
) -> dg.SensorResult:
    """The requests, or the reason why there are none; `reasons`: due day -> why. `priority` is that of recent days."""
    requests = []
    for days in asked.ranges:
        due = [day for day in days if day in asked.chosen]
        is_recent = any(_is_recent(day, settings, now) for day in due)
        why = few([f"{day}: {reasons[day]}" for day in due]) or f"late events of the arrivals after {days[-1]}"
        tags = {
            RANGE_START: days[0].isoformat(), RANGE_END: days[-1].isoformat(),
            "dagster/priority": str(priority if is_recent else 0), REASON_TAG: why,
        }  # fmt: skip
        requests.append(dg.RunRequest(run_key=f"{job_name}:{days[0]}:{days[-1]}:{asked.key}", tags=tags))
    told = []
    if asked.admission.given_up:
        named = few([f"{day} ({reasons[day]})" for day in asked.admission.given_up])
        told.append(f"given up until something changes: {named}; look at their failed runs, then load them by hand")
    if asked.admission.paused:
        told.append(f"tried before, again after a pause: {few(map(str, asked.admission.paused))}")
    if asked.loading:
        told.append(f"a run is loading {few(map(str, asked.loading))}")
    if waits:
        told.append(f"waiting: {few(waits)}")
    if requests:
        if told:
            context.log.info("; ".join(told))
        return dg.SensorResult(run_requests=requests, cursor=cursor.as_text(), asset_events=list(events))
    reason = "; ".join(told) or "nothing to do: what is published is what its inputs are"
    return dg.SensorResult(skip_reason=reason, cursor=cursor.as_text(), asset_events=list(events))


def few(texts: Iterable[str]) -> str:
    """The first few, and how many more."""
    listed = list(texts)
    more = f" and {len(listed) - _MOST_REASONS} more" if len(listed) > _MOST_REASONS else ""
    return ", ".join(listed[:_MOST_REASONS]) + more


def digest(parts: Iterable[str]) -> str:
    """A short name of a state."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
