"""A sensor's memory between evaluations: what it observed and what it requested. The ledger knows what is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import date, datetime, timedelta

from pipeline_assets.load.deliveries.readiness import HourObservation

_FIRST_PAUSE = timedelta(minutes=5)
_MOST_DOUBLINGS = 8


@dataclass(frozen=True, order=True)
class Subject:
    """The unit that attempts are counted for."""

    day: date
    """The day that is due."""
    loaded_day: date
    """The day that is loaded for it; differs where the due day is outside the calendar."""
    table: str = ""
    """The due table, where it is evaluated separately from the other tables of its day."""

    def __str__(self) -> str:
        """The due day, for messages."""
        return str(self.day)

    @property
    def text(self) -> str:
        """The subject's form in a cursor."""
        is_plain = self.loaded_day == self.day and not self.table
        return str(self.day) if is_plain else f"{self.day} {self.loaded_day} {self.table}"

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Parse the form of `text`; raises ValueError for anything else."""
        day, _, rest = text.partition(" ")
        loaded_day, _, table = rest.partition(" ")
        return cls(date.fromisoformat(day), date.fromisoformat(loaded_day or day), table)


@dataclass(frozen=True)
class Attempt:
    """The requests for the current state of a subject."""

    state: str
    count: int
    at: datetime
    """The time of the last request."""
    is_given_up: bool = False
    """Whether the last evaluation found that the limit of requests is reached."""

    @property
    def next_at(self) -> datetime:
        """The earliest time of the next attempt; the pause doubles up to almost a day."""
        return self.at + _FIRST_PAUSE * (1 << min(self.count - 1, _MOST_DOUBLINGS))


@dataclass
class Cursor:
    """A sensor's memory."""

    seen: dict[str, HourObservation] = field(default_factory=dict)
    attempts: dict[Subject, Attempt] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    """Arrival day -> digest of the last report of its objects to Dagster."""
    sweep_from: date | None = None
    """The day where the next sweep of old days continues."""
    horizon_from: date | None = None
    """The day where the redelivery horizon continues, if it is too large for one evaluation."""

    def as_of(self, now: datetime) -> Cursor:
        """Return the cursor with future times set to now, so that a clock that was ahead causes no wait."""
        seen = {
            name: replace(observation, since=min(observation.since, now)) for name, observation in self.seen.items()
        }
        attempts = {subject: replace(attempt, at=min(attempt.at, now)) for subject, attempt in self.attempts.items()}
        return replace(self, seen=seen, attempts=attempts)

    def as_text(self) -> str:
        """Return the cursor's text for Dagster."""
        return json.dumps(
            {
                "seen": {name: astuple(seen) for name, seen in self.seen.items()},
                "attempts": {subject.text: astuple(attempt) for subject, attempt in self.attempts.items()},
                "told": self.reported,
                "sweep_from": self.sweep_from,
                "horizon_from": self.horizon_from,
            },
            default=lambda moment: moment.isoformat(),
        )

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """Parse Dagster's text; an empty text is a new cursor. Raises ValueError for any other text that is not a cursor."""
        if not text:
            return cls()
        try:
            raw = json.loads(text)
            return cls(
                {name: HourObservation(objects, _aware(since)) for name, (objects, since) in raw["seen"].items()},
                {
                    # A cursor of an older version lacks the last field.
                    Subject.parse(text): Attempt(str(state), _positive(count), _aware(at), any(given_up))
                    for text, (state, count, at, *given_up) in raw["attempts"].items()
                },
                {date.fromisoformat(day).isoformat(): str(state) for day, state in raw["told"].items()},
                date.fromisoformat(raw["sweep_from"]) if raw["sweep_from"] else None,
                # A cursor of an older version lacks this field.
                date.fromisoformat(raw["horizon_from"]) if raw.get("horizon_from") else None,
            )
        except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
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
    """Which due subjects to request now."""

    admitted: tuple[Subject, ...]
    paused: tuple[Subject, ...] = ()
    """Requested before in the same state; requested again after a pause."""
    given_up: tuple[Subject, ...] = ()
    """The limit of requests is reached."""


def admit(
    states: Mapping[Subject, str],
    attempts: Mapping[Subject, Attempt],
    now: datetime,
    max_attempts: int,
    has_died: Callable[[date], bool] = lambda _: False,
) -> Admission:
    """Decide which due subjects to request now; `states` is subject -> state of its inputs, and a new state resets the count.

    `has_died` tells whether the last run of a day died instead of failing: such a day is never given up, only paused.
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
