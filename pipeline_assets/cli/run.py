"""Run the jobs of commands in this process, and open the runtime of commands that work without Dagster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
from dagster_aws.s3 import S3Resource
from rich.console import Console

from pipeline_assets.cli.command import LoadSource
from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.domain.days import chunks, stretches
from pipeline_assets.domain.deliveries import BatchKey, dimension_batch
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source
from pipeline_assets.in_process import run_job
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.exclude import batch_named, touched_slices
from pipeline_assets.operations.release import Held
from pipeline_assets.orchestration.jobs import DIMENSION_JOB, HEAL_JOB, JOB_OF_SOURCE
from pipeline_assets.orchestration.rollback_jobs import RELEASE_JOB, RELEASE_OP
from pipeline_assets.orchestration.specs import range_tags
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import (
    AS_OF_TABLES,
    DERIVED,
    DIMENSIONS,
    EVERY_TABLE,
    table_by_key,
    with_descendants,
)
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Purpose
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger, own_ledger
from resources.spark.session import configure_catalog, spark_resource
from resources.spark.workers import LastWords, naming_a_dead_engine


def load_in_chunks(
    settings: Settings,
    source: LoadSource,
    days: tuple[date, ...],
    projects: tuple[str, ...],
    reasons: Mapping[str, str | None],
    console: Console,
    *,
    is_read_again: bool = False,
    verbose: bool,
) -> list[str]:
    """Run the load job over the days in chunks; returns the failures that are not verdicts recorded in the ledger.

    `reasons` is option (`--accept-changes`, `--accept-missing`) -> reason, None where the option was not given.
    """
    failures: list[str] = []
    for chunk in chunks(days, settings.days_per_run):
        config = {
            "projects": list(projects),
            "read_again": is_read_again,
            **_accepted(settings, source, chunk, projects or settings.projects, reasons),
        }
        job = DIMENSION_JOB if source is LoadSource.DIMENSIONS else JOB_OF_SOURCE[Source(source.value)]
        tags = range_tags(chunk[0], chunk[-1])
        failures += run_operation(settings, job, "load", config, console, tags=tags, verbose=verbose)
        failpoint(Failpoint.BETWEEN_CHUNKS)
    return failures


def _accepted(
    settings: Settings,
    source: LoadSource,
    days: tuple[date, ...],
    projects: Sequence[str],
    reasons: Mapping[str, str | None],
) -> dict[str, dict[str, str]]:
    """Run config of acceptances: missing deliveries are accepted for raw only, changes only for the tables below."""
    tables: dict[str, tuple[Table, ...]] = {
        "--accept-missing": (),
        "--accept-changes": tuple(table for one in DIMENSIONS for table in one.tables if table.reads_landing(settings))
        + AS_OF_TABLES,
    }
    if source is not LoadSource.DIMENSIONS:
        raw = RAW_TABLES[Source(source.value)]
        tables = {"--accept-missing": (raw,), "--accept-changes": (*DERIVED, *AS_OF_TABLES)}
    return {
        option.removeprefix("--").replace("-", "_"): {
            f"{table.key}:{Slice(table.kind.slice_day(day), project)}": reason
            for table in tables[option]
            for day in days
            for project in table.kind.projects(projects)
        }
        for option, reason in reasons.items()
        if reason is not None
    }


def decide(
    settings: Settings,
    verb: str,
    keys: Sequence[str],
    reason: str,
    console: Console,
    *,
    accept_changes: str | None,
    even_if_gone: bool,
    verbose: bool,
) -> list[str]:
    """Exclude or include objects and load their arrival days; returns the failures that are not verdicts."""
    by_batch: dict[BatchKey, list[str]] = {}
    for key in keys:
        by_batch.setdefault(batch_named(key, settings), []).append(key)
    failures: list[str] = []
    for batch, named in sorted(by_batch.items()):
        with own_ledger(settings) as ledger:
            touched = sorted({key.event_date for key in touched_slices(ledger, settings, named)})
        is_of_dimension = batch == dimension_batch(batch.arrival_date)
        source = LoadSource.DIMENSIONS if is_of_dimension else LoadSource(batch.source.value)
        projects = list(settings.projects) if is_of_dimension else [batch.project_id]
        config = {
            # The acceptance covers only the project of these objects.
            "projects": projects,
            verb: dict.fromkeys(named, reason),
            "exclude_even_if_gone": even_if_gone,
            **_accepted(settings, source, tuple(touched), projects, {"--accept-changes": accept_changes}),
        }
        tags = range_tags(batch.arrival_date, batch.arrival_date)
        job = DIMENSION_JOB if is_of_dimension else JOB_OF_SOURCE[batch.source]
        failures += run_operation(settings, job, "load", config, console, tags=tags, verbose=verbose)
    return failures


def run_operation(
    settings: Settings,
    job: str,
    op: str,
    config: Mapping[str, Any],
    console: Console,
    *,
    tags: Mapping[str, str] | None = None,
    verbose: bool,
) -> list[str]:
    """Run a job of one op with this config, its lines on the console; returns the failures that are not verdicts."""

    def log(text: str) -> None:
        console.print(text, style="yellow")

    return run_job(settings, job, {op: {"config": dict(config)}}, tags or {}, _logger(console, verbose=verbose), log)


def run_release(
    settings: Settings,
    config: Mapping[str, Any],
    held: Sequence[Held],
    console: Console,
    *,
    accept_changes: str | None,
    verbose: bool,
) -> list[str]:
    """Run the release job, then build the stale ones of the released days; returns the failures that are not verdicts.

    `accept_changes` is the reason why released slices, and the tables built from them, may change beyond bounds.
    """
    failures = run_operation(settings, RELEASE_JOB, RELEASE_OP, config, console, verbose=verbose)
    if failures:
        return failures
    for project in sorted({hold.key.project_id for hold in held}):
        released = [hold for hold in held if hold.key.project_id == project]
        accepted = {} if accept_changes is None else acceptances_of(released, settings.projects, accept_changes)
        is_shared = project == ALL_PROJECTS
        of_load = {"projects": [] if is_shared else [project], "accept_changes": accepted}
        # A slice that covers several days may be filed under a day before the calendar.
        days = {max(hold.key.event_date, settings.calendar_start) for hold in released}
        for part in stretches(sorted(days), settings.days_per_run):
            tags = range_tags(part[0], part[-1])
            job = DIMENSION_JOB if is_shared else HEAL_JOB
            failures += run_operation(settings, job, "load", of_load, console, tags=tags, verbose=verbose)
    return failures


def acceptances_of(released: Sequence[Held], configured: Sequence[str], reason: str) -> dict[str, str]:
    """Return the acceptances that let released slices, and the slices built from them, change beyond bounds.

    Tables joined with a dimension have a slice per configured project.
    """
    accepted: dict[str, str] = {}
    for hold in released:
        own = configured if hold.key.project_id == ALL_PROJECTS else (hold.key.project_id,)
        for table in with_descendants(table_by_key(hold.table)):
            day = table.kind.slice_day(hold.key.event_date)
            accepted |= {f"{table.key}:{Slice(day, project)}": reason for project in table.kind.projects(own)}
    return accepted


def _logger(console: Console, *, verbose: bool) -> dg.LoggerDefinition:
    """Dagster's console logger: lines of the load, and with --verbose everything that Dagster logs."""

    def progress(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("tidemark", logging.INFO)
        logger.addHandler(_Handler(console))
        return logger

    return dg.colored_console_logger if verbose else dg.LoggerDefinition(progress)


class _Handler(logging.Handler):
    """Prints lines of the load; only --verbose shows Dagster's own events."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        meta = getattr(record, "dagster_meta", None) or {}
        if meta.get("orig_message") and not meta.get("dagster_event"):
            self._console.print(line(styled(f"{datetime.now(UTC):%H:%M:%S}", "dim"), f" {meta['orig_message']}"))


@contextmanager
def open_runtime(settings: Settings, log: Callable[[str], None], purpose: Purpose = Purpose.LOOK) -> Iterator[Runtime]:
    """Yield the runtime of the load path in a process without Dagster; starts Spark."""
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        landing = LandingStore.from_settings(settings, S3Resource())
        lakehouse = Lakehouse(session, settings.catalog_name)
        words = LastWords(log)
        with naming_a_dead_engine(lambda: session, words, settings.spark_driver_memory), lakehouse_failures("tables"):
            lakehouse.require_own(settings, EVERY_TABLE, purpose, ledger.lake)
            yield Runtime(lakehouse, ledger, landing, settings, words)
