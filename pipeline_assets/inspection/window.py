"""The catch and the cost of each reprocessing window for the arrivals of some days, and the window that suffices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from pipeline_assets.domain import lateness
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.staleness.finality import last_arrival
from pipeline_assets.tables.registry import DERIVED
from resources.ledger.store import Ledger
from resources.ledger.summaries import ArrivedOn, Summaries

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
_LEAST_SHOWN = 7
_STEPS = (10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 400)


@dataclass(frozen=True)
class Reach:
    """The catch and the cost of one window."""

    days: int
    caught: float
    missed_a_day: float
    """Rows per arrival day that arrive after the window of their event day closed."""
    arrival_days: int
    """Arrival days that a load of one day considers: its own, and `days` before it."""
    objects: int
    slices: int
    """Slices whose inputs the load compares: one per arrival day, project and derived table."""
    rows: int
    size_bytes: int
    """The most that the load reads if all of these objects are new: rows, and stored bytes."""
    final_after_hours: int
    """Hours from the end of an event day until it is final if markers are missing."""


@dataclass(frozen=True)
class Percentiles:
    """How late the rows of one project arrived."""

    project: str
    """Empty for all projects together."""
    late: lateness.Lateness
    times: lateness.LatenessSketch
    measured_days: int
    advice: lateness.Advice

    @property
    def seconds(self) -> dict[str, float | None]:
        """Name of a percentile -> seconds; None where nothing is measured."""
        return {name: self.times.percentile(share) for name, share in PERCENTILES.items()}


@dataclass(frozen=True)
class WindowReport:
    """The results for one source."""

    source: Source
    first: date
    last: date
    settings: Settings
    of_projects: tuple[Percentiles, ...]
    reaches: tuple[Reach, ...]
    out_of_reach: Mapping[str, int]
    """As `domain.lateness.out_of_reach` counts them."""
    recommended: int | None
    """The days that suffice for every project with enough data, else for all together; None where the data is too little."""
    reason: str
    """Why this window or none is recommended: the reason of the project that needs the widest."""

    @property
    def all(self) -> Percentiles:
        """The percentiles of all projects together."""
        return self.of_projects[0]

    @property
    def is_too_narrow(self) -> bool:
        """Whether the configured window misses more than is tolerated, for any project with enough data."""
        return self.recommended is not None and self.settings.reprocessing_window_days < self.recommended


def late_times(
    arrivals: Summaries, source: Source, projects: Sequence[str], first: date, last: date
) -> dict[str, tuple[lateness.LatenessSketch, int]]:
    """Project -> how late its rows arrived, and the number of measured arrival days; `""` -> all projects together."""
    found: dict[str, list[tuple[date, lateness.LatenessSketch]]] = {}
    for project, day, sketch in arrivals.lateness(source, projects, first, last):
        for name in ("", project):
            found.setdefault(name, []).extend([(day, sketch)] if sketch is not None else ())
    return {name: (lateness.merged(one for _, one in of), len({day for day, _ in of})) for name, of in found.items()}


def read_window(
    ledger: Ledger,
    settings: Settings,
    source: Source,
    projects: Sequence[str],
    today: date,
    *,
    first: date | None = None,
    last: date | None = None,
) -> WindowReport:
    """The report on a range of arrival days, by default 91 up to the latest arrival; opens neither tables nor landing."""
    last = last or last_arrival(ledger, source, projects, today)
    first = first or last - timedelta(days=lateness.ARRIVAL_DAYS - 1)
    summaries, tolerated = ledger.summaries, settings.tolerated_missed_share
    arrivals = summaries.arrivals(source, projects, first, last)
    measured = late_times(summaries, source, projects, first, last)
    of_projects = []
    for name, late in sorted(lateness.lateness(arrivals).items()):
        times, days = measured.get(name, (lateness.LatenessSketch(), 0))
        of_projects.append(Percentiles(name, late, times, days, lateness.advise(late, tolerated)))
    known = lateness.deciding({one.project: one.late for one in of_projects}, tolerated)
    project, widest = max(known.items(), key=lambda pair: pair[1].days or 0, default=("", of_projects[0].advice))
    arrived = summaries.arrived(source, projects, first, last)
    reaches = tuple(_reaches(settings, len(projects), arrived, of_projects))
    found = (source, first, last, settings, tuple(of_projects), reaches, lateness.out_of_reach(arrivals, settings))
    reason = f"{project}: {widest.reason}" if project else widest.reason
    return WindowReport(*found, widest.days if known else None, reason)


def _reaches(
    settings: Settings, projects: int, arrived: Sequence[ArrivedOn], found: Sequence[Percentiles]
) -> Iterator[Reach]:
    late, seen = found[0].late, max(1, len({one.day for one in arrived}))
    objects, rows, size = (
        sum(getattr(one, name) for one in arrived) / seen for name in ("objects", "rows", "size_bytes")
    )
    named = {settings.reprocessing_window_days, *(one.advice.days for one in found if one.advice.days)}
    # Day by day past the configured and recommended windows, then in steps up to the latest row.
    shown = named | set(range(max([_LEAST_SHOWN, *(day + 1 for day in named if day <= _STEPS[1])]) + 1))
    most = late.most_days
    if most > max(shown - named):
        shown |= {day for day in _STEPS if day <= most} | {next((day for day in _STEPS if day >= most), most)}
    for window in sorted(shown):
        days = window + 1
        caught = (late.caught_within(window), late.missed_beyond(window) / max(1, late.arrival_days))
        cost = (round(objects * days), days * projects * len(DERIVED), round(rows * days), round(size * days))
        yield Reach(window, *caught, days, *cost, 24 * window + settings.final_after_hours)
