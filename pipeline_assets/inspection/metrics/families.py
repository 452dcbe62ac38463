"""The metric families for Prometheus: names, meanings and labels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
