"""Figures for Prometheus: the families, their values, and the file that a collector reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.quarantine_reasons import QuarantineReason
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.inspection.health.answers import AnswerKind
from pipeline_assets.inspection.health.figures import LOAD_KINDS, TABLES, Calendar
from pipeline_assets.inspection.health.report import HealthReport, read_health
from resources.ledger.store import Ledger
from resources.whole_file import write_whole


class Kind(StrEnum):
    """How Prometheus interprets a metric."""

    GAUGE = "gauge"
    """It goes up and down."""
    COUNTER = "counter"
    """It only goes up, and restarts only with a new ledger."""


@dataclass(frozen=True)
class Family:
    """One metric, with a series per combination of labels. No label names a day, so the number of series does not grow."""

    name: str
    """The name in dashboards and rules; a counter's includes `_total`."""
    help: str
    labels: tuple[str, ...] = ()
    kind: Kind = Kind.GAUGE


UP = Family("tidemark_up", "1 where the ledger could be read, 0 where it could not.")
WRITTEN = Family("tidemark_metrics_timestamp_seconds", "When these figures were read, or tried to be.")
BUILD = Family("tidemark_build_info", "Always 1; the version of Tidemark that wrote this.", ("version",))

DAYS = Family(
    "tidemark_days", "Event days (raw: arrival days) on record by the worst verdict of their projects.",
    ("table", "verdict"),
)  # fmt: skip
REFUSED_DAYS = Family("tidemark_refused_days", "Days that a check refuses.", ("table", "project"))
UNLOADED_DAYS = Family(
    "tidemark_unloaded_days", "Days on record that lack a project which had deliveries before.", ("table",)
)
QUESTIONS = Family("tidemark_questions", "Questions that wait, by what they ask for.", ("kind",))
STRAYS = Family("tidemark_stray_objects", "Objects in landing that no load will ask for.")
NEWEST_DAY = Family(
    "tidemark_newest_day_timestamp_seconds", "Midnight UTC of the newest event day that refined.events shows.",
    ("project",),
)  # fmt: skip
WATERMARK_LAG = Family(
    "tidemark_watermark_lag_seconds", "From the newest event of that day to its newest upload.", ("project",)
)
ROWS = Family("tidemark_rows", "Rows that refined.events shows.", ("project",))
RAW_ROWS = Family("tidemark_raw_rows", "Raw rows that these were made of.", ("project",))
LATE_ROWS = Family("tidemark_late_rows", "Rows that were uploaded on a later day than their own.", ("project",))
REFUSED_OBJECTS = Family("tidemark_quarantined_objects", "Objects that are refused whole.", ("reason",))
REFUSED_LINES = Family("tidemark_quarantined_lines", "Lines that are refused singly.", ("reason",))
MISMATCHES = Family("tidemark_mismatches", "Rows, measures and golden totals that do not agree.")
DUPLICATES = Family(
    "tidemark_days_with_duplicate_keys", "Days that hold a key twice, published or refused.", ("table",)
)
REVISIONS = Family("tidemark_revisions", "Changes of published numbers of days that were final.")
NARROW = Family("tidemark_narrow_windows", "Projects whose reprocessing window misses more than is tolerated.")
UNTOLD = Family("tidemark_receiver_troubles", "Receivers that are not told of notices, and notices that go unsigned.")

RUNS = Family("tidemark_runs_total", "Loads that went through all their tables.", ("kind", "outcome"), Kind.COUNTER)
VERDICTS = Family(
    "tidemark_reported_slices_total", "Slices that these loads reported.", ("table", "verdict"), Kind.COUNTER
)
LAST_RUN = Family("tidemark_last_run_timestamp_seconds", "When the last of them ended.", ("kind",))
LAST_RUN_SECONDS = Family("tidemark_last_run_seconds", "How long it took.", ("kind",))
TABLE_SECONDS = Family(
    "tidemark_table_seconds", "How long the run which published the table last took for it.", ("table",)
)
OPEN_RUNS = Family("tidemark_open_processes", "Processes that began and neither ended nor were found dead.")
DIED_RUNS = Family("tidemark_died_processes", "Processes that were found dead within thirty days.")
DAGSTER_UP = Family("tidemark_dagster_up", "1 where Dagster's queue could be read, 0 where it could not.")
QUEUE = Family("tidemark_dagster_runs", "Runs that Dagster holds.", ("status",))

FAMILIES: tuple[Family, ...] = (
    UP, WRITTEN, BUILD, DAYS, REFUSED_DAYS, UNLOADED_DAYS, QUESTIONS, STRAYS, NEWEST_DAY, WATERMARK_LAG, ROWS, RAW_ROWS,
    LATE_ROWS, REFUSED_OBJECTS, REFUSED_LINES, MISMATCHES, DUPLICATES, REVISIONS, NARROW, UNTOLD, RUNS, VERDICTS,
    LAST_RUN, LAST_RUN_SECONDS, TABLE_SECONDS, OPEN_RUNS, DIED_RUNS, DAGSTER_UP, QUEUE,
)  # fmt: skip
"""The families in the order of the file."""


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


