"""The load sensors' memory between evaluations, and their run requests: coalesced, capped, with limited attempts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cache
from typing import Annotated, NamedTuple

import dagster as dg
from pydantic import AwareDatetime, BeforeValidator, PlainSerializer, PositiveInt, TypeAdapter

from pipeline_assets.domain.days import stretches
from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.masking import tellable
from pipeline_assets.domain.plain_text import few, shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.deliveries.readiness import HourObservation
from pipeline_assets.orchestration.events import LONGEST_TAG, description
from pipeline_assets.orchestration.live_runs import DIED_TAG, under_way
from pipeline_assets.orchestration.specs import PRIORITIES, REASON_TAG, days_of, range_tags
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger, own_ledger

DAYS_PER_TICK = 30
"""Most days that one evaluation of a sensor requests, and examines beyond the redelivery horizon."""
_MOST_ATTEMPTS = 3
"""Requests for the same state of a day before the sensor leaves it to an operator."""
_FIRST_PAUSE = timedelta(minutes=5)
_MOST_DOUBLINGS = 8


class Subject(NamedTuple):
    """The unit that attempts are counted for."""

    day: date
    loaded_day: date
    """The day that is loaded for it; differs where the due day is outside the calendar."""
    table: str = ""

    def __str__(self) -> str:
        """The due day, for messages."""
        return str(self.day)


def _text(subject: Subject) -> str:
    return " ".join(map(str, subject))


def _subject(text: str) -> Subject:
    day, loaded_day, table = text.split(" ", 2)
    return Subject(date.fromisoformat(day), date.fromisoformat(loaded_day), table)


@dataclass(frozen=True)
class Attempt:
    """The requests for the current state of a subject."""

    state: str
    count: PositiveInt
    at: AwareDatetime
    is_given_up: bool = False

    @property
    def next_at(self) -> datetime:
        """The earliest time of the next attempt; the pause doubles up to almost a day."""
        return self.at + _FIRST_PAUSE * (1 << min(self.count - 1, _MOST_DOUBLINGS))


_Key = Annotated[Subject, BeforeValidator(_subject), PlainSerializer(_text)]


@dataclass
class Cursor:
    """A sensor's memory between evaluations. The ledger knows the loaded days."""

    seen: dict[str, HourObservation] = field(default_factory=dict)
    attempts: dict[_Key, Attempt] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    sweep_from: date | None = None
    horizon_from: date | None = None
    """The day where the redelivery horizon continues, if it is too large for one evaluation."""

    def as_of(self, now: datetime) -> Cursor:
        """Return the cursor with future times set to now, so a clock that was ahead causes no wait."""
        seen = {name: replace(one, since=min(one.since, now)) for name, one in self.seen.items()}
        attempts = {subject: replace(one, at=min(one.at, now)) for subject, one in self.attempts.items()}
        return replace(self, seen=seen, attempts=attempts)

    def as_text(self) -> str:
        """Return the cursor's text for Dagster."""
        return _CURSOR.dump_json(self).decode()

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """Parse Dagster's text; an empty text is a new cursor. Raises ValueError for other text."""
        return _CURSOR.validate_json(text) if text else cls()


_CURSOR = TypeAdapter(Cursor)


States = Mapping[Subject, str]
Attempts = Mapping[Subject, Attempt]


class Admission(NamedTuple):
    """Which due subjects to request now."""

    admitted: list[Subject]
    paused: list[Subject]
    given_up: list[Subject]


def admit(
    states: States,
    attempts: Attempts,
    now: datetime,
    max_attempts: int,
    has_died: Callable[[date], bool] = lambda _: False,
) -> Admission:
    """Choose the due subjects to request now; a new state resets the count, and a day that `has_died` is never given up."""
    found = Admission([], [], [])
    for subject, state in sorted(states.items()):
        last = attempts.get(subject)
        if last is None or last.state != state:
            found.admitted.append(subject)
        elif last.count >= max_attempts and not has_died(subject.loaded_day):
            found.given_up.append(subject)
        else:
            (found.paused if now < last.next_at else found.admitted).append(subject)
    return found


