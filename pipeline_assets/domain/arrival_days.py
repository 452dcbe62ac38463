"""Which arrival days are plausible and within reach of loads: the date in an object's name may be wrong by decades."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from itertools import pairwise

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source

ALONE = timedelta(days=30)
"""A first day is ignored if the next day with arrivals is further away than this."""

MOST_STRAYS = 100
"""How many stray deliveries are kept per source and project, on either side of the days that loads request."""


def first_believable(days: Iterable[date], today: date | None = None) -> date | None:
    """The earliest arrival day, without a day isolated long before the next, and without days after tomorrow; None of none."""
    known = sorted(day for day in set(days) if today is None or day <= today + timedelta(days=1))
    close = (day for day, following in pairwise(known) if following - day <= ALONE)
    return next(close, known[-1] if known else None)


def asked_for(settings: Settings, today: date) -> tuple[date, date]:
    """The first and last arrival day that a load of today or tomorrow may read."""
    reach = timedelta(days=settings.reprocessing_window_days)
    return settings.calendar_start - reach, today + max(reach, timedelta(days=1))


def ends_of(strays: Iterable[Delivery]) -> tuple[Delivery, ...]:
    """The first and last strays of each source and project, by day: a mistyped prefix may hold a million objects."""
    of_project: dict[tuple[Source, str], list[Delivery]] = {}
    for stray in sorted(strays):
        of_project.setdefault((stray.batch.source, stray.batch.project_id), []).append(stray)
    return tuple(
        stray
        for own in of_project.values()
        for stray in (own if len(own) <= 2 * MOST_STRAYS else own[:MOST_STRAYS] + own[-MOST_STRAYS:])
    )


def describe_strays(keys: Sequence[str]) -> str:
    """A sentence that says no load will read these objects, and how to fix that."""
    # Only some strays are kept, and up to every second listed key may be a marker, so the true number may be higher.
    bound = "at least " if len(keys) >= MOST_STRAYS // 2 else ""
    return (
        f"{bound}{len(keys)} objects arrived on days that no load will read, first {keys[0]}, last {keys[-1]}: correct "
        "the dates in their names or remove them, or set TIDEMARK_CALENDAR_START earlier"
    )
