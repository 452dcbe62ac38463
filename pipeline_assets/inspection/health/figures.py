"""Figures over time: rows, duplicates, lag, refused lines, run times, revisions, by day or by week.

Contains: sums and percentiles of what the ledger gives.
Add here: another figure that is drawn over time.
Does not contain: queries (resources/ledger/summaries.py), lateness (lateness.py), drawing
(orchestration/health_page/).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from pipeline_assets.domain.slices import Source, Verdict
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.ledger.arrival_summaries import RefusedLines
from resources.ledger.revisions import Revision
from resources.ledger.summaries import FinishedRun, SliceFigures

MOST_DAYS = 184
"""A longer history is drawn by week."""
MOST_DAYS_OF_RUNS = 62


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed (nearest rank); nan of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Span:
    """The days of the charts, and how many of them one point stands for."""

    first: date
    last: date

    @property
    def step(self) -> int:
        """Days of a point: 1 or 7."""
        return 1 if (self.last - self.first).days < MOST_DAYS else 7

    @property
    def is_by_month(self) -> bool:
        """Whether percentiles of runs are told by month: a week has too few of them."""
        return (self.last - self.first).days > MOST_DAYS_OF_RUNS

    def point(self, day: date) -> date:
        """The first day of the point that a day belongs to; weeks begin on Monday."""
        return day if self.step == 1 else day - timedelta(days=day.weekday())

    @property
    def points(self) -> list[date]:
        """Every point, also those without anything on record."""
        start = self.point(self.first)
        return [start + timedelta(days=shift) for shift in range(0, (self.last - start).days + 1, self.step)]


@dataclass(frozen=True)
class Volume:
    """What refined.events took and gave on the days of one point, all projects together."""

    days: int
    """Days of the point that have rows."""
    rows: int
    raw_rows: int
    removed: int
    late_rows: int
    lags: Sequence[float]
    """Seconds, one for each slice with rows, ascending; numbers without objects, since years of slices have as many."""

    @property
    def rows_a_day(self) -> float:
        """Mean over the days that have rows."""
        return self.rows / self.days if self.days else math.nan

    @property
    def removed_per_1000(self) -> float:
        """Duplicates among a thousand raw rows."""
        return 1000 * self.removed / self.raw_rows if self.raw_rows else math.nan

    @property
    def late_per_1000(self) -> float:
        """Rows that were uploaded on a later day than their own, among a thousand."""
        return 1000 * self.late_rows / self.rows if self.rows else math.nan


@dataclass(frozen=True)
class Volumes:
    """What all slices of refined.events took and gave, seen from several sides."""

    by_point: Mapping[date, Volume]
    """Of the days of a span."""
    recent: Volume
    of_project: Mapping[str, Volume]
    """Of all days."""
    newest_day: Mapping[str, date]
    """Project -> its newest event day with rows, up to today."""
    newest_lag: Mapping[str, float]
    """Project -> seconds, of that day."""


def volumes(
    slices: Iterable[SliceFigures], span: Span, recent_from: date, projects: Iterable[str], today: date
) -> Volumes:
    """The sums of slices, each of which is looked at once and not kept."""
    by_point: dict[date, _Sum] = {}
    recent, of_project = _Sum(), {name: _Sum() for name in projects}
    newest_day: dict[str, date] = {}
    newest_lag: dict[str, float] = {}
    for one in slices:
        if span.first <= one.day <= span.last:
            by_point.setdefault(span.point(one.day), _Sum()).add(one)
        if recent_from <= one.day <= span.last:
            recent.add(one)
        of_project[one.project_id].add(one)
        if one.rows and newest_day.get(one.project_id, date.min) <= one.day <= today:
            newest_day[one.project_id], newest_lag[one.project_id] = one.day, one.lag_seconds
    return Volumes(
        {point: found.volume() for point, found in by_point.items()},
        recent.volume(),
        {name: found.volume() for name, found in of_project.items()},
        newest_day,
        newest_lag,
    )


class _Sum:
    """Slices as they are added up."""

    def __init__(self) -> None:
        self._days: set[date] = set()
        self._rows = self._raw_rows = self._removed = self._late_rows = 0
        self._lags = array("d")

    def add(self, one: SliceFigures) -> None:
        self._rows += one.rows
        self._raw_rows += one.raw_rows
        self._removed += one.removed
        self._late_rows += one.late_rows
        if one.rows:
            self._days.add(one.day)
            self._lags.append(one.lag_seconds)

    def volume(self) -> Volume:
        lags = array("d", sorted(self._lags))
        return Volume(len(self._days), self._rows, self._raw_rows, self._removed, self._late_rows, lags)


@dataclass(frozen=True)
class RefusedByReason:
    """What was refused for one reason."""

    reason: str | None
    """None: of single lines that an older version recorded; raw.quarantine holds theirs."""
    objects: int
    """Refused whole, or with such lines."""
    lines: int
    last: date
    is_whole: bool
    """Whether whole objects are refused, and not single lines."""


def refused_by_reason(found: Iterable[RefusedLines]) -> list[RefusedByReason]:
    """Whole objects by reason, then single lines by theirs; the most frequent first."""
    by_reason: dict[tuple[bool, str | None], list[RefusedLines]] = {}
    for one in found:
        is_whole = one.error is not None
        by_reason.setdefault((is_whole, one.error if is_whole else one.line_reason), []).append(one)
    made = [
        RefusedByReason(
            reason, sum(o.objects for o in listed), sum(o.lines for o in listed), max(o.day for o in listed), is_whole
        )
        for (is_whole, reason), listed in by_reason.items()
    ]

    def order(one: RefusedByReason) -> tuple[bool, bool, int, str]:
        return not one.is_whole, one.reason is None, -(one.objects if one.is_whole else one.lines), one.reason or ""

    return sorted(made, key=order)


def summed(values: Iterable[tuple[date, float]], span: Span) -> dict[date, float]:
    """Point -> the sum of what lies in it."""
    total: Counter[date] = Counter()
    for day, value in values:
        if span.first <= day <= span.last:
            total[span.point(day)] += value  # type: ignore[assignment]  # a Counter counts anything that adds up
    return dict(total)


LOAD_KINDS = {Source.REGULAR.value: "regular", Source.BACKFILL.value: "backfill", "": "derived tables only"}
"""Source that a load reads -> what such a load is called."""
_GOOD = frozenset(verdict.value for verdict in Verdict if verdict.is_good)


@dataclass(frozen=True)
class RunTime:
    """How long one load took, and whether it left anything open."""

    kind: str
    ended_at: datetime
    seconds: float
    is_good: bool
    """Whether no slice of it was refused, waits or is held."""

    @property
    def day(self) -> date:
        """On which it ended."""
        return self.ended_at.date()


def run_times(runs: Iterable[FinishedRun]) -> list[RunTime]:
    """One for each load that went through all its tables, by its end."""
    sources = {table.key: source.value for source, table in RAW_TABLES.items()}
    found = []
    for run in runs:
        read = [sources[table] for table in sorted(run.tables & sources.keys())]
        ended = datetime.fromisoformat(run.finished_at)
        seconds = (ended - datetime.fromisoformat(run.started_at)).total_seconds()
        is_good = all(name.rpartition(" ")[2] in _GOOD for name, count in run.verdicts.items() if count)
        found.append(RunTime(LOAD_KINDS[read[0] if read else ""], ended, max(0.0, seconds), is_good))
    return found


def times_by_point(times: Iterable[RunTime], kind: str, span: Span) -> Mapping[date, tuple[float, float]]:
    """Point -> p50 and p95 in seconds of the loads of that kind that ended in it: a day, or the first day of a month."""
    by_point: dict[date, list[float]] = {}
    for one in times:
        if one.kind == kind:
            point = one.day.replace(day=1) if span.is_by_month else one.day
            by_point.setdefault(point, []).append(one.seconds)
    return {point: (percentile(seconds, 0.5), percentile(seconds, 0.95)) for point, seconds in sorted(by_point.items())}


def days_of_revisions(revisions: Iterable[Revision]) -> list[tuple[date, float]]:
    """On which days published numbers changed, once for each change."""
    return [(date.fromisoformat(one.published_at[:10]), 1.0) for one in revisions if one.published_at]
