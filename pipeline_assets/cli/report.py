"""`tidemark report` and `tidemark metrics`: the health page, and figures for Prometheus."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pipeline_assets.cli.command import EXIT_OK
from pipeline_assets.cli.terminal import page
from pipeline_assets.config import dagster_home, load_settings
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.places import METRICS_SUFFIX
from resources.ledger.store import own_ledger


def report(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write, an HTML file.")],
) -> int:
    """Write the health of everything on one page: days, figures, revisions, and what waits for a person.

    Reads the ledger alone and writes nothing else. Exits 0 when the page is written, 1 when the ledger cannot be read,
    2 on bad usage.
    """
    from pipeline_assets.inspection.health import read_health  # noqa: PLC0415 - other commands start without it
    from pipeline_assets.orchestration.health_page import write_page  # noqa: PLC0415 - others start without charts

    settings = load_settings()
    with own_ledger(settings) as ledger:
        health = read_health(ledger, settings, datetime.now(UTC))
    console = page()
    console.print(f"page: {write_page(health, out)}")
    waiting = health.waiting
    console.print(f"{waiting} questions wait for a person" if waiting else "nothing waits for a person")
    return EXIT_OK


def metrics(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="A file *.prom to write; default standard output.")
    ] = None,
) -> int:
    """Print figures for Prometheus, or write them for node_exporter's textfile collector.

    Reads the ledger and Dagster's queue, and changes neither. Exits 0 when the figures are told, 1 when the ledger cannot
    be read, which tidemark_up 0 tells as well, 2 on bad usage.
    """
    from pipeline_assets.inspection.metrics import read_samples, samples_of_nothing, text_of, write_textfile  # noqa: PLC0415 - others start without

    if output is not None and output.suffix != METRICS_SUFFIX:
        raise UsageError(
            str(output), f"does not end in {METRICS_SUFFIX}", "node_exporter reads no other files; rename it"
        )
    settings, now = load_settings(), datetime.now(UTC)
    settings.require_projects()
    failure: TidemarkError | None = None
    try:
        with own_ledger(settings) as ledger:
            samples = read_samples(ledger, settings, now, _queue())
    except (UsageError, SettingsError):
        raise
    except TidemarkError as error:
        # Written as well, so that monitoring sees the outage of the ledger instead of old figures.
        samples, failure = samples_of_nothing(now), error
    if output is None:
        sys.stdout.write(text_of(samples))
    else:
        write_textfile(text_of(samples), output)
    if failure is not None:
        raise failure
    return EXIT_OK


def _queue() -> dict[str, int] | None:
    import dagster as dg  # noqa: PLC0415 - other commands start without Dagster

    from pipeline_assets.orchestration.live_runs import run_queue  # noqa: PLC0415 - other commands start without Dagster

    try:
        dagster_home()
        with dg.DagsterInstance.get() as instance:
            return run_queue(instance)
    except Exception:
        # DAGSTER_HOME or its storage is missing or of another version; reported as tidemark_dagster_up 0.
        return None
