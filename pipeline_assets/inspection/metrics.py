"""Figures for Prometheus: the families, their values, and the file that a collector reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_assets.domain.deliveries import QuarantineReason
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.inspection.health import read_health
from pipeline_assets.inspection.questions import TABLES, AnswerKind
from resources.ledger.store import Ledger
from resources.ledger.summaries import LOAD_KINDS
from resources.whole_file import write_whole


@dataclass(frozen=True)
class Family:
    """One metric, with a series per combination of labels. No label names a day, so the number of series does not grow."""

    name: str
    """The name in dashboards and rules; a counter's ends in `_total`."""
    help: str
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        """Whether it only goes up, and restarts only with a new ledger."""
        return self.name.endswith("_total")


FAMILIES = (
    Family("tidemark_up", "1 where the ledger could be read, 0 where it could not."),
    Family("tidemark_metrics_timestamp_seconds", "When these figures were read, or tried to be."),
    Family("tidemark_build_info", "Always 1; the version of Tidemark that wrote this.", ("version",)),
    Family("tidemark_days", "Event days (raw: arrival days) on record by the worst verdict of their projects.",
           ("table", "verdict")),
    Family("tidemark_refused_days", "Days that a check refuses.", ("table", "project")),
    Family("tidemark_unloaded_days", "Days on record that lack a project which had deliveries before.", ("table",)),
    Family("tidemark_questions", "Questions that wait, by what they ask for.", ("kind",)),
    Family("tidemark_stray_objects", "Objects in landing that no load will ask for."),
    Family("tidemark_newest_day_timestamp_seconds", "Midnight UTC of the newest event day that refined.events shows.",
           ("project",)),
    Family("tidemark_watermark_lag_seconds", "From the newest event of that day to its newest upload.", ("project",)),
    Family("tidemark_rows", "Rows that refined.events shows.", ("project",)),
    Family("tidemark_raw_rows", "Raw rows that these were made of.", ("project",)),
    Family("tidemark_late_rows", "Rows that were uploaded on a later day than their own.", ("project",)),
    Family("tidemark_quarantined_objects", "Objects that are refused whole.", ("reason",)),
    Family("tidemark_quarantined_lines", "Lines that are refused singly.", ("reason",)),
    Family("tidemark_mismatches", "Rows, measures and golden totals that do not agree."),
    Family("tidemark_days_with_duplicate_keys", "Days that hold a key twice, published or refused.", ("table",)),
    Family("tidemark_revisions", "Changes of published numbers of days that were final."),
    Family("tidemark_narrow_windows", "Projects whose reprocessing window misses more than is tolerated."),
    Family("tidemark_receiver_troubles", "Receivers that are not told of notices, and notices that go unsigned."),
    Family("tidemark_runs_total", "Loads that went through all their tables.", ("kind", "outcome")),
    Family("tidemark_reported_slices_total", "Slices that these loads reported.", ("table", "verdict")),
    Family("tidemark_last_run_timestamp_seconds", "When the last of them ended.", ("kind",)),
    Family("tidemark_last_run_seconds", "How long it took.", ("kind",)),
    Family("tidemark_table_seconds", "How long the run which published the table last took for it.", ("table",)),
    Family("tidemark_open_processes", "Processes that began and neither ended nor were found dead."),
    Family("tidemark_died_processes", "Processes that were found dead within thirty days."),
    Family("tidemark_dagster_up", "1 where Dagster's queue could be read, 0 where it could not."),
    Family("tidemark_dagster_runs", "Runs that Dagster holds.", ("status",)),
)  # fmt: skip
"""The families in the order of the file."""
_OTHER = "other"
_REASONS = (*(reason.value for reason in QuarantineReason), _OTHER)
"""Any other recorded reason counts as `other`, so that no outside text becomes a label."""
_BEGINNING = f"# HELP {FAMILIES[0].name} ".encode()
"""Every metrics file of Tidemark begins with this; any other file at the path is not overwritten."""


