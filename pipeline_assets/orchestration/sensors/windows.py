"""Which arrival days one look at landing lists: a look is bounded, and all days have their turn.

Contains: the windows of a look, and the listing of each.
Add here: another bound of a look.
Does not contain: what is made of a listing (arrivals.py), and listing itself (resources/landing/store.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from pipeline_assets.domain.arrival_days import asked_for
from pipeline_assets.domain.deliveries import Listing
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration.sensors.cursor import Cursor
from resources.landing.store import LandingStore

MOST_BATCHES = 2_000
"""Days of projects of regular exports that one look lists: with 120 names each, some ten seconds."""
MOST_NAMES = 240_000
"""Names of recovered exports that one look lists, where it may be at more days of projects: as many."""
_PROJECTS_AT_ONCE = 16
"""So many are listed before their names are counted: a bucket is asked for as many at once."""
_FEWEST_PARTS = 2
"""Days beside the newest ones that each look lists, however many names they have: one of either walk."""

Window = tuple[date, date]
"""First and last day, both included."""


@dataclass(frozen=True)
class _Look:
    """The windows of a look, and where the next one goes on."""

    windows: tuple[Window, ...]
    horizon_from: date | None
    sweep_from: date | None

    @property
    def days(self) -> int:
        """How many days it lists."""
        return sum((last - first).days + 1 for first, last in self.windows)


def list_windows(
    landing: LandingStore, source: Source, settings: Settings, cursor: Cursor, today: date
) -> list[tuple[Window, Listing]]:
    """The windows of this look, the newest first, with what landing lists in each; the cursor goes on to those of the next look.

    Each day of a project has as many regular exports as any other, so that days are counted. Recoveries lie on few days, mostly
    old ones, and a folder that lacks them costs as much for a month as for a day: a look is at whole windows of these, and at
    fewer days only where many names lie in them. Raises what `LandingStore.list` does.
    """
    projects = settings.projects
    fewest = _newest_days(settings) + _FEWEST_PARTS
    look = _look(settings, cursor, today, None)
    most_names = None
    if look.days * len(projects) > MOST_BATCHES:
        if source is Source.REGULAR:
            look = _look(settings, cursor, today, max(fewest, MOST_BATCHES // len(projects)))
        else:
            most_names = MOST_NAMES
    while True:
        listings, listed = _listed(landing, source, settings, look, today, most_names)
        if listings is not None:
            cursor.horizon_from, cursor.sweep_from = look.horizon_from, look.sweep_from
            return list(zip(look.windows, listings, strict=True))
        days = max(fewest, min(listed // len(projects), look.days * 3 // 4))
        look = _look(settings, cursor, today, days)
        most_names = MOST_NAMES if days > fewest else None


def _listed(
    landing: LandingStore, source: Source, settings: Settings, look: _Look, today: date, most_names: int | None
) -> tuple[list[Listing] | None, int]:
    """A listing of each window, or none where these have more names than so many; and how many days of projects were listed."""
    at_once = len(settings.projects) if most_names is None else _PROJECTS_AT_ONCE
    listings, names, listed = [], 0, 0
    for first, last in look.windows:
        # Of the recent days, which come first, what lies outside of all days is asked for as well.
        asked = asked_for(settings, today) if last == today else None
        parts = []
        for start in range(0, len(settings.projects), at_once):
            projects = settings.projects[start : start + at_once]
            part = landing.list(source, projects, first, last, asked)
            names += len(part.deliveries) + len(part.markers)
            listed += len(projects) * ((last - first).days + 1)
            if most_names is not None and names > most_names:
                return None, listed
            parts.append(part)
        listings.append(Listing.joined(parts))
    return listings, listed


def _newest_days(settings: Settings) -> int:
    """How many days are in each look."""
    return settings.reprocessing_window_days + 2


def _look(settings: Settings, cursor: Cursor, today: date, days: int | None) -> _Look:
    """The arrival days to list: all inside the redelivery horizon, and a part of the older ones, another one each time.

    Where these are more than so many days, only the newest ones are in each look, and of the rest of the horizon too a part, most
    of the room that is left: what is delivered again is found some looks later.
    """
    recent = max(settings.calendar_start, today - timedelta(days=settings.redelivery_horizon_days))
    older = settings.sensor_days_per_tick if recent > settings.calendar_start else 0
    newest, in_horizon = recent, 0
    if days is not None and (today - recent).days + 1 + older > days:
        newest = max(recent, today - timedelta(days=_newest_days(settings) - 1))
        left = max(_FEWEST_PARTS, days - (today - newest).days - 1)
        older = min(older, max(1, left // 4))
        in_horizon = left - older
    windows, horizon_from, sweep_from = [(newest, today)], cursor.horizon_from, cursor.sweep_from
    if newest > recent:
        windows.append(_next_part(recent, newest, in_horizon, horizon_from))
        horizon_from = windows[-1][1] + timedelta(days=1)
    if older:
        windows.append(_next_part(settings.calendar_start, recent, older, sweep_from))
        sweep_from = windows[-1][1] + timedelta(days=1)
    return _Look(tuple(windows), horizon_from, sweep_from)


def _next_part(start: date, end: date, days: int, goes_on: date | None) -> Window:
    """So many days of [start, end) from where the walk goes on; behind the end it begins anew."""
    first = goes_on if goes_on is not None and start <= goes_on < end else start
    return first, min(first + timedelta(days=days), end) - timedelta(days=1)
