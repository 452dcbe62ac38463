"""What a sensor remembers between evaluations: what it saw and what it tried. What is loaded, the ledger knows.

Contains: the cursor's values, its text and the rule of bounded attempts.
Add here: another thing to remember.
Does not contain: evaluations (arrivals.py, heal.py). Losing a cursor costs time, never correctness.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

from pipeline_assets.load.deliveries.readiness import HourObservation

_FIRST_PAUSE = timedelta(minutes=5)
_MOST_DOUBLINGS = 8


@dataclass(frozen=True)
class Attempt:
    """How often the present state of a day was requested."""

    state: str
    count: int
    at: datetime
    """The last time."""

    @property
    def next_at(self) -> datetime:
        """Earliest time of another attempt: the pause doubles, up to most of a day."""
        return self.at + _FIRST_PAUSE * (1 << min(self.count - 1, _MOST_DOUBLINGS))


@dataclass
class Cursor:
    """A sensor's memory."""

    seen: dict[str, HourObservation] = field(default_factory=dict)
    attempts: dict[date, Attempt] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    """Arrival day -> digest of what was reported to Dagster of its objects."""
    sweep_from: date | None = None
    """Where the walk through old days goes on."""
    horizon_from: date | None = None
    """Where the walk through the redelivery horizon goes on, where it is too large for one look."""

    def as_of(self, now: datetime) -> Cursor:
        """With no time later than now: one that a clock wrote that was ahead is taken as now, and not waited for."""
        seen = {
            name: replace(observation, since=min(observation.since, now)) for name, observation in self.seen.items()
        }
        attempts = {day: replace(attempt, at=min(attempt.at, now)) for day, attempt in self.attempts.items()}
        return replace(self, seen=seen, attempts=attempts)

    def as_text(self) -> str:
        """The cursor as Dagster keeps it."""
        return json.dumps(
            {
                "seen": {name: [seen.objects, seen.since.isoformat()] for name, seen in self.seen.items()},
                "attempts": {
                    day.isoformat(): [attempt.state, attempt.count, attempt.at.isoformat()]
                    for day, attempt in self.attempts.items()
                },
                "told": self.reported,
                "sweep_from": self.sweep_from.isoformat() if self.sweep_from else None,
                "horizon_from": self.horizon_from.isoformat() if self.horizon_from else None,
            }
        )

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """From Dagster's text; an empty one is new. Raises ValueError for anything that is no cursor of ours."""
        if not text:
            return cls()
        try:
            raw = json.loads(text)
            return cls(
                {name: HourObservation(objects, _aware(since)) for name, (objects, since) in raw["seen"].items()},
                {
                    date.fromisoformat(day): Attempt(str(state), _positive(count), _aware(at))
                    for day, (state, count, at) in raw["attempts"].items()
                },
                {date.fromisoformat(day).isoformat(): str(state) for day, state in raw["told"].items()},
                date.fromisoformat(raw["sweep_from"]) if raw["sweep_from"] else None,
                # Not in a cursor of an older version.
                date.fromisoformat(raw["horizon_from"]) if raw.get("horizon_from") else None,
            )
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"no cursor of this sensor: {error!r}"
            raise ValueError(msg) from error


def _positive(count: int) -> int:
    if int(count) < 1:
        msg = f"an attempt counted {count}"
        raise ValueError(msg)
    return int(count)


def _aware(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        msg = f"a time without zone: {text}"
        raise ValueError(msg)
    return moment


@dataclass(frozen=True)
class Admission:
    """Which due days to request now."""

    admitted: tuple[date, ...]
    paused: tuple[date, ...] = ()
    """Requested before in the same state; tried again after a pause."""
    given_up: tuple[date, ...] = ()
    """Requested as often as allowed."""


def admit(
    states: Mapping[date, str],
    attempts: Mapping[date, Attempt],
    now: datetime,
    max_attempts: int,
    has_died: Callable[[date], bool] = lambda _: False,
) -> Admission:
    """`states`: due day -> what it would be loaded from; another state than before starts to count anew.

    `has_died`: whether the last run of a day did not fail on it, but died: it is not given up, after pauses as long as they grew.
    """
    admitted, paused, given_up = [], [], []
    for day, state in sorted(states.items()):
        last = attempts.get(day)
        if last is None or last.state != state:
            admitted.append(day)
        elif last.count >= max_attempts and not has_died(day):
            given_up.append(day)
        elif now < last.next_at:
            paused.append(day)
        else:
            admitted.append(day)
    return Admission(tuple(admitted), tuple(paused), tuple(given_up))


def attempted(
    states: Mapping[date, str],
    attempts: Mapping[date, Attempt],
    requested: Iterable[date],
    now: datetime,
    is_looked_at: Callable[[date], bool] = lambda _: True,
) -> dict[date, Attempt]:
    """The attempts on record after a request; days that were looked at and are not due any more are forgotten."""
    kept = {
        day: attempt for day, attempt in attempts.items() if states.get(day) == attempt.state or not is_looked_at(day)
    }
    for day in requested:
        before = kept.get(day)
        kept[day] = Attempt(states[day], before.count + 1 if before else 1, now)
    return kept
