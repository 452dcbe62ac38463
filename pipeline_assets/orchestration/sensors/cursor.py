"""What a sensor remembers between evaluations: what it saw and what it tried. What is loaded, the ledger knows.

Contains: the cursor's values, its text and the rule of bounded attempts.
Add here: another thing to remember.
Does not contain: evaluations (arrivals.py, heal.py). Losing a cursor costs time, never correctness.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

from pipeline_assets.load.deliveries.readiness import HourObservation

_FIRST_PAUSE = timedelta(minutes=5)
_MOST_DOUBLINGS = 8


@dataclass(frozen=True, order=True)
class Subject:
    """What attempts are counted of."""

    day: date
    """The day that is due."""
    loaded_day: date
    """The day that is loaded for it: another one where the calendar does not reach it."""
    table: str = ""
    """The table that is due, where it is looked at apart from the other tables of its day."""

    def __str__(self) -> str:
        """As people are told of it."""
        return str(self.day)

    @property
    def text(self) -> str:
        """As a cursor has it."""
        is_plain = self.loaded_day == self.day and not self.table
        return str(self.day) if is_plain else f"{self.day} {self.loaded_day} {self.table}"

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Raises ValueError for what is no text of a subject."""
        day, _, rest = text.partition(" ")
        loaded_day, _, table = rest.partition(" ")
        return cls(date.fromisoformat(day), date.fromisoformat(loaded_day or day), table)


@dataclass(frozen=True)
class Attempt:
    """How often the present state of a subject was requested."""

    state: str
    count: int
    at: datetime
    """The last time."""
    is_given_up: bool = False
    """Whether the last look at the subject found that it was requested as often as allowed."""

    @property
    def next_at(self) -> datetime:
        """Earliest time of another attempt: the pause doubles, up to most of a day."""
        return self.at + _FIRST_PAUSE * (1 << min(self.count - 1, _MOST_DOUBLINGS))


@dataclass
class Cursor:
    """A sensor's memory."""

    seen: dict[str, HourObservation] = field(default_factory=dict)
    attempts: dict[Subject, Attempt] = field(default_factory=dict)
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
        attempts = {subject: replace(attempt, at=min(attempt.at, now)) for subject, attempt in self.attempts.items()}
        return replace(self, seen=seen, attempts=attempts)

    def as_text(self) -> str:
        """The cursor as Dagster keeps it."""
        return json.dumps(
            {
                "seen": {name: [seen.objects, seen.since.isoformat()] for name, seen in self.seen.items()},
                "attempts": {
                    subject.text: [attempt.state, attempt.count, attempt.at.isoformat(), attempt.is_given_up]
                    for subject, attempt in self.attempts.items()
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
                    # A cursor of an older version does not say what is given up.
                    Subject.parse(text): Attempt(str(state), _positive(count), _aware(at), any(given_up))
                    for text, (state, count, at, *given_up) in raw["attempts"].items()
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
    """What of all that is due to request now."""

    admitted: tuple[Subject, ...]
    paused: tuple[Subject, ...] = ()
    """Requested before in the same state; tried again after a pause."""
    given_up: tuple[Subject, ...] = ()
    """Requested as often as allowed."""


def admit(
    states: Mapping[Subject, str],
    attempts: Mapping[Subject, Attempt],
    now: datetime,
    max_attempts: int,
    has_died: Callable[[date], bool] = lambda _: False,
) -> Admission:
    """`states`: subject -> what it would be loaded from; another state than before starts to count anew.

    `has_died`: whether the last run of a day did not fail on it, but died: it is not given up, after pauses as long as they grew.
    """
    admitted, paused, given_up = [], [], []
    for subject, state in sorted(states.items()):
        last = attempts.get(subject)
        if last is None or last.state != state:
            admitted.append(subject)
        elif last.count >= max_attempts and not has_died(subject.loaded_day):
            given_up.append(subject)
        elif now < last.next_at:
            paused.append(subject)
        else:
            admitted.append(subject)
    return Admission(tuple(admitted), tuple(paused), tuple(given_up))


def attempted(
    states: Mapping[Subject, str],
    attempts: Mapping[Subject, Attempt],
    requested: Iterable[Subject],
    now: datetime,
    is_looked_at: Callable[[Subject], bool] = lambda _: True,
    given_up: Collection[Subject] = (),
) -> dict[Subject, Attempt]:
    """The attempts on record after a request; what was looked at and is not due any more is forgotten."""
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
