"""One day's events of a project: who did what, when it reached the server, how often it was sent and exported."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, auto
from typing import Any

from sample_export.rows import KEYS as KEYS
from sample_export.rows import a_row, a_uuid, price, processed, time_text, upload_times
from sample_export.spec import ExportSpec

_HOUR_WEIGHTS = (2, 1, 1, 1, 1, 2, 3, 5, 7, 8, 8, 8, 9, 9, 8, 8, 8, 9, 10, 11, 11, 9, 6, 4)


@dataclass(frozen=True)
class Send:
    """One time an event was sent; the latest one counts, the others are its duplicates."""

    row: dict[str, Any]
    uploaded: datetime
    """The row's server_upload_time; it names the arrival day and hour."""
    processed: datetime
    event_date: date
    amount: Decimal | None
    """The revenue the row means; None for an event without."""

    @property
    def uuid(self) -> str:
        """The vendor's id of this send; all copies of the row share it."""
        return str(self.row["uuid"])


REGULAR, BACKFILL = "regular", "backfill"
"""The two exports."""


@dataclass(frozen=True)
class Copy:
    """One line of one object: a send as delivered once."""

    source: str
    send: Send
    day: date
    """Arrival day in the object's name."""
    hour: int
    place: int
    """Chooses the shard; neighbouring places are different shards where there are several."""


@dataclass
class SampleEvent:
    """One event with every time it was sent, and every copy of these rows in the regular export."""

    currency: str | None
    sends: list[Send]
    """Ascending by time; the last one counts."""
    copies: list[Copy] = field(default_factory=list)
    is_lost: bool = False
    """The regular export has none of the copies."""
    is_corrected: bool = False
    """The last send carries another amount."""


class _When(Enum):
    """How long after the first time something is repeated."""

    WITHIN_THE_HOUR = auto()
    LATER_HOUR = auto()
    NEXT_DAY = auto()


@dataclass(frozen=True)
class _Fate:
    """What happens to an event beside its content, each as a number from 0 to 1."""

    resend: float
    correction: float
    resend_when: float
    repeat: float
    repeat_when: float
    loss: float

    def may_repeat_next_day(self, spec: ExportSpec) -> bool:
        """Whether some copy may arrive on the next day; which events can be corrected is part of their content."""
        is_sent_again = self.resend < spec.send_duplicate_share or self.correction < spec.correction_share
        is_repeated = self.repeat < spec.delivery_duplicate_share
        return (is_sent_again and _when(spec, self.resend_when) is _When.NEXT_DAY) or (
            is_repeated and _when(spec, self.repeat_when) is _When.NEXT_DAY
        )


def stream(spec: ExportSpec, *names: object) -> random.Random:
    """A random stream of its own for whatever is named, so that nothing depends on what was generated before."""
    moved = timedelta(days=spec.later_days)
    parts = [name - moved if isinstance(name, date) else name for name in names]
    return random.Random("/".join(map(str, (spec.seed, *parts))))


def events_of(spec: ExportSpec, project: str, day: date, *, only_next_day: bool = False) -> Iterator[SampleEvent]:
    """The events that first arrive at the vendor on a UTC day; or few of them: all that may arrive again on the next."""
    fates = stream(spec, project, day)
    for number in range(spec.events_on(day)):
        fate = _Fate(*(fates.random() for _ in range(6)))
        if fate.may_repeat_next_day(spec) or not only_next_day:
            yield _event(spec, stream(spec, project, day, number), project, day, number, fate)