def attempted(
    states: States,
    attempts: Attempts,
    requested: Iterable[Subject],
    now: datetime,
    is_looked_at: Callable[[Subject], bool] = lambda _: True,
    given_up: Collection[Subject] = (),
) -> dict[Subject, Attempt]:
    """Return the attempts after a request; forgets subjects that were evaluated and are no longer due."""
    kept = {}
    for subject, attempt in attempts.items():
        if states.get(subject) == attempt.state:
            kept[subject] = replace(attempt, is_given_up=subject in given_up)
        elif subject not in states and not is_looked_at(subject):
            kept[subject] = attempt
    for subject in requested:
        before = kept.get(subject)
        kept[subject] = Attempt(states[subject], before.count + 1 if before else 1, now)
    return kept


_NEWEST_RUNS = 200
NOTHING_TO_DO = "nothing to do: every published day matches its inputs"


@dataclass(frozen=True)
class Tick:
    """One evaluation of a sensor."""

    context: dg.SensorEvaluationContext
    settings: Settings
    ledger: Ledger
    cursor: Cursor
    now: datetime

    @property
    def landing(self) -> LandingStore:
        """Landing, where the sensor needs it."""
        return self.context.resources.landing  # type: ignore[no-any-return]  # Dagster's type of a resource

    def skip(self, reason: str) -> dg.SensorResult:
        """Request nothing, and keep the cursor."""
        return dg.SensorResult(skip_reason=reason, cursor=self.cursor.as_text())

    def is_recent(self, day: date) -> bool:
        """Whether a day belongs to the daily load instead of a backlog."""
        return day >= self.now.date() - timedelta(days=self.settings.reprocessing_window_days + 1)


