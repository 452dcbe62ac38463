"""The metric values for Prometheus, computed from the report of the health page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from importlib.metadata import PackageNotFoundError, version

from pipeline_assets.domain.quarantine_reasons import QuarantineReason
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.inspection.health.answers import AnswerKind
from pipeline_assets.inspection.health.calendar import TABLES, Calendar
from pipeline_assets.inspection.health.figures import LOAD_KINDS
from pipeline_assets.inspection.health.report import HealthReport, read_health
from pipeline_assets.inspection.metrics import families as f
from pipeline_assets.inspection.metrics.families import Family
from resources.ledger.cuts import Processes
from resources.ledger.store import Ledger

_PACKAGE = "tidemark-pipeline"
_OTHER = "other"
_REASONS = (*(reason.value for reason in QuarantineReason), _OTHER)
"""Any other recorded reason counts as `other`, so that no outside text becomes a label."""


@dataclass(frozen=True)
class RunQueue:
    """Dagster's numbers of runs."""

    queued: int
    """Requested but not begun."""
    working: int
    """Begun but not ended."""


@dataclass(frozen=True)
class Sample:
    """One value of a family."""

    family: Family
    labels: tuple[str, ...]
    """Label values, in the order of the family's labels."""
    value: float


@dataclass(frozen=True)
class Activities:
    """The recent work of loads that the report does not cover."""

    reported: Mapping[tuple[str, str], int]
    """(table, verdict) -> number of slices."""
    seconds: Mapping[str, float]
    """Table -> seconds that the run which published it last spent on it."""
    processes: Processes


def read_samples(ledger: Ledger, settings: Settings, now: datetime, queue: RunQueue | None) -> list[Sample]:
    """All samples; `queue` is None where Dagster could not be reached. Raises LedgerError, SettingsError."""
    report = read_health(ledger, settings, now)
    activity = ledger.activity
    did = Activities(activity.reported(), activity.seconds(), activity.processes())
    return [*_of_the_look(1, now), *samples_of(report, did, queue)]


def samples_of_nothing(now: datetime) -> list[Sample]:
    """The samples for an unreadable ledger: only that fact, and no outdated values."""
    return _of_the_look(0, now)


def samples_of(report: HealthReport, did: Activities, queue: RunQueue | None) -> list[Sample]:
    """The samples of one report. Zero counts are included, so that an alert rule sees a problem end."""
    made = [*_of_days(report.calendar, report.projects), *_of_questions(report), *_of_projects(report)]
    made += [*_of_lines(report), *_of_runs(report), *_of_activity(did)]
    doubled = Counter(one.table for one in report.duplicate_keys if one.value)
    made += [Sample(f.DUPLICATES, (table,), doubled[table]) for table in TABLES]
    made += [
        Sample(f.STRAYS, (), len(report.strays)),
        Sample(f.MISMATCHES, (), sum(one.value for one in report.mismatches)),
        Sample(f.REVISIONS, (), len(report.revisions)),
        Sample(f.NARROW, (), len(report.too_narrow)),
        Sample(f.UNTOLD, (), len(report.troubles)),
        Sample(f.DAGSTER_UP, (), 0 if queue is None else 1),
    ]
    if queue is not None:
        made += [Sample(f.QUEUE, ("queued",), queue.queued), Sample(f.QUEUE, ("working",), queue.working)]
    return made


def _of_the_look(up: int, now: datetime) -> list[Sample]:
    try:
        built = version(_PACKAGE)
    except PackageNotFoundError:
        built = "unknown"
    return [Sample(f.UP, (), up), Sample(f.WRITTEN, (), now.timestamp()), Sample(f.BUILD, (built,), 1)]


def _of_days(calendar: Calendar | None, projects: Iterable[str]) -> list[Sample]:
    states = list(calendar.states.values()) if calendar is not None else []
    verdicts = Counter((one.table, one.verdict.value) for one in states)
    refused = {
        (fault.day, one.table, fault.project_id)
        for one in states
        for fault in one.faults
        if fault.verdict == Verdict.REFUSED.value
    }
    by_project = Counter((table, project) for _, table, project in refused)
    unloaded = Counter(one.table for one in states if one.absent)
    named = list(projects)
    return [
        *(
            Sample(f.DAYS, (table, verdict.value), verdicts[table, verdict.value])
            for table in TABLES
            for verdict in Verdict
        ),
        *(
            Sample(f.REFUSED_DAYS, (table, project), by_project[table, project])
            for table in TABLES
            for project in named
        ),
        *(Sample(f.UNLOADED_DAYS, (table,), unloaded[table]) for table in TABLES),
    ]


def _of_questions(report: HealthReport) -> list[Sample]:
    asked = Counter(one.kind for one in report.questions)
    return [Sample(f.QUESTIONS, (kind.name.lower(),), asked[kind]) for kind in AnswerKind]


def _of_projects(report: HealthReport) -> list[Sample]:
    made = []
    for project, day in sorted(report.newest_day.items()):
        made.append(Sample(f.NEWEST_DAY, (project,), _midnight(day)))
        made.append(Sample(f.WATERMARK_LAG, (project,), report.newest_lag[project]))
    for project, volume in report.of_project.items():
        made.append(Sample(f.ROWS, (project,), volume.rows))
        made.append(Sample(f.RAW_ROWS, (project,), volume.raw_rows))
        made.append(Sample(f.LATE_ROWS, (project,), volume.late_rows))
    return made


def _midnight(day: date) -> float:
    return datetime.combine(day, time(), UTC).timestamp()


def _of_lines(report: HealthReport) -> list[Sample]:
    objects: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for one in report.refused_by_reason:
        name = (one.reason or _OTHER).partition(":")[0]
        reason = name if name in _REASONS else _OTHER
        if one.is_whole:
            objects[reason] += one.objects
        else:
            lines[reason] += one.lines
    return [
        *(Sample(f.REFUSED_OBJECTS, (reason,), objects[reason]) for reason in _REASONS),
        *(Sample(f.REFUSED_LINES, (reason,), lines[reason]) for reason in _REASONS),
    ]


def _of_runs(report: HealthReport) -> list[Sample]:
    ended = Counter((one.kind, one.is_good) for one in report.run_times)
    last = {one.kind: one for one in sorted(report.run_times, key=lambda one: one.ended_at)}
    made = [
        Sample(f.RUNS, (_label(kind), outcome), ended[kind, is_good])
        for kind in LOAD_KINDS.values()
        for outcome, is_good in (("complete", True), ("incomplete", False))
    ]
    for kind, run in sorted(last.items()):
        made.append(Sample(f.LAST_RUN, (_label(kind),), run.ended_at.timestamp()))
        made.append(Sample(f.LAST_RUN_SECONDS, (_label(kind),), run.seconds))
    return made


def _label(kind: str) -> str:
    return kind.replace(" ", "_")


def _of_activity(did: Activities) -> list[Sample]:
    return [
        *(Sample(f.VERDICTS, names, count) for names, count in sorted(did.reported.items())),
        *(Sample(f.TABLE_SECONDS, (table,), seconds) for table, seconds in sorted(did.seconds.items())),
        Sample(f.OPEN_RUNS, (), did.processes.open),
        Sample(f.DIED_RUNS, (), did.processes.died),
    ]
