"""The content of the health page, read from the ledger at once: the state of days, figures over time, open questions."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np

from pipeline_assets.domain.deliveries import UNREADABLE, BatchKey, unreadable_values
from pipeline_assets.domain.golden import GoldenFault
from pipeline_assets.domain.lateness import ARRIVAL_DAYS, Lateness, LatenessSketch, lateness
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, BatchVerdict, Source, Verdict
from pipeline_assets.inspection import questions as asked
from pipeline_assets.inspection.status import WORST_FIRST
from pipeline_assets.inspection.window import late_times
from pipeline_assets.load.golden import compare_recorded, faults_on_record
from pipeline_assets.load.staleness.finality import is_short, warnings_of
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.registry import DERIVED, DIMENSIONS, OPTIONAL_TABLES
from resources.ledger.history import Revision
from resources.ledger.store import Ledger
from resources.ledger.summaries import CheckFigure, Fault, RefusedLines, RunTime, SliceFigures, VerdictCount
from resources.publishing import Promise, promise_of

OF_DIMENSIONS: tuple[str, ...] = tuple(table.key for table in OPTIONAL_TABLES)
"""Shown only if the lake has them; a month of intervals is shown on its first day."""
_OF_BATCH = {BatchVerdict.ACCEPTED.value: Verdict.PUBLISHED, BatchVerdict.MOVED.value: Verdict.WAITING}
_NOT_AWAITED = {RAW_TABLES[Source.BACKFILL].key, *OF_DIMENSIONS}


@dataclass(frozen=True)
class DayState:
    """The state of one day of one table."""

    table: str
    day: date
    verdict: Verdict
    projects: int
    absent: int
    """Further projects expected, because their first deliveries came before that day."""
    faults: tuple[Fault, ...]
    is_missing: bool = False
    """For a dimension: whether the day has no snapshot, and the settings let another day's stand in."""

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to report about the day."""
        return self.verdict.is_good and not self.absent and not self.is_missing


@dataclass(frozen=True)
class Calendar:
    """All days on record."""

    first: date
    last: date
    states: Mapping[tuple[str, date], DayState]

    @property
    def red(self) -> list[DayState]:
        """Refused or held days, by day and then in the order of the graph."""
        red = [one for one in self.states.values() if one.verdict in (Verdict.REFUSED, Verdict.HELD)]
        return sorted(red, key=lambda one: (one.day, asked.in_graph(one.table)))


def calendar(
    slices: Sequence[VerdictCount],
    batches: Sequence[VerdictCount],
    faults: Sequence[Fault],
    first_days: Mapping[str, date],
    missing: frozenset[tuple[str, date]] = frozenset(),
) -> Calendar | None:
    """From the first delivery to the last day on record, with earlier red days; `missing`: (table, day) without a snapshot."""
    raw = {table.key for table in RAW_TABLES.values()}
    verdicts: dict[tuple[str, date], Counter[Verdict]] = {}
    for name, day, text, projects in (*(one for one in slices if one[0] not in raw), *batches):
        counts = verdicts.setdefault((asked.table_of(name), day), Counter())
        counts[_OF_BATCH.get(text) or Verdict(text)] += projects
    told: dict[tuple[str, date], list[Fault]] = {}
    for fault in faults:
        told.setdefault((asked.table_of(fault.place), fault.day), []).append(fault)
    begun = min(first_days.values(), default=None)
    states = {}
    for place, counts in verdicts.items():
        table, day = place
        if begun is None or day >= begun or place in told:
            awaited = sum(first <= day for first in first_days.values()) if table not in _NOT_AWAITED else 0
            verdict, absent = next(one for one in WORST_FIRST if one in counts), max(0, awaited - counts.total())
            of_day = tuple(told.get(place, ()))
            states[place] = DayState(table, day, verdict, counts.total(), absent, of_day, place in missing)
    days = [day for _, day in states]
    return Calendar(begun or min(days), max(days), states) if states else None


MOST_DAYS = 184


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank); nan of none."""
    return float(np.quantile(values, share, method="inverted_cdf")) if len(values) else math.nan


