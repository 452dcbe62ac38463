"""Accept deliveries into a raw table: read what changed, judge each batch, accept the event days it changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from pipeline_assets.domain.errors import ReadTwiceError
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.load.deliveries.arrivals import plan_arrivals
from pipeline_assets.load.deliveries.attempt import Attempt
from pipeline_assets.load.deliveries.known_bytes import skip_excluded, skip_touched
from pipeline_assets.load.deliveries.outcomes import report
from pipeline_assets.load.deliveries.plan import Plan
from pipeline_assets.load.deliveries.publish import Published, publish
from pipeline_assets.load.deliveries.quarantine import quarantine
from pipeline_assets.load.deliveries.stage import read_and_stage, without_refused
from pipeline_assets.load.deliveries.verdicts import Judged, judge
from pipeline_assets.load.draft import LoadRuntime
from pipeline_assets.load.request import LoadRequest, TableReport
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.failpoints import Failpoint, failpoint
from resources.ledger.changes import Changes


def accept_deliveries(runtime: LoadRuntime, request: LoadRequest, source: Source) -> TableReport:
    """Load what changed among the deliveries in reach of the requested days.

    Every considered batch ends accepted, refused, waiting or moved; only event days whose content changed are
    accepted into the load's draft. Raises ReadTwiceError where objects keep changing between two readings.
    """
    table = RAW_TABLES[source]
    started_at = time.monotonic()
    may_list_again, moves = True, 0
    published_before: Mapping[Slice, Digest] = {}
    while True:
        base_id = runtime.draft.pin(table)
        plan = plan_arrivals(runtime, request, source)
        name = runtime.draft.next_attempt()
        attempt = Attempt(runtime, request, source, table, base_id, name, started_at, may_list_again, published_before)
        failpoint(Failpoint.AFTER_PIN, table.key)
        try:
            judged, published = _publish_accepted(attempt, plan)
        except ReadTwiceError as moved:
            moves += 1
            if moves == runtime.settings.publish_attempts:
                raise
            runtime.log(f"{table.key}: {moved.subject} {moved.reason}; reading it again")
            continue
        published_before = published.slices
        _record(attempt, judged, published)
        # Objects overwritten while they were read are listed once more; a second move waits for the next run.
        if not (may_list_again and judged.batches(BatchVerdict.MOVED)):
            break
        runtime.log(f"{table.key}: objects changed while they were read; listing again")
        may_list_again = False
    return report(attempt, judged, published)


def _publish_accepted(attempt: Attempt, plan: Plan) -> tuple[Judged, Published]:
    plan = skip_touched(attempt, skip_excluded(attempt, plan))
    read, staged = read_and_stage(attempt, plan)
    try:
        judged = judge(read, attempt.runtime.settings)
        staged = without_refused(attempt, judged, staged) if staged is not None else None
        quarantine(attempt, judged)
        return judged, publish(attempt, judged, staged)
    finally:
        if staged is not None:
            attempt.runtime.draft.drop(staged.snapshot)


def _record(attempt: Attempt, judged: Judged, published: Published) -> None:
    read, runtime = judged.read, attempt.runtime
    changes = Changes(
        batch_days={batch: dict(days) for batch, days in published.batch_days.items()},
        slices=[*published.records],
        publications=[*published.publications],
        head=published.head,
    )
    for key, plan in read.plan.batches.items():
        verdict, evaluation = judged.verdicts[key]
        if attempt.may_list_again and verdict is BatchVerdict.MOVED:
            continue
        changes.batches.append(plan.record(verdict, evaluation, runtime.settings))
        changes.read_batches[key] = plan.as_read
        if not plan.needs_work or verdict is BatchVerdict.MOVED:
            continue
        if evaluation.figures.get("quarantined_lines"):
            runtime.log(f"{attempt.table.key}: {key}: {evaluation.reason}")
        is_accepted = verdict is BatchVerdict.ACCEPTED
        for delivery in plan.changed:
            is_held = is_accepted or delivery.key in read.plan.touched
            changes.deliveries.append(replace(read.summaries[delivery.key], is_accepted=is_held))
        if is_accepted:
            changes.forgotten_deliveries.extend((key, gone) for gone in plan.withdrawn)
        changes.forgotten_refusals.extend(
            (key, gone) for gone in (plan.refused if is_accepted else plan.stale_refusals)
        )
    standing = runtime.ledger.slices(attempt.table.key, attempt.request.projects, attempt.request.days)
    changes.slices.extend(
        replace(record, verdict=Verdict.UNCHANGED)
        for key, record in standing.items()
        if key not in published.slices and record.verdict is Verdict.PUBLISHED
    )
    runtime.draft.record(attempt.table, changes)
