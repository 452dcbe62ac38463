"""Output for external monitoring: a run's log as JSON lines, and the metrics file at its end.

Contains: both outputs, around every op.
Add here: another output of every run.
Does not contain: computing figures (inspection/metrics/), lines about a load's tables (load/observed.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import dagster as dg

from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.orchestration.run_queue import run_queue
from resources.json_log import JsonLog


def json_lines(context: dg.OpExecutionContext, settings: Settings) -> JsonLog:
    """Return the JSON log of a run."""
    return JsonLog(settings.json_log, context.log.info, run_id=context.run.run_id, job=context.run.job_name)


@contextmanager
def saying_as_json(lines: JsonLog) -> Iterator[None]:
    """Write the begin and the end of a run."""
    lines.write("run_begun")
    try:
        yield
    except BaseException as error:
        lines.write("run_failed", level="error", error=type(error).__name__, message=str(error))
        raise
    lines.write("run_ended")


def also_as_json(log: Callable[[str], None], lines: JsonLog) -> Callable[[str], None]:
    """Return a log that also writes each line as JSON."""

    def both(text: str) -> None:
        log(text)
        lines.write("log", message=text)

    return both


@contextmanager
def writing_metrics(runtime: Runtime, instance: dg.DagsterInstance) -> Iterator[None]:
    """Write the metrics file after the block, also if it fails. A failure to write does not fail the run."""
    try:
        yield
    finally:
        if runtime.settings.metrics_file is not None:
            _write(runtime, instance)


def _write(runtime: Runtime, instance: dg.DagsterInstance) -> None:
    # Import here: only runs with a metrics file need the library.
    from pipeline_assets.inspection.metrics.compute import read_samples, samples_of_nothing  # noqa: PLC0415
    from pipeline_assets.inspection.metrics.textfile import text_of, write_textfile  # noqa: PLC0415

    path, now = runtime.settings.metrics_file, datetime.now(UTC)
    assert path is not None
    try:
        try:
            samples = read_samples(runtime.ledger, runtime.settings, now, run_queue(instance))
        except Exception as error:
            runtime.log(f"metrics: {shown(str(error))}; {path} says that the ledger cannot be read")
            samples = samples_of_nothing(now)
        write_textfile(text_of(samples), path)
    except Exception as error:
        # No failure of metrics may fail a load.
        runtime.log(f"metrics: {shown(str(error))}; the figures of this run are not written")