@dataclass(frozen=True)
class Span:
    """The days from first to last."""

    first: date
    last: date

    @property
    def days(self) -> list[date]:
        """Every day, including those without records."""
        return [self.first + timedelta(days=shift) for shift in range((self.last - self.first).days + 1)]

    def newest(self) -> Span:
        """The newest of these days, at most `MOST_DAYS`."""
        return Span(max(self.first, self.last - timedelta(days=MOST_DAYS - 1)), self.last)


@dataclass
class Volume:
    """Rows into and out of slices of refined.events."""

    days: set[date] = field(default_factory=set)
    rows: int = 0
    raw_rows: int = 0
    removed: int = 0
    late_rows: int = 0
    lags: array[float] = field(default_factory=lambda: array("d"))
    """Seconds per slice with rows, ascending; an array, because a long history has very many slices."""

    def add(self, one: SliceFigures) -> None:
        """Add a slice; its lag goes to the end."""
        self.rows += one.rows
        self.raw_rows += one.raw_rows
        self.removed += one.removed
        self.late_rows += one.late_rows
        if one.rows:
            self.days.add(one.day)
            self.lags.append(one.lag_seconds)

    @property
    def rows_a_day(self) -> float:
        """Mean rows per day with rows; nan where there is none."""
        return self.rows / len(self.days) if self.days else math.nan

    @property
    def removed_per_1000(self) -> float:
        """Duplicates per thousand raw rows."""
        return 1000 * self.removed / self.raw_rows if self.raw_rows else math.nan

    @property
    def late_per_1000(self) -> float:
        """Rows per thousand that were uploaded on a later day than their event day."""
        return 1000 * self.late_rows / self.rows if self.rows else math.nan


def volumes(
    slices: Iterable[SliceFigures], span: Span, recent_from: date, projects: Iterable[str], today: date
) -> dict[str, Any]:
    """The sums over slices, by the names of the report's fields; consumes the slices without keeping them."""
    by_day: dict[date, Volume] = {}
    recent, of_project = Volume(), {name: Volume() for name in projects}
    newest: dict[str, SliceFigures] = {}
    for one in slices:
        of_project[one.project_id].add(one)
        if span.first <= one.day <= span.last:
            by_day.setdefault(one.day, Volume()).add(one)
        if recent_from <= one.day <= span.last:
            recent.add(one)
        if one.rows and one.day <= today and one.day >= newest.get(one.project_id, one).day:
            newest[one.project_id] = one
    for volume in (*by_day.values(), recent, *of_project.values()):
        volume.lags = array("d", sorted(volume.lags))
    return {"volumes": by_day, "recent": recent, "of_project": of_project, "newest": newest}


def lines_by_reason(found: Iterable[RefusedLines]) -> dict[date, Counter[str]]:
    """Arrival day -> reason -> quarantined lines of readable objects; newest day first, the most frequent reason first."""
    by_day: dict[date, Counter[str]] = {}
    for one in sorted(found, key=lambda one: (one.day, one.lines), reverse=True):
        if not one.is_whole and one.lines:
            by_day.setdefault(one.day, Counter())[one.reason or "recorded without their reasons"] += one.lines
    return by_day


def refused_by_reason(found: Iterable[RefusedLines]) -> list[RefusedLines]:
    """The sums and the last day of each reason: of whole objects, then of single lines; most frequent first."""
    by_reason: dict[tuple[bool, str | None], list[RefusedLines]] = {}
    for one in sorted(found, key=lambda one: one.day):
        by_reason.setdefault((one.is_whole, one.reason), []).append(one)
    made = (
        replace(listed[-1], objects=sum(one.objects for one in listed), lines=sum(one.lines for one in listed))
        for listed in by_reason.values()
    )

    def order(of: RefusedLines) -> tuple[bool, bool, int, str]:
        return not of.is_whole, of.reason is None, -(of.objects if of.is_whole else of.lines), of.reason or ""

    return sorted(made, key=order)