def read_samples(ledger: Ledger, settings: Settings, now: datetime, queue: RunQueue | None) -> list[Sample]:
    """All samples; `queue` is None where Dagster could not be reached. Raises LedgerError, SettingsError.

    Zero counts are included, so that an alert rule sees a problem end.
    """
    report, activity = read_health(ledger, settings, now), ledger.activity
    processes = activity.processes()
    made = [*_of_the_look(1, now), *_of_days(report.calendar, report.projects), *_of_projects(report)]
    made += [*_of_lines(report), *_of_runs(report)]
    asked = Counter(one.kind for one in report.questions)
    made += [Sample(QUESTIONS, (kind.name.lower(),), asked[kind]) for kind in AnswerKind]
    made += [Sample(VERDICTS, names, count) for names, count in sorted(activity.reported().items())]
    made += [Sample(TABLE_SECONDS, (table,), seconds) for table, seconds in sorted(activity.seconds().items())]
    doubled = Counter(one.table for one in report.duplicate_keys if one.value)
    made += [Sample(DUPLICATES, (table,), doubled[table]) for table in TABLES]
    made += [
        Sample(OPEN_RUNS, (), processes.open),
        Sample(DIED_RUNS, (), processes.died),
        Sample(STRAYS, (), len(report.strays)),
        Sample(MISMATCHES, (), sum(one.value for one in report.mismatches)),
        Sample(REVISIONS, (), len(report.revisions)),
        Sample(NARROW, (), len(report.too_narrow)),
        Sample(UNTOLD, (), len(report.troubles)),
        Sample(DAGSTER_UP, (), 0 if queue is None else 1),
    ]
    if queue is not None:
        made += [Sample(QUEUE, ("queued",), queue.queued), Sample(QUEUE, ("working",), queue.working)]
    return made


def samples_of_nothing(now: datetime) -> list[Sample]:
    """The samples for an unreadable ledger: only that fact, and no outdated values."""
    return _of_the_look(0, now)


def _of_the_look(up: int, now: datetime) -> list[Sample]:
    try:
        built = version(_PACKAGE)
    except PackageNotFoundError:
        built = "unknown"
    return [Sample(UP, (), up), Sample(WRITTEN, (), now.timestamp()), Sample(BUILD, (built,), 1)]


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
            Sample(DAYS, (table, verdict.value), verdicts[table, verdict.value])
            for table in TABLES
            for verdict in Verdict
        ),
        *(Sample(REFUSED_DAYS, (table, project), by_project[table, project]) for table in TABLES for project in named),
        *(Sample(UNLOADED_DAYS, (table,), unloaded[table]) for table in TABLES),
    ]


def _of_projects(report: HealthReport) -> list[Sample]:
    made = []
    for project, day in sorted(report.newest_day.items()):
        made.append(Sample(NEWEST_DAY, (project,), datetime.combine(day, time(), UTC).timestamp()))
        made.append(Sample(WATERMARK_LAG, (project,), report.newest_lag[project]))
    for project, volume in report.of_project.items():
        made.append(Sample(ROWS, (project,), volume.rows))
        made.append(Sample(RAW_ROWS, (project,), volume.raw_rows))
        made.append(Sample(LATE_ROWS, (project,), volume.late_rows))
    return made


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
        *(Sample(REFUSED_OBJECTS, (reason,), objects[reason]) for reason in _REASONS),
        *(Sample(REFUSED_LINES, (reason,), lines[reason]) for reason in _REASONS),
    ]


def _of_runs(report: HealthReport) -> list[Sample]:
    ended = Counter((one.kind, one.is_good) for one in report.run_times)
    last = {one.kind: one for one in sorted(report.run_times, key=lambda one: one.ended_at)}
    made = [
        Sample(RUNS, (_label(kind), outcome), ended[kind, is_good])
        for kind in LOAD_KINDS.values()
        for outcome, is_good in (("complete", True), ("incomplete", False))
    ]
    for kind, run in sorted(last.items()):
        made.append(Sample(LAST_RUN, (_label(kind),), run.ended_at.timestamp()))
        made.append(Sample(LAST_RUN_SECONDS, (_label(kind),), run.seconds))
    return made


def _label(kind: str) -> str:
    return kind.replace(" ", "_")


_BEGINNING = f"# HELP {UP.name} ".encode()
"""Every metrics file of Tidemark begins with this; any other file at the path is not overwritten."""


class _Collector(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._of_family: dict[Family, list[Sample]] = {}
        for sample in samples:
            self._of_family.setdefault(sample.family, []).append(sample)

    def collect(self) -> Iterator[Metric]:
        """Yield every family that has samples, in the order of FAMILIES."""
        for family in FAMILIES:
            samples = self._of_family.get(family)
            if samples is None:
                continue
            kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=family.labels)
            for sample in samples:
                metric.add_metric(sample.labels, sample.value)
            yield metric


def text_of(samples: Iterable[Sample]) -> str:
    """The samples in the exposition format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(samples))
    return generate_latest(registry).decode("utf-8")


def write_textfile(text: str, path: Path) -> Path:
    """Write the text to a file, atomically. Returns the absolute path; raises UsageError where it cannot be written."""
    if path.expanduser().exists() and not _is_ours(path.expanduser()):
        raise UsageError(
            str(path), "is there and is no file of figures that Tidemark wrote", "Name another file, or remove this one"
        )
    return write_whole(path, text)


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return False
