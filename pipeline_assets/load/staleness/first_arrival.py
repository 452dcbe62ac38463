"""From which day on a project's deliveries are awaited: a setting, or the earliest believable day that anybody knows.

Contains: first arrivals from settings, listing and ledger.
Add here: another source of them.
Does not contain: what is believable (domain/arrival_days.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from pipeline_assets.domain.arrival_days import first_believable
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
    """Project -> the first arrival day that a listing or the ledger knows; the ledger of one source or of either."""
    known = ledger.arrival_days(projects, source)
    for project, days in listing.arrival_days.items() if listing is not None else ():
        known[project] = known.get(project, frozenset()) | days
    firsts = {project: settings.first_arrival or first_believable(days, today) for project, days in known.items()}
    return {project: day for project, day in firsts.items() if day is not None}
