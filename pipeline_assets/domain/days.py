"""Ranges of days: parsing, splitting, iterating; and when a day is closed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings


def days_between(first: date, last: date) -> tuple[date, ...]:
    """Every day of a range, both ends included."""
    return tuple(first + timedelta(days=shift) for shift in range((last - first).days + 1))


def chunks(days: tuple[date, ...], size: int) -> list[tuple[date, ...]]:
    """Consecutive parts of at most `size` days."""
    return [days[start : start + size] for start in range(0, len(days), size)]


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
    """The days of a range given as text; raises UsageError for a bad day, a bad order or a day outside the calendar."""
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
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(text, "is not a day", "Write it as YYYY-MM-DD") from None


def parse_moment(option: str, text: str) -> datetime:
    """The aware time that an ISO text names, UTC by default; raises UsageError, which names the option."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}", "is not a time", "Write it as 2026-02-05 or 2026-02-05T10:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