def read_samples(ledger: Ledger, settings: Settings, now: datetime, queue: Mapping[str, int] | None) -> list[Metric]:
    """All families with their samples. Raises LedgerError, SettingsError.

    `queue`: status -> the number of runs that Dagster holds; None where it could not be reached. Zero counts are included, so
    that an alert rule sees a problem end.
    """
    report, activity = read_health(ledger, settings, now), ledger.activity
    states = list(report.calendar.states.values()) if report.calendar is not None else []
    refused = {
        (of.day, one.table, of.project_id) for one in states for of in one.faults if of.verdict == Verdict.REFUSED
    }
    newest = sorted(report.newest.items())
    runs = sorted(((one.kind.replace(" ", "_"), one) for one in report.run_times), key=lambda pair: pair[0])
    outcomes = [(kind, "complete" if one.is_good else "incomplete") for kind, one in runs]
    kinds, answers = [kind.replace(" ", "_") for kind in LOAD_KINDS], [kind.name.lower() for kind in AnswerKind]
    processes, projects, quarantine = activity.processes(), report.of_project, report.refused_by_reason
    values: dict[str, Any] = {
        **_of_the_look(1, now),
        "tidemark_days": _counts(product(TABLES, Verdict), [(one.table, one.verdict) for one in states]),
        "tidemark_refused_days": _counts(product(TABLES, report.projects), [one[1:] for one in refused]),
        "tidemark_unloaded_days": _counts(TABLES, [one.table for one in states if one.absent]),
        "tidemark_questions": _counts(answers, [one.kind.name.lower() for one in report.questions]),
        "tidemark_stray_objects": len(report.strays),
        "tidemark_newest_day_timestamp_seconds": {
            name: datetime.combine(one.day, time(), UTC).timestamp() for name, one in newest
        },
        "tidemark_watermark_lag_seconds": {name: one.lag_seconds for name, one in newest},
        "tidemark_rows": {name: of.rows for name, of in projects.items()},
        "tidemark_raw_rows": {name: of.raw_rows for name, of in projects.items()},
        "tidemark_late_rows": {name: of.late_rows for name, of in projects.items()},
        "tidemark_quarantined_objects": _by_reason((one.reason, one.objects) for one in quarantine if one.is_whole),
        "tidemark_quarantined_lines": _by_reason((one.reason, one.lines) for one in quarantine if not one.is_whole),
        "tidemark_mismatches": sum(one.value for one in report.mismatches),
        "tidemark_days_with_duplicate_keys": _counts(TABLES, [one.table for one in report.duplicate_keys if one.value]),
        "tidemark_revisions": len(report.revisions),
        "tidemark_narrow_windows": len(report.too_narrow),
        "tidemark_receiver_troubles": len(report.troubles),
        "tidemark_runs_total": _counts(product(kinds, ("complete", "incomplete")), outcomes),
        "tidemark_reported_slices_total": dict(sorted(activity.reported().items())),
        "tidemark_last_run_timestamp_seconds": {kind: one.ended_at.timestamp() for kind, one in runs},
        "tidemark_last_run_seconds": {kind: one.seconds for kind, one in runs},
        "tidemark_table_seconds": dict(sorted(activity.seconds().items())),
        "tidemark_open_processes": processes.open,
        "tidemark_died_processes": processes.died,
        "tidemark_dagster_up": 0 if queue is None else 1,
        "tidemark_dagster_runs": queue or {},
    }
    return _metrics(values)


def samples_of_nothing(now: datetime) -> list[Metric]:
    """The samples for an unreadable ledger: only that fact, and no outdated values."""
    return _metrics(_of_the_look(0, now))


def _of_the_look(up: int, now: datetime) -> dict[str, Any]:
    try:
        built = version("tidemark-pipeline")
    except PackageNotFoundError:
        built = "unknown"
    return {FAMILIES[0].name: up, FAMILIES[1].name: now.timestamp(), FAMILIES[2].name: {built: 1}}


def _counts(expected: Iterable[Any], found: Iterable[Any]) -> dict[Any, int]:
    counted = Counter(found)
    return {key: counted[key] for key in expected}


def _by_reason(found: Iterable[tuple[str | None, int]]) -> dict[str, int]:
    counted = dict.fromkeys(_REASONS, 0)
    for reason, count in found:
        name = (reason or _OTHER).partition(":")[0]
        counted[name if name in counted else _OTHER] += count
    return counted


def _metrics(values: Mapping[str, Any]) -> list[Metric]:
    """Families with samples; a value is a number, or a mapping from a label or labels to numbers."""
    made: list[Metric] = []
    for family in FAMILIES:
        found = values.get(family.name, {})
        kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
        metric = kind(family.name, family.help, labels=family.labels)
        for labels, value in (found if isinstance(found, Mapping) else {(): found}).items():
            metric.add_metric((labels,) if isinstance(labels, str) else labels, value)
        made += [metric] if metric.samples else []
    return made


class _Read(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """The metrics as they were read."""
        return self._metrics


def text_of(metrics: Iterable[Metric]) -> str:
    """The metrics in the exposition format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read(metrics))
    return generate_latest(registry).decode("utf-8")


def write_textfile(text: str, path: Path) -> Path:
    """Write the text to a file, atomically. Returns the absolute path; raises UsageError where it cannot be written."""
    place = path.expanduser()
    try:
        with place.open("rb") as file:
            is_ours = file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        is_ours = not place.exists()
    if not is_ours:
        raise UsageError(
            str(path), "is there and is no file of figures that Tidemark wrote", "Name another file, or remove this one"
        )
    return write_whole(path, text)
