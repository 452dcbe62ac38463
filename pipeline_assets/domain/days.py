"""Days and hours: parsing, splitting, iterating; when a day is closed; which arrival days loads reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source


def days_between(first: date, last: date) -> tuple[date, ...]:
    """Every day of a range, both ends included."""
    return tuple(first + timedelta(days=shift) for shift in range((last - first).days + 1))


def stretches(days: Sequence[date], size: int) -> list[tuple[date, ...]]:
    """Split ascending days into runs without gaps, of at most `size` days each."""
    parts: list[tuple[date, ...]] = []
    for day in days:
        if parts and len(parts[-1]) < size and day - parts[-1][-1] == timedelta(days=1):
            parts[-1] = (*parts[-1], day)
        else:
            parts.append((day,))
    return parts


def deadline(day: date, settings: Settings) -> datetime:
    """The UTC moment at which a day is closed even if markers are missing."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    return midnight + timedelta(hours=settings.final_after_hours)


def requested_range(first: str, last: str, settings: Settings) -> tuple[date, ...]:
    """The days of a range given as text; raises UsageError for a bad day or order, or a day outside the calendar."""
    start, end = parse_day(first), parse_day(last)
    if end < start:
        raise UsageError(f"--from {first} --to {last}", "the range ends before it begins", "Swap the two days")
    today = datetime.now(UTC).date()
    if start < settings.calendar_start or end > today:
        raise UsageError(
            f"--from {first} --to {last}",
            f"the calendar holds {settings.calendar_start} to {today}",
            "Choose days inside it, or set TIDEMARK_CALENDAR_START earlier",
        )
    return days_between(start, end)


def parse_day(text: str) -> date:
    """The day that `YYYY-MM-DD` names; raises UsageError for any other text."""
    day = day_in(text)
    if day is None:
        raise UsageError(text, "is not a day", "Write it as YYYY-MM-DD")
    return day


def day_in(text: str) -> date | None:
    """The day that `YYYY-MM-DD` names; None for any other text."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def parse_moment(option: str, text: str) -> datetime:
    """The aware time of an ISO text, UTC by default; raises UsageError that names the option."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}", "is not a time", "Write it as 2026-02-05 or 2026-02-05T10:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_DAY_LENGTH = len("2026-01-31")
_ONE = timedelta(hours=1)


@dataclass(frozen=True, order=True)
class Hour:
    """One hour of arrival."""

    day: date
    hour: int

    @classmethod
    def at(cls, moment: datetime) -> Hour:
        """The hour that contains an aware time."""
        here = moment.astimezone(UTC)
        return cls(here.date(), here.hour)

    @property
    def start(self) -> datetime:
        """Its first moment, aware."""
        return datetime(self.day.year, self.day.month, self.day.day, self.hour, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment after it, aware."""
        return self.start + _ONE

    def __str__(self) -> str:
        """Render as `2026-02-02T05`."""
        return f"{self.day.isoformat()}T{self.hour:02d}"


@dataclass(frozen=True)
class HourRange:
    """Consecutive hours, both ends included."""

    first: Hour
    last: Hour

    def __len__(self) -> int:
        """Number of hours."""
        return int((self.last.end - self.first.start) / _ONE)

    def __iter__(self) -> Iterator[Hour]:
        """Every hour, ascending."""
        return (Hour.at(self.first.start + shift * _ONE) for shift in range(len(self)))

    def __str__(self) -> str:
        """Render as `2026-02-02T00 to 2026-02-02T23`, or as one hour."""
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"

    def halves(self) -> tuple[HourRange, HourRange]:
        """The two halves of a range of two or more hours."""
        hours = list(self)
        middle = len(hours) // 2
        return HourRange(hours[0], hours[middle - 1]), HourRange(hours[middle], hours[-1])


def hour_ranges(hours: Iterable[Hour], most: int) -> list[HourRange]:
    """The hours as ranges without gaps, of at most `most` hours each, none across midnight."""
    ranges: list[HourRange] = []
    for hour in sorted(hours):
        last = ranges[-1] if ranges else None
        if last is not None and last.last.end == hour.start and last.last.day == hour.day and len(last) < most:
            ranges[-1] = HourRange(last.first, hour)
        else:
            ranges.append(HourRange(hour, hour))
    return ranges


def requested_hours(first: str, last: str, settings: Settings) -> HourRange:
    """The hours of a range given as `DAY` (all of its hours) or `DAYTHH`; raises UsageError as `requested_range`."""
    start, end = _parsed(first, 0), _parsed(last, 23)
    requested_range(first[:_DAY_LENGTH], last[:_DAY_LENGTH], settings)
    if end < start:
        raise UsageError(f"--from {first} --to {last}", "the range ends before it begins", "Swap the two")
    return HourRange(start, end)


def _parsed(text: str, default_hour: int) -> Hour:
    day, mark, hour = text[:_DAY_LENGTH], text[_DAY_LENGTH : _DAY_LENGTH + 1], text[_DAY_LENGTH + 1 :]
    is_hour = mark == "T" and len(hour) == 2 and hour.isascii() and hour.isdecimal() and int(hour) < 24
    parsed = day_in(day) if len(day) == _DAY_LENGTH and (is_hour or not mark) else None
    if parsed is None:
        raise UsageError(text, "is neither a day nor an hour", "Write it as YYYY-MM-DD, or as YYYY-MM-DDTHH (UTC)")
    return Hour(parsed, int(hour) if is_hour else default_hour)


ALONE = timedelta(days=30)
"""A first day is ignored if the next one with arrivals is further away."""

MOST_STRAYS = 100
"""Stray deliveries kept per source and project, on either side of the days that loads request."""


def first_believable(days: Iterable[date], today: date | None = None) -> date | None:
    """The earliest arrival day that is neither isolated before the others nor after tomorrow; None without any."""
    known = sorted(day for day in set(days) if today is None or day <= today + timedelta(days=1))
    close = (day for day, following in pairwise(known) if following - day <= ALONE)
    return next(close, known[-1] if known else None)


def asked_for(settings: Settings, today: date) -> tuple[date, date]:
    """The first and last arrival day that a load of today or tomorrow may read."""
    reach = timedelta(days=settings.reprocessing_window_days)
    return settings.calendar_start - reach, today + max(reach, timedelta(days=1))


def ends_of(strays: Iterable[Delivery]) -> tuple[Delivery, ...]:
    """The first and last strays of each source and project: a mistyped prefix may hold a million objects."""
    of_project: dict[tuple[Source, str], list[Delivery]] = {}
    for stray in sorted(strays):
        of_project.setdefault((stray.batch.source, stray.batch.project_id), []).append(stray)
    return tuple(
        stray
        for own in of_project.values()
        for stray in (own if len(own) <= 2 * MOST_STRAYS else own[:MOST_STRAYS] + own[-MOST_STRAYS:])
    )


def describe_strays(keys: Sequence[str]) -> str:
    """A sentence that no load will read these objects, with the remedy."""
    # Strays are kept up to a bound, and every second one may be a marker, so the true number may be higher.
    bound = "at least " if len(keys) >= MOST_STRAYS // 2 else ""
    return (
        f"{bound}{len(keys)} objects arrived on days that no load will read, first {keys[0]}, last {keys[-1]}: correct "
        "the dates in their names or remove them, or set TIDEMARK_CALENDAR_START earlier"
    )
