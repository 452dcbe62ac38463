"""Accept deliveries into a raw table: read what changed, judge each batch, publish the event days it changed.

Contains: the order of the raw half of the load path (ARCHITECTURE, One load), and what is recorded
at its end.
Add here: a step between reading and recording.
Does not contain: which deliveries changed (batch.py), what a good batch is (domain/checks.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count

from pipeline_assets.domain.arrival_days import asked_for, told_strays
from pipeline_assets.domain.checks import BatchFigures, reconcile_batch
from pipeline_assets.domain.deliveries import BatchKey, Listing
from pipeline_assets.domain.errors import PublishConflictError
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.load.deliveries.batch import Recorded, judge_absent, plan_batches
from pipeline_assets.load.deliveries.outcomes import report
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.publish import publish, stage, without_refused
from pipeline_assets.load.deliveries.quarantine import quarantine
from pipeline_assets.load.deliveries.read import judge, skip_excluded, skip_touched
from pipeline_assets.load.deliveries.relocated import find_relocated
from pipeline_assets.load.deliveries.step import RawStep
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.request import LoadRequest, Runtime, TableReport
from pipeline_assets.load.staleness.first_arrival import first_arrivals
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.failpoints import Failpoint, failpoint

_MOST_NAMED = 20
"""Objects that a load names one by one; a folder of strangers is counted."""


def accept_deliveries(runtime: Runtime, request: LoadRequest, source: Source) -> TableReport:
    """Load what changed among the deliveries in reach of the requested days.

    Every considered batch ends accepted, refused, waiting or moved; only event days whose content changed are
    published. Raises PublishConflictError when other writers keep winning.
    """
    table = RAW_TABLES[source]
    started_at = time.monotonic()
    conflicts, may_list_again = 0, True
    published: dict[Slice, Digest] = {}
    for attempt in count():
        base_id = sync_ledger(runtime, table, request.run_id)
        plans = _plan(runtime, request, source)
        step = RawStep(
            runtime, request, source, table, base_id, plans, f"{request.attempt}_{attempt}", started_at, may_list_again
        )
        step.published.update(published)
        failpoint(Failpoint.AFTER_PIN, table.key)
        try:
            _run(step)
        except PublishConflictError as conflict:
            runtime.say(f"{table.key}: {conflict.reason}; reading it again")
            conflicts += 1
            if conflicts == runtime.settings.publish_attempts:
                raise
            # Not empty where the commit was made and only its batch had been loaded by another run as well.
            published = step.published
            continue
        # Objects overwritten while they were read are listed once more; a second move waits for the next run.
        if not (may_list_again and step.batches(BatchVerdict.MOVED)):
            break
        runtime.say(f"{table.key}: objects changed while they were read; listing again")
        may_list_again, published = False, step.published
    return report(step)


def _plan(runtime: Runtime, request: LoadRequest, source: Source) -> dict[BatchKey, BatchPlan]:
    window = timedelta(days=runtime.settings.reprocessing_window_days)
    first, last = request.first_day - window, request.last_day + window
    asked = asked_for(runtime.settings, request.now.date())
    listing: Listing = runtime.landing.list(source, request.projects, first, last, asked)
    runtime.ledger.strays.replace(source, request.projects, listing.strays)
    if listing.strays:
        runtime.say(f"raw/{source.value}_events: {told_strays([one.key for one in listing.strays])}")
    recorded = Recorded.read(runtime.ledger, source, request.projects, first, last)
    relocated = find_relocated(source, listing, recorded.accepted, runtime.landing, runtime.ledger, runtime.settings)
    recorded = replace(recorded, relocated=relocated)
    table = RAW_TABLES[source]
    requested = [Slice(day, project) for day in request.days for project in request.projects]
    reasons = {key: reason for key in requested if (reason := request.accepted.missing(table.key, key))}
    plans = plan_batches(
        source, request.projects, request.days, listing, recorded, runtime.settings, request.now,
        code_version=table.code_version(runtime.settings), accepted_reasons=reasons,
    )  # fmt: skip
    # Some markers alone are no reason to judge a day that nobody asked for; all of them say that it is empty.
    plans = {
        key: plan for key, plan in plans.items()
        if plan.is_requested or plan.listed or plan.excluded or plan.recorded or plan.refused or plan.is_newly_empty
    }  # fmt: skip
    _judge_unread(runtime, request, source, listing, plans, recorded)
    for key, plan in sorted(plans.items()):
        if plan.accepted_reason is not None:
            runtime.say(f"{table.key}: {key} {plan.told_loss(runtime.settings)}")
        if plan.told_relocation is not None:
            runtime.say(f"{table.key}: {key} {plan.told_relocation}")
    work = [plan for plan in plans.values() if plan.needs_work]
    objects = sum(len(plan.changed) for plan in work)
    runtime.say(
        f"raw/{source.value}_events: {len(listing.deliveries)} deliveries arrived {first} to {last}, "
        f"{objects} new or changed in {len(work)} batches"
    )
    ruled_out = [
        f"{table.key}: {key} {plan.exclusion_reason}" for key, plan in sorted(plans.items()) if plan.exclusion_reason
    ]
    for told in ruled_out[:_MOST_NAMED]:
        runtime.say(told)
    if len(ruled_out) > _MOST_NAMED:
        runtime.say(f"{table.key}: and {len(ruled_out) - _MOST_NAMED:,} more batches with excluded objects")
    for odd in listing.odd_objects[:_MOST_NAMED]:
        runtime.say(f"raw/{source.value}_events: {odd.key} is not loaded: {odd.oddity.value}, {odd.detail}")
    left_out = Counter(odd.oddity.value for odd in listing.odd_objects[_MOST_NAMED:])
    if left_out:
        counts = ", ".join(f"{count:,} {oddity}" for oddity, count in sorted(left_out.items()))
        runtime.say(f"raw/{source.value}_events: and {left_out.total():,} more objects are not loaded: {counts}")
    return plans


def _judge_unread(
    runtime: Runtime,
    request: LoadRequest,
    source: Source,
    listing: Listing,
    plans: Mapping[BatchKey, BatchPlan],
    recorded: Recorded,
) -> None:
    """Attach a verdict to the plans whose deliveries are missing, or that have none."""
    firsts = first_arrivals(runtime.ledger, runtime.settings, request.projects, request.now.date(), listing=listing)
    elsewhere = set(recorded.delivered_elsewhere(source))

    def judge_all(absent: Sequence[BatchPlan]) -> None:
        for plan in absent:
            first = firsts.get(plan.key.project_id)
            is_there = plan.key in elsewhere
            plan.verdict = judge_absent(
                plan, is_other_source_there=is_there, first_arrival=first, settings=runtime.settings, now=request.now
            )

    for plan in plans.values():
        if plan.missing and not plan.is_repeated_refusal:
            figures = BatchFigures(len(plan.listed), (), 0, 0, 0, 0)
            plan.verdict = (BatchVerdict.REFUSED, reconcile_batch(figures, runtime.settings, tuple(plan.missing)))
    absent = [plan for plan in plans.values() if not plan.listed and not plan.recorded]
    judge_all(absent)
    # Landing is asked for the other source's deliveries only where the ledger does not know of any.
    lacking = [plan for plan in absent if plan.verdict is not None and plan.verdict[0] is not BatchVerdict.ACCEPTED]
    if lacking:
        listed = _listed_elsewhere(runtime, source, lacking)
        elsewhere |= listed.keys()
        for plan in lacking:
            plan.hours_elsewhere |= listed.get(plan.key, frozenset())
        judge_all(lacking)


def _listed_elsewhere(runtime: Runtime, source: Source, lacking: Sequence[BatchPlan]) -> dict[BatchKey, frozenset[int]]:
    """The batches of these days that the other source has deliveries for, loaded or not -> their hours."""
    projects = sorted({plan.key.project_id for plan in lacking})
    days = [plan.key.arrival_date for plan in lacking]
    (other,) = set(Source) - {source}
    listing = runtime.landing.list(other, projects, min(days), max(days))
    found: dict[BatchKey, frozenset[int]] = {}
    for one in listing.deliveries:
        key = BatchKey(source, one.batch.project_id, one.batch.arrival_date)
        found[key] = found.get(key, frozenset()) | {one.hour}
    return found


def _run(step: RawStep) -> None:
    skip_excluded(step)
    skip_touched(step)
    found = stage(step)
    try:
        judge(step)
        found = without_refused(step, found) if found is not None else None
        quarantine(step)
        if found is not None:
            publish(step, found)
    finally:
        if found is not None:
            step.runtime.lakehouse.drop(found.staged)
    _record(step)


def _record(step: RawStep) -> None:
    changes = step.changes
    for key, plan in sorted(step.plans.items()):
        verdict, evaluation = step.verdicts[key]
        if step.may_list_again and verdict is BatchVerdict.MOVED:
            continue
        changes.batches.append(plan.record(verdict, evaluation, step.runtime.settings))
        changes.read_batches[key] = plan.as_read
        if not plan.needs_work or verdict is BatchVerdict.MOVED:
            continue
        is_accepted = verdict is BatchVerdict.ACCEPTED
        for delivery in plan.changed:
            record = step.summaries[delivery.key]
            changes.deliveries.append(replace(record, is_accepted=is_accepted or delivery.key in step.touched))
        if is_accepted:
            changes.forgotten_deliveries.extend((step.source, key) for key in plan.withdrawn)
        changes.forgotten_refusals.extend(
            (step.source, key) for key in (plan.refused if is_accepted else plan.stale_refusals)
        )
    standing = step.runtime.ledger.slices(step.table.key, step.request.projects, step.request.days)
    changes.slices.extend(
        replace(record, verdict=Verdict.UNCHANGED)
        for key, record in standing.items()
        if key not in step.published and record.verdict is Verdict.PUBLISHED
    )
    failpoint(Failpoint.BEFORE_LEDGER, step.table.key)
    step.runtime.ledger.record(changes, step.request.run_id)