def load_sensor(
    settings: Settings,
    name: str,
    job_name: str,
    seconds: int,
    text: str,
    evaluate: Callable[[Tick], dg.SensorResult],
    *,
    needs: Collection[str] = ("clock", "landing"),
) -> dg.SensorDefinition:
    """Return a sensor that requests runs of a job; `needs`: the resources of an evaluation."""

    @dg.sensor(
        name=name,
        job_name=job_name,
        minimum_interval_seconds=seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.sensors_running else dg.DefaultSensorStatus.STOPPED,
        description=text,
        required_resource_keys={*needs},
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cursor, note, now = Cursor(), "", context.resources.clock.now()
        try:
            cursor = Cursor.parse(context.cursor).as_of(now)
        except ValueError as error:
            note = f"The cursor could not be read, so the sensor began a new one ({shown(error, LONGEST_TAG)}). "
        try:
            settings.require_projects()
            with own_ledger(settings) as ledger:
                result = evaluate(Tick(context, settings, ledger, cursor, now))
        except TidemarkError as error:
            # As a skip, because Dagster would retry a failing tick without end.
            result = dg.SensorResult(skip_reason=str(error), cursor=cursor.as_text() if note else context.cursor)
        except Exception as error:
            masked_error = tellable(error)
            if masked_error is error:
                raise
            raise masked_error from None
        if note:
            context.log.warning(note)
        if result.skip_reason is None:
            return result
        skip = description([f"{note}{result.skip_reason.skip_message}"])
        return dg.SensorResult(skip_reason=skip, cursor=result.cursor, asset_events=result.asset_events)

    return sensor


def request(
    tick: Tick,
    job_name: str,
    due: Mapping[Subject, Sequence[tuple[str, str]]],
    *,
    reach: int = 0,
    is_looked_at: Callable[[Subject], bool] = lambda _: True,
    waits: Sequence[str] = (),
    events: Sequence[dg.AssetMaterialization] = (),
    nothing: str = NOTHING_TO_DO,
) -> dg.SensorResult:
    """Return run requests for the due days, coalesced into ranges, or the reason why there are none.

    `due`: subject -> (state of an input, reason); other states reset the attempts. Recent days come first, with the job's
    priority, then the oldest, with priority 0. `reach`: days before each due day that are loaded with it, for its late events.
    `is_looked_at`: whether this evaluation covered a subject that is not due. `waits`: what is not due yet, and why. `nothing`:
    the default skip reason.
    """
    settings, cursor = tick.settings, tick.cursor
    covered = {day for run in under_way(tick.context.instance, tick.ledger, job_name) for day in days_of(run.tags)}
    states = {subject: digest(state for state, _ in parts) for subject, parts in due.items()}
    whys = {subject: "; ".join(dict.fromkeys(why for _, why in parts)) for subject, parts in due.items()}
    free = {subject: state for subject, state in states.items() if subject.loaded_day not in covered}
    has_died = died_on(tick.context.instance, job_name)
    admission = admit(free, cursor.attempts, tick.now, _MOST_ATTEMPTS, has_died)
    admitted = {subject.loaded_day for subject in admission.admitted}
    by_urgency = sorted(admitted, key=lambda day: (not tick.is_recent(day), day))
    chosen_days = sorted(by_urgency[:DAYS_PER_TICK])
    chosen = [subject for subject in admission.admitted if subject.loaded_day in chosen_days]
    cursor.attempts = attempted(states, cursor.attempts, chosen, tick.now, is_looked_at, admission.given_up)
    # Dagster never launches a key twice, and a state may recur after a failure, so the key includes the attempt's time.
    key = digest(f"{_text(subject)} {cursor.attempts[subject]}" for subject in chosen)
    requests = []
    with_reach = {day - timedelta(days=shift) for day in chosen_days for shift in range(reach + 1)}
    wanted = sorted(day for day in with_reach if day >= settings.calendar_start)
    for days in stretches(wanted, settings.days_per_run):
        is_recent = any(tick.is_recent(day) for day in days if day in chosen_days)
        reasons = [f"{subject}: {whys[subject]}" for subject in chosen if subject.loaded_day in days]
        why = few(reasons) or f"late events of the arrivals after {days[-1]}"
        tags = range_tags(days[0], days[-1]) | {REASON_TAG: shown(why, LONGEST_TAG)}
        tags["dagster/priority"] = str(PRIORITIES[job_name] if is_recent else 0)
        requests.append(dg.RunRequest(run_key=f"{job_name}:{days[0]}:{days[-1]}:{key}", tags=tags))
    given_up = [f"{subject} ({whys[subject]})" for subject in admission.given_up]
    for subject, attempt in sorted(cursor.attempts.items()):
        if attempt.is_given_up and subject not in due and subject.loaded_day not in covered:
            given_up.append(f"{subject} (when it was looked at last)")
    parts: Mapping[str, Sequence[object]] = {
        "given up until their state changes: {}; read their failed runs, then load the days by hand": given_up,
        "tried before, to be tried again after a pause: {}": admission.paused,
        "a run is loading {}": sorted({subject.loaded_day for subject in due} & covered),
        "waiting: {}": waits,
    }
    report = description(text.format(few(named)) for text, named in parts.items() if named)
    if requests and report:
        tick.context.log.info(report)
    skip = None if requests else report or nothing
    return dg.SensorResult(requests, skip, cursor=cursor.as_text(), asset_events=list(events))


def died_on(instance: dg.DagsterInstance, job_name: str) -> Callable[[date], bool]:
    """Whether the newest run over a day died, which is no evidence against the day; the first call queries Dagster."""

    @cache
    def newest() -> Mapping[date, dg.DagsterRun]:
        runs = instance.get_runs(dg.RunsFilter(job_name=job_name), limit=_NEWEST_RUNS)
        return {day: run for run in reversed(runs) for day in days_of(run.tags)}

    return lambda day: day in newest() and DIED_TAG in newest()[day].tags


def digest(parts: Iterable[str]) -> str:
    """Return a short digest of a state."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
