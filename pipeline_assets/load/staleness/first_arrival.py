"""The day from which a project's deliveries are expected: a setting, or the earliest believable arrival day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from pipeline_assets.domain.arrival_days import ALONE, first_believable
from pipeline_assets.domain.deliveries import Listing
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from resources.ledger.store import Ledger


def first_arrivals(
    ledger: Ledger,
    settings: Settings,
    projects: Sequence[str],
    today: date,
    *,
    listing: Listing | None = None,
    source: Source | None = None,
) -> dict[str, date]:
    """Project -> first arrival day, from settings, else from the listing and the ledger (one `source`, or both for None)."""
    known = _first_days(ledger, projects, today, source)
    for project, days in listing.arrival_days.items() if listing is not None else ():
        known[project] = known.get(project, set()) | days
    firsts = {project: settings.first_arrival or first_believable(days, today) for project, days in known.items()}
    return {project: day for project, day in firsts.items() if day is not None}


def _first_days(ledger: Ledger, projects: Sequence[str], today: date, source: Source | None) -> dict[str, set[date]]:
    """Project -> its recorded arrival days, read from the first until two lie close together; later days do not matter."""
    days: dict[str, set[date]] = {}
    passed = dict.fromkeys(projects, date.min)
    while passed:
        following = ledger.next_arrivals(passed, source)
        for project, day in following.items():
            days.setdefault(project, set()).add(day)
        passed = {
            project: day
            for project, day in following.items()
            if day - passed[project] > ALONE and day <= today + timedelta(days=1)
        }
    return days
