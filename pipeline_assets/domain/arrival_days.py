"""Which arrival days are believed and asked for: the date in a name may be wrong by decades.

Contains: the first arrival of a project, and days that no load will ever ask for.
Add here: another question about days of arrival.
Does not contain: listing (resources/landing/store.py) and what is on record
(resources/ledger/store.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from itertools import pairwise

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source

ALONE = timedelta(days=30)
"""A day is not taken for the start where nothing arrived so long after it, although something did later."""

MOST_STRAYS = 100
"""How many of a source's and a project's strays are kept on either side of the days that anybody asks for."""


def first_believable(days: Iterable[date], today: date | None = None) -> date | None:
    """The earliest arrival day, but for one that lies alone long before the next, and for those after tomorrow."""
    known = sorted(day for day in set(days) if today is None or day <= today + timedelta(days=1))
    close = (day for day, following in pairwise(known) if following - day <= ALONE)
    return next(close, known[-1] if known else None)


def asked_for(settings: Settings, today: date) -> tuple[date, date]:
    """The first and last arrival day that a load has in its reach today or tomorrow."""
    reach = timedelta(days=settings.reprocessing_window_days)
    return settings.calendar_start - reach, today + max(reach, timedelta(days=1))


def ends_of(strays: Iterable[Delivery]) -> tuple[Delivery, ...]:
    """Of each source and project the first and the last strays, by day: a mistyped prefix may hold a million."""
    of_project: dict[tuple[Source, str], list[Delivery]] = {}
    for stray in sorted(strays):
        of_project.setdefault((stray.batch.source, stray.batch.project_id), []).append(stray)
    return tuple(
        stray
        for own in of_project.values()
        for stray in (own if len(own) <= 2 * MOST_STRAYS else own[:MOST_STRAYS] + own[-MOST_STRAYS:])
    )


def describe_strays(keys: Sequence[str]) -> str:
    """A sentence that no load will ever read these objects, with the fix."""
    # Some of many are kept; of a bucket so many keys are looked at, of which every other may be a marker.
    bound = "at least " if len(keys) >= MOST_STRAYS // 2 else ""
    return (
        f"{bound}{len(keys)} objects arrived on days that no load will read, first {keys[0]}, last {keys[-1]}: correct "
        "the dates in their names or remove them, or set TIDEMARK_CALENDAR_START earlier"
    )
