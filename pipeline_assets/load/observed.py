"""Observability of a load: its tables, slices and steps as JSON lines and as a trace, if settings ask for them.

Contains: the content and the time of each line and span.
Add here: another listener to loads.
Does not contain: writing lines and spans (resources/json_log.py, resources/tracing.py), the load
itself (run.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.steps import Step
from pipeline_assets.load.request import LoadRequest, Outcome, TableReport
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.timeline import Timeline
from resources.failpoints import watching
from resources.json_log import JsonLog
from resources.tracing import Attributes, LoadTrace


def observed(
    reports: Iterator[TableReport], runtime: Runtime, request: LoadRequest, lines: JsonLog
) -> Iterator[TableReport]:
    """Yield the same reports, each after it was logged and traced; without listeners nothing is measured.

    A failure to trace or to log never fails the load.
    """
    settings = runtime.settings
    if settings.trace_url is None and settings.json_log is None:
        yield from reports
        return
    timeline = Timeline()
    trace = _begun(runtime, request, timeline)
    error: BaseException | None = None
    try:
        with watching(timeline.passed):
            for report in reports:
                # Reports arrive after all tables are published, so the time of a table is that of its own steps.
                steps = timeline.take(report.table)
                _tell(report, steps, request, lines)
                if trace is not None:
                    attributes = _counts(report)
                    began = steps[0].began if steps else timeline.clock()
                    trace.table(report.table, began, steps[-1].ended if steps else began, attributes, steps)
                yield report
                timeline.resume()
    except BaseException as failure:
        error = failure
        raise
    finally:
        rest = timeline.take()
        for step in rest:
            lines.write("step", table=step.table, step=step.name, seconds=round(step.seconds, 3))
        failed = None if trace is None else trace.end(timeline.clock(), rest, error)
        if failed is not None:
            runtime.log(f"traces: {failed}; the load is not touched by that")


def _begun(runtime: Runtime, request: LoadRequest, timeline: Timeline) -> LoadTrace | None:
    url = runtime.settings.trace_url
    if url is None:
        return None
    attributes: Attributes = {
        "tidemark.run_id": request.run_id,
        "tidemark.first_day": request.first_day.isoformat(),
        "tidemark.last_day": request.last_day.isoformat(),
        "tidemark.projects": len(request.projects),
        "tidemark.tables": len(request.tables),
    }
    try:
        return LoadTrace(url, "load", attributes, timeline.began)
    except TidemarkError as error:
        runtime.log(f"traces: {error}; the load is not touched by that")
        return None


def _counts(report: TableReport) -> Attributes:
    verdicts = Counter(outcome.verdict.value for outcome in report.outcomes)
    return {
        "tidemark.table": report.table,
        "tidemark.slices": len(report.outcomes),
        "tidemark.slices.built": len(report.built),
        **{f"tidemark.slices.{verdict}": count for verdict, count in sorted(verdicts.items())},
        "tidemark.rows": sum(outcome.digest.rows for outcome in report.outcomes),
    }


def _tell(report: TableReport, steps: tuple[Step, ...], request: LoadRequest, lines: JsonLog) -> None:
    for step in steps:
        lines.write("step", table=step.table, step=step.name, seconds=round(step.seconds, 3))
    for outcome in report.outcomes:
        lines.write("slice", level="info" if outcome.verdict.is_good else "warning", **_slice(outcome))
    counts: dict[str, Any] = {name.removeprefix("tidemark."): value for name, value in _counts(report).items()}
    # Text, because snapshot ids exceed the integers that JSON readers represent exactly.
    lines.write(
        "table",
        **counts,
        seconds=round(report.seconds, 3),
        snapshot_id=str(report.snapshot_id) if report.snapshot_id is not None else None,
        days=[request.first_day.isoformat(), request.last_day.isoformat()],
    )


def _slice(outcome: Outcome) -> dict[str, str | int | bool | None]:
    return {
        "table": outcome.table,
        "slice": str(outcome.key),
        "day": outcome.key.event_date.isoformat(),
        "project": outcome.key.project_id,
        "verdict": outcome.verdict.value,
        "reason": outcome.reason,
        "hint": outcome.hint,
        "rows": outcome.digest.rows,
        "is_repeat": outcome.is_repeat,
    }