def times_by_day(times: Iterable[RunTime], kind: str) -> Mapping[date, tuple[float, float]]:
    """Day -> (p50, p95) in seconds of the loads of a kind that ended on it."""
    by_day: dict[date, list[float]] = {}
    for one in times:
        if one.kind == kind:
            by_day.setdefault(one.ended_at.date(), []).append(one.seconds)
    return {day: (percentile(seconds, 0.5), percentile(seconds, 0.95)) for day, seconds in sorted(by_day.items())}


MOST_REVISIONS = 60
RECENT_DAYS = 28
MISMATCH, DUPLICATES = "mismatch_count", "duplicate_keys_per_1000"


@dataclass(frozen=True)
class HealthReport:
    """The health of the pipeline at one moment."""

    made_at: datetime
    projects: tuple[str, ...]
    calendar: Calendar | None
    span: Span
    volumes: Mapping[date, Volume]
    """Day -> rows into and out of refined.events, all projects together."""
    recent: Volume
    of_project: Mapping[str, Volume]
    newest: Mapping[str, SliceFigures]
    questions: tuple[asked.Question, ...]
    early: frozenset[tuple[date, str]]
    """(day, project) pairs that wait for deliveries whose deadline is still ahead."""
    strays: tuple[str, ...]
    troubles: tuple[asked.ReceiverTrouble, ...]
    golden_faults: tuple[GoldenFault, ...]
    mismatches: Sequence[CheckFigure]
    duplicate_keys: Sequence[CheckFigure]
    """Keys per thousand that occur twice in published or refused content."""
    lateness: Mapping[str, Lateness]
    """Project -> lateness of its regular deliveries in days; `""` -> all projects together."""
    late_times: Mapping[str, LatenessSketch]
    """Project -> the same in seconds, as far as measured; `""` -> all projects together."""
    too_narrow: tuple[str, ...]
    """A text per project whose configured window misses more than is tolerated."""
    arrivals_since: date
    window_days: int
    run_times: Sequence[RunTime]
    refused_lines: Sequence[RefusedLines]
    refused_by_reason: Sequence[RefusedLines]
    unreadable: str
    revisions: Sequence[Revision]
    """Changes of final days, newest first; only the first 60 have measures."""
    promise: Promise

    @property
    def for_a_person(self) -> list[asked.Question]:
        """The questions that only a decision or a delivery settles."""
        return [one for one in self.questions if not one.follows]

    @property
    def waiting(self) -> int:
        """The number of questions, troubles and golden faults for the operator."""
        return len(self.for_a_person) + len(self.troubles) + len(self.golden_faults)

    @property
    def following(self) -> list[asked.Question]:
        """The questions that settle themselves once another one is settled."""
        return [one for one in self.questions if one.follows]

    @property
    def recent_revisions(self) -> int:
        """The number of changes to final days within 28 days before this report."""
        since = (self.made_at - timedelta(days=RECENT_DAYS)).isoformat()
        return sum(one.published_at >= since for one in self.revisions)


