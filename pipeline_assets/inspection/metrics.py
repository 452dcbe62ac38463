"""Figures for Prometheus and its collector's file. No label names a day, so the number of series does not grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_assets.domain.deliveries import QuarantineReason
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.machine import write_whole
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.inspection.health import read_health
from pipeline_assets.inspection.questions import TABLES, AnswerKind
from resources.ledger.store import Ledger
from resources.ledger.summaries import LOAD_KINDS

_OTHER = "other"
_REASONS = (*(reason.value for reason in QuarantineReason), _OTHER)
"""Any other recorded reason counts as `other`, so that no outside text becomes a label."""
_BEGINNING = b"# HELP tidemark_up "
"""Other files at the path are not overwritten."""


def read_samples(ledger: Ledger, settings: Settings, now: datetime, queue: Mapping[str, int] | None) -> list[Metric]:
    """All families, zero counts included, so that an alert rule sees a problem end; raises LedgerError, SettingsError."""
    report, went = read_health(ledger, settings, now), ledger.checkup
    states = list(report.calendar.states.values()) if report.calendar is not None else []
    refused = {
        (of.day, one.table, of.project_id) for one in states for of in one.faults if of.verdict == Verdict.REFUSED
    }
    newest, projects = sorted(report.newest.items()), report.of_project.items()
    midnights = {name: datetime.combine(one.day, time(), UTC).timestamp() for name, one in newest}
    runs = sorted(((one.kind.replace(" ", "_"), one) for one in report.run_times), key=lambda pair: pair[0])
    kinds, ends = [kind.replace(" ", "_") for kind in LOAD_KINDS], ("complete", "incomplete")
    processes, answers = ledger.processes.all(), [kind.name.lower() for kind in AnswerKind]
    whole, single = (
        _by_reason(
            (one.reason, one.objects if is_whole else one.lines)
            for one in report.refused_by_reason
            if one.is_whole == is_whole
        )
        for is_whole in (True, False)
    )
    return [
        *samples_of_nothing(now, up=1),
        _metric("days", "Event days (raw: arrival days) on record by the worst verdict of their projects.",
                _counts(product(TABLES, Verdict), ((one.table, one.verdict) for one in states)), "table", "verdict"),
        _metric("refused_days", "Days that a check refuses.",
                _counts(product(TABLES, report.projects), (one[1:] for one in refused)), "table", "project"),
        _metric("unloaded_days", "Days on record that lack a project which had deliveries before.",
                _counts(TABLES, (one.table for one in states if one.absent)), "table"),
        _metric("questions", "Questions that wait, by what they ask for.",
                _counts(answers, (one.kind.name.lower() for one in report.questions)), "kind"),
        _metric("stray_objects", "Objects in landing that no load will ask for.", len(report.strays)),
        _metric("newest_day_timestamp_seconds", "Midnight UTC of the newest event day that refined.events shows.",
                midnights, "project"),
        _metric("watermark_lag_seconds", "From the newest event of that day to its newest upload.",
                {name: one.lag_seconds for name, one in newest}, "project"),
        _metric("rows", "Rows that refined.events shows.", {name: of.rows for name, of in projects}, "project"),
        _metric("raw_rows", "Raw rows that these were made of.", {name: of.raw_rows for name, of in projects}, "project"),
        _metric("late_rows", "Rows that were uploaded on a later day than their own.",
                {name: of.late_rows for name, of in projects}, "project"),
        _metric("quarantined_objects", "Objects that are refused whole.", whole, "reason"),
        _metric("quarantined_lines", "Lines that are refused singly.", single, "reason"),
        _metric("mismatches", "Rows, measures and golden totals that do not agree.",
                sum(one.value for one in report.mismatches)),
        _metric("days_with_duplicate_keys", "Days that hold a key twice, published or refused.",
                _counts(TABLES, (one.table for one in report.duplicate_keys if one.value)), "table"),
        _metric("revisions", "Changes of published numbers of days that were final.", len(report.revisions)),
        _metric("narrow_windows", "Projects whose reprocessing window misses more than is tolerated.",
                len(report.too_narrow)),
        _metric("receiver_troubles", "Receivers that are not told of notices, and notices that go unsigned.",
                len(report.troubles)),
        _metric("runs_total", "Loads that went through all their tables.",
                _counts(product(kinds, ends), ((kind, ends[not one.is_good]) for kind, one in runs)), "kind", "outcome"),
        _metric("reported_slices_total", "Slices that these loads reported.",
                dict(sorted(went.reported().items())), "table", "verdict"),
        _metric("last_run_timestamp_seconds", "When the last of them ended.",
                {kind: one.ended_at.timestamp() for kind, one in runs}, "kind"),
        _metric("last_run_seconds", "How long it took.", {kind: one.seconds for kind, one in runs}, "kind"),
        _metric("table_seconds", "How long the run which published the table last took for it.",
                dict(sorted(went.seconds().items())), "table"),
        _metric("open_processes", "Processes that began and neither ended nor were found dead.",
                sum(not one.is_ended and not one.is_lost for one in processes)),
        _metric("died_processes", "Processes that were found dead within thirty days.",
                sum(one.is_lost for one in processes)),
        _metric("dagster_up", "1 where Dagster's queue could be read, 0 where it could not.", queue is not None),
        _metric("dagster_runs", "Runs that Dagster holds.", queue or {}, "status"),
    ]  # fmt: skip


def samples_of_nothing(now: datetime, up: int = 0) -> list[Metric]:
    """The samples for an unreadable ledger: only that fact, and no outdated values."""
    try:
        built = version("tidemark-pipeline")
    except PackageNotFoundError:
        built = "unknown"
    return [
        _metric("up", "1 where the ledger could be read, 0 where it could not.", up),
        _metric("metrics_timestamp_seconds", "When these figures were read, or tried to be.", now.timestamp()),
        _metric("build_info", "Always 1; the version of Tidemark that wrote this.", {built: 1}, "version"),
    ]


def _metric(name: str, said: str, values: float | Mapping[Any, float], *labels: str) -> Metric:
    """A family; `values`: a number, or label(s) -> number. The name of a counter ends in `_total`."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    metric = kind(f"tidemark_{name}", said, labels=labels)
    for key, value in (values if isinstance(values, Mapping) else {(): values}).items():
        metric.add_metric(key if isinstance(key, tuple) else (key,), value)
    return metric


def _counts(expected: Iterable[Any], found: Iterable[Any]) -> dict[Any, int]:
    counted = Counter(found)
    return {key: counted[key] for key in expected}


def _by_reason(found: Iterable[tuple[str | None, int]]) -> dict[str, int]:
    counted = dict.fromkeys(_REASONS, 0)
    for reason, count in found:
        name = (reason or _OTHER).partition(":")[0]
        counted[name if name in counted else _OTHER] += count
    return counted


@dataclass
class _Read(Collector):
    metrics: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def text_of(metrics: list[Metric]) -> str:
    """The metrics in the exposition format of Prometheus."""
    return generate_latest(_Read(metrics)).decode("utf-8")


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
