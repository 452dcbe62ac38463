"""The lateness of recent rows by the ledger, and a warning if the reprocessing window is too narrow for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.domain.window import ARRIVAL_DAYS, Lateness, deciding, lateness, narrowness
from resources.ledger.store import Ledger


def last_arrival(ledger: Ledger, source: Source, projects: Sequence[str], today: date) -> date:
    """The newest arrival day of these projects in the ledger; today if there is none."""
    after_today = dict.fromkeys(projects, today + timedelta(days=1))
    return max(ledger.previous_arrivals(after_today, source).values(), default=today)


def recent_lateness(
    ledger: Ledger, settings: Settings, source: Source, projects: Sequence[str], today: date
) -> Mapping[str, Lateness]:
    """Project -> lateness of the rows of the last 91 arrival days, without rows later than `max_lateness_days`."""
    last = last_arrival(ledger, source, projects, today)
    first = last - timedelta(days=ARRIVAL_DAYS - 1)
    found = lateness(ledger.arrival_summaries.arrivals(source, projects, first, last))
    return {project: late.without(settings.max_lateness_days) for project, late in found.items()}


def too_narrow(ledger: Ledger, settings: Settings, source: Source, projects: Sequence[str], today: date) -> list[str]:
    """A sentence for each project whose window misses a larger share of recent rows than is tolerated.

    Covers regular exports only, because a recovery delivers old events on purpose.
    """
    if source is not Source.REGULAR:
        return []
    return warnings_of(recent_lateness(ledger, settings, source, projects, today), settings)


def warnings_of(found: Mapping[str, Lateness], settings: Settings) -> list[str]:
    """The same sentences from lateness that was already read by `recent_lateness`."""
    days, tolerated = settings.reprocessing_window_days, settings.tolerated_missed_share
    told = {
        project or "all projects": narrowness(found[project], days, tolerated) for project in deciding(found, tolerated)
    }
    return [
        f"the reprocessing window is too narrow for {project}: {why}; see tidemark window"
        for project, why in sorted(told.items())
        if why is not None
    ]
