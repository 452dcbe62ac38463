"""Choose the arrival days that one evaluation lists: their number is limited, and all days take turns."""

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
"""Number of (day, project) pairs of regular exports listed per evaluation: with 120 names each, about ten seconds."""
MOST_NAMES = 240_000
"""Number of names of recovered exports listed per evaluation, where the limit of pairs does not apply: as many names."""
_PROJECTS_AT_ONCE = 16
"""Projects listed before their names are counted; a bucket lists as many in parallel."""
_FEWEST_PARTS = 2
"""Days that every evaluation lists beside the newest ones, however many names they have: one of each walk."""

Window = tuple[date, date]
"""First and last day, both inclusive."""


@dataclass(frozen=True)
class _Look:
    """The windows of an evaluation, and where the next one continues."""

    windows: tuple[Window, ...]
    horizon_from: date | None
    sweep_from: date | None

    @property
    def days(self) -> int:
        """Number of days in the windows."""
        return sum((last - first).days + 1 for first, last in self.windows)


def list_windows(
    landing: LandingStore, source: Source, settings: Settings, cursor: Cursor, today: date
) -> list[tuple[Window, Listing]]:
    """Return the windows of this evaluation, newest first, with the listing of each; advances the cursor.

    Every day of a project has about as many regular exports, so the limit counts days. Recoveries lie on few days, mostly old
    ones, and listing an empty folder costs the same for a month as for a day. So whole windows of recoveries are listed, and
    fewer days only where they hold many names. Raises the errors of `LandingStore.list`.
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
    """List each window; returns the listings, None where they exceed `most_names`, and the number of (day, project) pairs."""
    at_once = len(settings.projects) if most_names is None else _PROJECTS_AT_ONCE
    listings, names, listed = [], 0, 0
    for first, last in look.windows:
        # The window of recent days also lists strays outside of all requested days.
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
    """Number of days that every evaluation lists."""
    return settings.reprocessing_window_days + 2


def _look(settings: Settings, cursor: Cursor, today: date, days: int | None) -> _Look:
    """Choose the windows: all days inside the redelivery horizon, and another part of the older days each time.

    If these exceed `days`, every evaluation lists the newest days, and parts of the rest of the horizon, which gets most of the
    remaining room, and of the older days. A redelivery is then found some evaluations later.
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
    """The next `days` days of [start, end), from where the walk continues; after the end it starts again."""
    first = goes_on if goes_on is not None and start <= goes_on < end else start
    return first, min(first + timedelta(days=days), end) - timedelta(days=1)
