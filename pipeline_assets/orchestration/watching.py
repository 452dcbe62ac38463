"""The metrics file that every run writes at its end, for external monitoring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import dagster as dg

from pipeline_assets.domain.plain_text import shown
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.orchestration.run_queue import run_queue


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
