"""The content of the health page, read from the ledger at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.golden import GoldenFault
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.quarantine_reasons import UNREADABLE, unreadable_values
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Source
from pipeline_assets.domain.window import ARRIVAL_DAYS, Lateness, lateness
from pipeline_assets.inspection.health.answers import Question, early_days, questions, rebuild_question, table_of
from pipeline_assets.inspection.health.figures import Calendar, Span, Volumes, calendar, refused_by_reason, volumes
from pipeline_assets.inspection.receivers import ReceiverTrouble, receiver_troubles
from pipeline_assets.inspection.window import late_times
from pipeline_assets.load.golden import compare_recorded, faults_on_record
from pipeline_assets.load.staleness.finality import is_short, warnings_of
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import DERIVED, DIMENSIONS
from resources.ledger.cuts import Revision
from resources.ledger.store import Ledger
from resources.ledger.summaries import CheckFigure, Fault, RefusedLines, RunTime
from resources.publishing.promise import Promise, promise_of

MOST_REVISIONS = 60
"""The most revisions shown individually; all are counted."""
RECENT_DAYS = 28
"""Number of days that the page calls recent."""
MISMATCH, DUPLICATES = "mismatch_count", "duplicate_keys_per_1000"


@dataclass(frozen=True)
class HealthReport(Volumes):
    """The health of the pipeline at one moment."""

    made_at: datetime
    projects: tuple[str, ...]
    calendar: Calendar | None
    """None where nothing is on record."""
    span: Span
    """The days on record up to today; charts show the newest of them."""
    questions: tuple[Question, ...]
    early: frozenset[tuple[date, str]]
    """(day, project) pairs that wait for deliveries whose deadline is still ahead."""
    strays: tuple[str, ...]
    """Objects in landing that no load will read."""
    troubles: tuple[ReceiverTrouble, ...]
    """Receivers that miss notices, and unsigned notices."""
    golden_faults: tuple[GoldenFault, ...]
    """Faulty golden totals from the latest reading."""
    mismatches: Sequence[CheckFigure]
    """Number of rows, measures or golden totals that do not agree; only days that have some."""
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
    """The configured reprocessing window."""
    run_times: Sequence[RunTime]
    refused_lines: Sequence[RefusedLines]
    refused_by_reason: Sequence[RefusedLines]
    unreadable: str
    """A sentence on values that could not be read, or empty."""
    revisions: Sequence[Revision]
    """Changes of final days, newest first; only the first 60 have measures."""
    promise: Promise
    """The guarantee to readers while a load publishes."""

    @property
    def for_a_person(self) -> list[Question]:
        """The questions that only a decision or a delivery settles."""
        return [one for one in self.questions if not one.follows]

    @property
    def waiting(self) -> int:
        """Number of things that wait for the operator."""
        return len(self.for_a_person) + len(self.troubles) + len(self.golden_faults)

    @property
    def following(self) -> list[Question]:
        """The questions that settle themselves once another one is settled."""
        return [one for one in self.questions if one.follows]

    @property
    def recent_revisions(self) -> int:
        """Number of changes to final days within 28 days before this report."""
        since = (self.made_at - timedelta(days=RECENT_DAYS)).isoformat()
        return sum(one.published_at >= since for one in self.revisions)


def read_health(ledger: Ledger, settings: Settings, now: datetime) -> HealthReport:
    """The report on the configured projects; opens neither tables nor landing. Raises LedgerError, SettingsError."""
    projects, summaries, arrivals = settings.require_projects(), ledger.summaries, ledger.arrival_summaries
    everyone = [*projects, ALL_PROJECTS]
    batches, slices = summaries.batch_faults(projects), summaries.slice_faults(everyone)
    faults, early = [*batches, *slices], early_days(batches)
    # The other source's record says what a recovery brought since.
    short = []
    for one in summaries.short_batches(projects):
        key = BatchKey(Source.REGULAR, one.project_id, one.day)
        short += [one] if is_short(ledger.batches([one.project_id], one.day, one.day), key) else []
    awaited_from = settings.first_arrival or date.min
    first_days = {project: max(day, awaited_from) for project, day in summaries.first_days(projects).items()}
    verdicts = summaries.slice_verdicts(everyone), summaries.batch_verdicts(projects)
    shown = calendar(*verdicts, faults, first_days, _missing(ledger))
    today = now.date()
    span = Span(shown.first, min(shown.last, today)) if shown and shown.first <= today else Span(today, today)
    since = span.last - timedelta(days=ARRIVAL_DAYS - 1)
    recent_from = max(span.first, span.last - timedelta(days=RECENT_DAYS - 1))
    measured = summaries.slice_figures(REFINED_EVENTS.key, projects)
    sums = volumes(measured, span.newest(), recent_from, projects, today)
    found = arrivals.refused_lines(projects)
    refused = [one for one in found if not (one.line_reason or "").startswith(UNREADABLE)]
    figures = summaries.check_figures((MISMATCH, DUPLICATES), projects)
    late = lateness(arrivals.arrivals(Source.REGULAR, projects, since, span.last))
    times_of = late_times(arrivals, Source.REGULAR, projects, since, span.last)
    in_reach = {project: one.without(settings.max_lateness_days) for project, one in late.items()}
    return HealthReport(
        made_at=now,
        projects=projects,
        calendar=shown,
        span=span,
        questions=(*map(rebuild_question, ledger.rebuilds.open()), *questions((*faults, *short), early)),
        early=early,
        strays=tuple(ledger.strays.all(projects)),
        troubles=tuple(receiver_troubles(ledger, settings)),
        golden_faults=tuple(faults_on_record(ledger, settings)),
        **vars(sums),
        mismatches=[*_mismatches(batches), *figures[MISMATCH], *_golden(ledger, settings, projects)],
        duplicate_keys=figures[DUPLICATES],
        lateness=late,
        late_times={project: sketch for project, (sketch, _) in times_of.items()},
        too_narrow=tuple(warnings_of(in_reach, settings)),
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
    """(table, day) pairs after the first snapshot without one of their own, where the settings let another stand in."""
    found = set()
    for table in (one.snapshot for one in DIMENSIONS):
        records = ledger.slices(table.key, [ALL_PROJECTS])
        first = min((key.event_date for key, record in records.items() if record.digest != EMPTY), default=date.max)
        good = {key.event_date for key, record in records.items() if record.verdict.is_good and record.digest == EMPTY}
        found |= {(table.key, day) for day in good if day > first}
    return frozenset(found)


def _mismatches(batches: Sequence[Fault]) -> list[CheckFigure]:
    return [
        CheckFigure(table_of(fault.place), fault.day, fault.project_id, value)
        for fault in batches
        if (value := sum(one.figures.get(MISMATCH, 0) for one in fault.evaluations))
    ]


def _golden(ledger: Ledger, settings: Settings, projects: Sequence[str]) -> list[CheckFigure]:
    """Number of golden totals per table and day that do not agree, compared now: new totals may arrive without a load."""
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