def read_health(ledger: Ledger, settings: Settings, now: datetime) -> HealthReport:
    """The report on the configured projects; opens neither tables nor landing. Raises LedgerError, SettingsError."""
    projects, summaries = settings.require_projects(), ledger.summaries
    everyone = [*projects, ALL_PROJECTS]
    batches, slices = summaries.batch_faults(projects), summaries.slice_faults(everyone)
    faults, early = [*batches, *slices], asked.early_days(batches)
    short = [
        one
        for one in summaries.short_batches(projects)
        if is_short(
            ledger.batches([one.project_id], one.day, one.day), BatchKey(Source.REGULAR, one.project_id, one.day)
        )
    ]
    awaited_from = settings.first_arrival or date.min
    first_days = {project: max(day, awaited_from) for project, day in summaries.first_days(projects).items()}
    verdicts = summaries.slice_verdicts(everyone), summaries.batch_verdicts(projects)
    shown = calendar(*verdicts, faults, first_days, _missing(ledger))
    today = now.date()
    span = Span(shown.first, min(shown.last, today)) if shown and shown.first <= today else Span(today, today)
    since = span.last - timedelta(days=ARRIVAL_DAYS - 1)
    recent_from = max(span.first, span.last - timedelta(days=RECENT_DAYS - 1))
    measured = summaries.slice_figures(REFINED_EVENTS.key, projects)
    found = summaries.refused_lines(projects)
    refused = [one for one in found if one.is_whole or not (one.reason or "").startswith(UNREADABLE)]
    figures = summaries.check_figures((MISMATCH, DUPLICATES), projects)
    of_batches = [
        CheckFigure(asked.table_of(one.place), one.day, one.project_id, value)
        for one in batches
        if (value := sum(of.figures.get(MISMATCH, 0) for of in one.evaluations))
    ]
    late = lateness(summaries.arrivals(Source.REGULAR, projects, since, span.last))
    times_of = late_times(summaries, Source.REGULAR, projects, since, span.last)
    return HealthReport(
        made_at=now,
        projects=projects,
        calendar=shown,
        span=span,
        questions=(*map(asked.rebuild_question, ledger.rebuilds.open()), *asked.questions((*faults, *short), early)),
        early=early,
        strays=tuple(ledger.strays.all(projects)),
        troubles=tuple(asked.receiver_troubles(ledger, settings)),
        golden_faults=tuple(faults_on_record(ledger, settings)),
        **volumes(measured, span.newest(), recent_from, projects, today),
        mismatches=[*of_batches, *figures[MISMATCH], *_golden(ledger, settings, projects)],
        duplicate_keys=figures[DUPLICATES],
        lateness=late,
        late_times={project: sketch for project, (sketch, _) in times_of.items()},
        too_narrow=tuple(warnings_of(late, settings)),
        arrivals_since=max(since, span.first),
        window_days=settings.reprocessing_window_days,
        run_times=summaries.run_times(),
        refused_lines=refused,
        refused_by_reason=refused_by_reason(refused),
        unreadable=unreadable_values({one.reason or "": one.lines for one in refused_by_reason(found)}),
        revisions=_revisions(ledger, projects),
        promise=promise_of(settings),
    )


def _missing(ledger: Ledger) -> frozenset[tuple[str, date]]:
    """Days after the first snapshot without one of their own, where the settings let another stand in."""
    found = set()
    for table in (one.snapshot for one in DIMENSIONS):
        records = ledger.slices(table.key, [ALL_PROJECTS])
        first = min((key.event_date for key, record in records.items() if record.digest != EMPTY), default=date.max)
        good = {key.event_date for key, record in records.items() if record.verdict.is_good and record.digest == EMPTY}
        found |= {(table.key, day) for day in good if day > first}
    return frozenset(found)


def _golden(ledger: Ledger, settings: Settings, projects: Sequence[str]) -> list[CheckFigure]:
    """The golden totals per table and day that do not agree, compared now: new totals may arrive without a load."""
    found: Counter[tuple[str, date, str]] = Counter()
    for one in compare_recorded(ledger, settings, projects):
        if not one.is_good:
            found[one.total.measure.table, one.total.key.event_date, one.total.key.project_id] += 1
    return [CheckFigure(*place, count) for place, count in sorted(found.items())]


def _revisions(ledger: Ledger, projects: Sequence[str]) -> list[Revision]:
    revisions = ledger.revisions.all([table.key for table in DERIVED], projects)
    shown = revisions[:MOST_REVISIONS]
    measures = ledger.revisions.measures_of(shown)
    return [replace(one, measures=measures.get(one.number, {})) for one in shown] + revisions[MOST_REVISIONS:]
