"""The catch and the cost of each reprocessing window, for the arrivals of some days, and the window that suffices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import Any

from pipeline_assets.domain.lateness import (
    ARRIVAL_DAYS,
    RELATIVE_ERROR,
    Advice,
    Lateness,
    LatenessSketch,
    OutOfReach,
    advise,
    deciding,
    lateness,
    merged,
    out_of_reach,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.staleness.finality import last_arrival
from pipeline_assets.tables.registry import DERIVED
from resources.ledger.store import Ledger
from resources.ledger.summaries import ArrivalSummaries

PERCENTILES = (0.5, 0.95, 0.99, 0.999, 1.0)
"""Shown percentiles; the last one is the maximum."""
_LEAST_SHOWN = 7
_STEPS = (10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 400)
"""Widths to show beyond those that are shown day by day."""


@dataclass(frozen=True)
class Reach:
    """The catch and the cost of one window."""

    days: int
    caught: float
    """Share of the rows that it catches, 0 to 1."""
    missed_a_day: float
    """Rows per arrival day that arrive after the window of their event day closed."""
    arrival_days: int
    """Arrival days that a load of one day considers: its own, and `days` before it."""
    objects: int
    """Objects that the load lists for them, on average."""
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
    late: Lateness
    seconds: tuple[float | None, ...]
    """One value per percentile of PERCENTILES; None where nothing is measured."""
    measured_days: int
    """Arrival days with sketches on record; older versions recorded only whole days."""
    early_rows: int
    """Events later than their own arrival, because of a wrong clock."""
    advice: Advice


@dataclass(frozen=True)
class WindowReport:
    """The results for one source."""

    source: Source
    first: date
    last: date
    """The range of arrival days considered, both ends included."""
    set_days: int
    tolerated: float
    of_projects: tuple[Percentiles, ...]
    """All projects together first."""
    reaches: tuple[Reach, ...]
    out: OutOfReach
    max_lateness_days: int | None

    @property
    def all(self) -> Percentiles:
        """The percentiles of all projects together."""
        return self.of_projects[0]

    @property
    def _deciding(self) -> dict[str, Advice]:
        return deciding({one.project: one.late for one in self.of_projects}, self.tolerated)

    @property
    def recommended(self) -> int | None:
        """The days that suffice for every project with enough data, else for all together; None where the data is too little."""
        return max((advice.days or 0 for advice in self._deciding.values()), default=None)

    @property
    def is_too_narrow(self) -> bool:
        """Whether the configured window misses more than is tolerated, for any project with enough data."""
        return self.recommended is not None and self.set_days < self.recommended

    @property
    def reason(self) -> str:
        """Why this window is recommended, or none: the reason of the project that needs the widest."""
        if not self._deciding:
            return self.all.advice.reason
        project, advice = max(self._deciding.items(), key=lambda pair: pair[1].days or 0)
        return f"{project}: {advice.reason}" if project else advice.reason

    def to_json(self) -> dict[str, Any]:
        """The JSON form for `--json`."""
        return {
            "source": self.source.value,
            "from": self.first,
            "to": self.last,
            "set_days": self.set_days,
            "recommended_days": self.recommended,
            "reason": self.reason,
            "is_too_narrow": self.is_too_narrow,
            "tolerated_missed_share": self.tolerated,
            "max_lateness_days": self.max_lateness_days,
            "relative_error_of_seconds": RELATIVE_ERROR,
            "out_of_reach": self.out.figures,
            "projects": [
                {
                    "project": one.project or None,
                    "rows": one.late.rows,
                    "arrival_days": one.late.arrival_days,
                    "measured_days": one.measured_days,
                    "early_rows": one.early_rows,
                    "seconds": {_name(share): value for share, value in zip(PERCENTILES, one.seconds, strict=True)},
                    "caught_by_set_window": one.late.caught_within(self.set_days),
                    "recommended_days": one.advice.days,
                    "reason": one.advice.reason,
                }
                for one in self.of_projects
            ],
            "windows": [asdict(reach) for reach in self.reaches],
        }


def _name(share: float) -> str:
    return "max" if share >= 1 else f"p{100 * share:g}"


def late_times(
    arrivals: ArrivalSummaries, source: Source, projects: Sequence[str], first: date, last: date
) -> dict[str, tuple[LatenessSketch, int]]:
    """Project -> how late its rows arrived, and the number of measured arrival days; `""` -> all projects together."""
    found: dict[str, list[tuple[date, LatenessSketch]]] = {}
    for project, day, sketch in arrivals.lateness(source, projects, first, last):
        for name in ("", project):
            found.setdefault(name, []).extend([(day, sketch)] if sketch is not None else ())
    return {name: (merged(one for _, one in of), len({day for day, _ in of})) for name, of in found.items()}


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
    summaries = ledger.arrival_summaries
    last = last or last_arrival(ledger, source, projects, today)
    first = first or last - timedelta(days=ARRIVAL_DAYS - 1)
    arrivals = summaries.arrivals(source, projects, first, last)
    late = {name: one.without(settings.max_lateness_days) for name, one in lateness(arrivals).items()}
    measured = late_times(summaries, source, projects, first, last)
    return WindowReport(
        source,
        first,
        last,
        settings.reprocessing_window_days,
        settings.tolerated_missed_share,
        tuple(
            _percentiles(name, late[name], *measured.get(name, (LatenessSketch(), 0)), settings)
            for name in sorted(late)
        ),
        tuple(_reaches(ledger, settings, source, projects, (first, last), late)),
        out_of_reach(arrivals, settings),
        settings.max_lateness_days,
    )


def _percentiles(name: str, late: Lateness, sketch: LatenessSketch, days: int, settings: Settings) -> Percentiles:
    seconds = tuple(sketch.percentile(share) for share in PERCENTILES)
    return Percentiles(name, late, seconds, days, sketch.early_rows, advise(late, settings.tolerated_missed_share))


def _reaches(
    ledger: Ledger,
    settings: Settings,
    source: Source,
    projects: Sequence[str],
    days: tuple[date, date],
    late: Mapping[str, Lateness],
) -> list[Reach]:
    everything = late[""]
    arrived = ledger.arrival_summaries.arrived(source, projects, *days)
    seen = max(1, len({one.day for one in arrived}))
    objects, rows, size = (
        sum(getattr(one, name) for one in arrived) / seen for name in ("objects", "rows", "size_bytes")
    )
    advised = [one.days for one in (advise(of, settings.tolerated_missed_share) for of in late.values()) if one.days]
    return [
        Reach(
            window,
            everything.caught_within(window),
            everything.missed_beyond(window) / max(1, everything.arrival_days),
            window + 1,
            round(objects * (window + 1)),
            (window + 1) * len(projects) * len(DERIVED),
            round(rows * (window + 1)),
            round(size * (window + 1)),
            24 * window + settings.final_after_hours,
        )
        for window in _windows(settings.reprocessing_window_days, advised, everything.most_days)
    ]


def _windows(is_set: int, advised: Sequence[int], most: int) -> list[int]:
    """Day by day up to a week and a day past configured and recommended windows, then in steps up to the latest row."""
    named = {is_set, *advised}
    single = set(range(max([_LEAST_SHOWN, *(day + 1 for day in named if day <= _STEPS[1])]) + 1))
    steps = {day for day in _STEPS if day <= most} | {next((day for day in _STEPS if day >= most), most)}
    return sorted(single | named | (steps if most > max(single) else set()))
