"""The differences behind a load's refusals, to show them with the load's report."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.inspection.diff.compare import compare
from pipeline_assets.inspection.diff.difference import Difference
from pipeline_assets.load.request import Outcome, TableReport
from pipeline_assets.load.runtime import Runtime
from resources.iceberg.errors import FAILURES

_SAMPLES = 9


def refused_changes(runtime: Runtime, report: TableReport, now: datetime, most: int) -> Iterator[Difference]:
    """The differences of the first `most` slices whose change this load refused, if no earlier load had refused it.

    Each slice is built again for this: refusals are rare, and the staged data is gone by then. A slice that cannot be
    compared is logged and skipped, so that the load can still report the refusal.
    """
    refused = [outcome for outcome in report.outcomes if _is_refused_change(outcome)]
    for outcome in refused[:most]:
        day, project = outcome.key.event_date, outcome.key.project_id
        try:
            yield compare(runtime, outcome.table, day, project, now, samples=_SAMPLES, on_published=True)
        except (TidemarkError, *FAILURES) as error:
            runtime.log(
                f"{outcome.table} {outcome.key}: cannot be compared with what is published: {shown(error, 300)}"
            )


def _is_refused_change(outcome: Outcome) -> bool:
    failed = {evaluation.check for evaluation in outcome.evaluations if not evaluation.is_passed}
    return outcome.verdict is Verdict.REFUSED and not outcome.is_repeat and failed == {Check.CHANGE_IS_EXPLAINED}
