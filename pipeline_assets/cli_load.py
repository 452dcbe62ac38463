"""`tidemark load`: the job of a source, chunk by chunk, in this process.

Lives here: running the job and what of it reaches the terminal. Put here: how a load is started from the shell. Keep out: options
and exit codes (cli.py), what a load does (load.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
from rich.console import Console

from pipeline_assets.cli_terminal import dagster_home
from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.days import chunks
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.jobs import JOB_OF_SOURCE
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import DERIVED
from resources.crash_points import CrashPoint, crash_point


def load_in_chunks(
    settings: Settings,
    source: Source,
    days: tuple[date, ...],
    projects: tuple[str, ...],
    reasons: Mapping[str, str | None],
    console: Console,
    *,
    verbose: bool,
) -> list[str]:
    """Run the job over the days; returns what went wrong beyond the verdicts that the ledger tells.

    `reasons`: option (`--accept-changes`, `--accept-missing`) -> why, None where it was not given.
    """
    failures: list[str] = []
    for chunk in chunks(days, settings.days_per_run):
        logger = _console_logger(console, verbose=verbose)
        accepted = _accepted(source, chunk, reasons)
        failures += _run_job(settings, JOB_OF_SOURCE[source], chunk, projects, accepted, logger)
        crash_point(CrashPoint.BETWEEN_CHUNKS)
    return failures


def _accepted(source: Source, days: tuple[date, ...], reasons: Mapping[str, str | None]) -> dict[str, str]:
    """`table:day` -> reason: what landing lost is let go in raw alone, and changes are let through below it alone."""
    tables = {"--accept-missing": (RAW_TABLES[source],), "--accept-changes": DERIVED}
    return {
        f"{table.key}:{day.isoformat()}": reason
        for option, reason in reasons.items()
        if reason is not None
        for table in tables[option]
        for day in days
    }


def _run_job(
    settings: Settings,
    job_name: str,
    days: tuple[date, ...],
    projects: tuple[str, ...],
    accepted: Mapping[str, str],
    logger: dg.LoggerDefinition,
) -> list[str]:
    """Run one chunk; returns what went wrong beyond the verdicts that the ledger tells."""
    job = build_defs(settings, loggers={"console": logger}).resolve_job_def(job_name)
    tags = {
        "dagster/asset_partition_range_start": days[0].isoformat(),
        "dagster/asset_partition_range_end": days[-1].isoformat(),
    }
    dagster_home()
    with dg.DagsterInstance.get() as instance:
        result = job.execute_in_process(
            run_config={
                "ops": {"load": {"config": {"projects": list(projects), "accept_changes": dict(accepted)}}},
                "loggers": {"console": {}},
            },
            tags=tags, instance=instance, raise_on_error=False,
        )  # fmt: skip
        return [] if result.success else _unexpected(result)


def _unexpected(result: dg.ExecuteInProcessResult) -> list[str]:
    """Failures that are no verdict: everything but the op's own Failure at its end."""
    found = []
    for event in result.all_events:
        if event.event_type is dg.DagsterEventType.STEP_FAILURE:
            data: Any = event.event_specific_data
            if data.user_failure_data is not None and "reasons" in data.user_failure_data.metadata:
                continue
            error = data.error.cause or data.error
            label = data.user_failure_data.description if data.user_failure_data is not None else None
            found.append(label or str(error.message).strip())
    return found


def _console_logger(console: Console, *, verbose: bool) -> dg.LoggerDefinition:
    """Dagster's console logger: what the load says, and with --verbose everything Dagster says."""

    def progress(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("tidemark", logging.INFO)
        logger.addHandler(_Handler(console))
        return logger

    return dg.colored_console_logger if verbose else dg.LoggerDefinition(progress)


class _Handler(logging.Handler):
    """Prints what the load says; Dagster's own events are for --verbose."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        meta = getattr(record, "dagster_meta", None) or {}
        if meta.get("orig_message") and not meta.get("dagster_event"):
            self._console.print(f"[dim]{datetime.now(UTC):%H:%M:%S}[/] {meta['orig_message']}", highlight=False)