def _event(spec: ExportSpec, rng: random.Random, project: str, day: date, number: int, fate: _Fate) -> SampleEvent:
    hour = rng.choices(spec.hours, [_HOUR_WEIGHTS[hour] for hour in spec.hours])[0]
    uploaded = _moment(day, hour, rng)
    happened = uploaded - _lateness(spec, rng)
    # Many people now and then, a few all the time: the share of the busiest n is (n / people) to the power of 0.4.
    person = 1 + int(spec.people * rng.random() ** 2.5)
    row = a_row(spec, rng, project, day, number, person, happened, uploaded)
    properties, currency, amount = row["event_properties"], None, None
    if row["event_type"] == "purchase":
        currency, amount = properties.get("currency", "unknown"), price(rng, properties)
    event = SampleEvent(currency, [Send(row, uploaded, processed(uploaded), happened.date(), amount)])
    event.is_lost = day in spec.lost_days and fate.loss < spec.lost_share
    if row["$insert_id"] is not None:
        event.is_corrected = amount is not None and fate.correction < spec.correction_share
        if event.is_corrected or fate.resend < spec.send_duplicate_share:
            when = _when(spec, fate.resend_when)
            event.sends.append(_sent_again(spec, rng, event.sends[0], happened, when, is_corrected=event.is_corrected))
    place = rng.randrange(1 << 16)
    event.copies = [Copy(REGULAR, send, send.uploaded.date(), send.uploaded.hour, place) for send in event.sends]
    if fate.repeat < spec.delivery_duplicate_share:
        event.copies.append(_exported_again(spec, rng, event.copies, _when(spec, fate.repeat_when)))
    return event


def _when(spec: ExportSpec, luck: float) -> _When:
    if luck < spec.next_day_share:
        return _When.NEXT_DAY
    return _When.LATER_HOUR if luck < spec.next_day_share + spec.later_hour_share else _When.WITHIN_THE_HOUR


def _moment(day: date, hour: int, rng: random.Random) -> datetime:
    """Leaves the hour's last minutes free, so that something can follow within the hour."""
    start = datetime(day.year, day.month, day.day, hour, tzinfo=UTC)
    return start + timedelta(microseconds=rng.randrange(3_000_000_000))


def _sent_again(
    spec: ExportSpec, rng: random.Random, first: Send, happened: datetime, when: _When, *, is_corrected: bool
) -> Send:
    hours = [hour for hour in spec.hours if hour > first.uploaded.hour]
    if when is _When.NEXT_DAY:
        uploaded = _moment(first.uploaded.date() + timedelta(days=1), rng.choice(spec.hours), rng)
    elif when is _When.LATER_HOUR and hours:
        uploaded = _moment(first.uploaded.date(), rng.choice(hours), rng)
    else:
        end = first.uploaded.replace(minute=59, second=59, microsecond=999_000)
        uploaded = first.uploaded + (end - first.uploaded) * rng.uniform(0.1, 0.9)
    properties = dict(first.row["event_properties"])
    amount = price(rng, properties) if is_corrected else first.amount
    row = first.row | {"uuid": a_uuid(rng), "event_properties": properties, **upload_times(uploaded)}
    event_date = first.event_date
    if rng.random() < spec.moved_share:
        moved = _across_midnight(rng, happened, uploaded)
        row["event_time"], event_date = time_text(moved), moved.date()
    return Send(row, uploaded, processed(uploaded), event_date, amount)


def _across_midnight(rng: random.Random, happened: datetime, uploaded: datetime) -> datetime:
    """The same event by a corrected clock: shortly before its day or shortly after it, but not in the future."""
    midnight = happened.replace(hour=0, minute=0, second=0, microsecond=0)
    before, after = (timedelta(minutes=rng.uniform(1, 40)) for _ in range(2))
    is_after = midnight + timedelta(days=1) + after < uploaded and rng.random() < 0.6
    return midnight + timedelta(days=1) + after if is_after else midnight - before


def _exported_again(spec: ExportSpec, rng: random.Random, copies: list[Copy], when: _When) -> Copy:
    # What arrives on the next day repeats the first send, so that no copy is more than a day from the event's own.
    copy = copies[0] if when is _When.NEXT_DAY else rng.choice(copies)
    hours = [hour for hour in spec.hours if hour > copy.hour]
    if when is _When.NEXT_DAY:
        return replace(copy, day=copy.day + timedelta(days=1), hour=rng.choice(spec.hours))
    if when is _When.LATER_HOUR and hours:
        return replace(copy, hour=rng.choice(hours))
    return replace(copy, place=copy.place + 1)


def _lateness(spec: ExportSpec, rng: random.Random) -> timedelta:
    luck = rng.random()
    if luck < spec.tail_share:
        return timedelta(days=rng.uniform(4, 100))
    if luck < spec.tail_share + spec.late_share:
        return timedelta(days=rng.uniform(1, 3))
    return timedelta(seconds=min(rng.expovariate(1 / 240), 3000))
