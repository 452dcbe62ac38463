"""Accept deliveries into a raw table: parse what changed, judge each batch, publish the event days it changed.

Lives here: the raw half of the load path (DESIGN §5). Put here: how accepted batches become rows. Keep out: which
deliveries changed (load_path/batches.py) and what a good batch is (domain/checks.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta

import pyspark.sql.functions as F
from resources.crash_points import CrashPoint, crash_point
from resources.ledger_records import BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord

from pipeline_assets.domain.checks import BatchFigures, Evaluation, reconcile_batch
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Listing
from pipeline_assets.domain.errors import LakehouseError, PublishConflictError
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.load_path.batches import BatchPlan, judge_absent, plan_batches
from pipeline_assets.load_path.raw_quarantine import quarantine
from pipeline_assets.load_path.raw_report import report
from pipeline_assets.load_path.raw_step import RawStep, delete_objects, in_batches
from pipeline_assets.load_path.request import LoadRequest, TableReport, Workbench
from pipeline_assets.load_path.settle import settle
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.transforms.measure import digest_of, digests
from pipeline_assets.transforms.parse import MOVED, distribute, event_rows, object_summaries, parse_objects

_TASKS_PER_CORE = 3


def accept_deliveries(bench: Workbench, request: LoadRequest, source: Source) -> TableReport:
    """Load what changed among the deliveries in reach of the requested days.

    Every considered batch ends accepted, refused, waiting or moved; only event days whose content changed are
    published. Raises PublishConflictError when other writers keep winning.
    """
    table = RAW_TABLES[source]
    started_at = time.monotonic()
    for attempt in range(bench.settings.publish_attempts):
        base_id = settle(bench, table, request.run_id)
        plans = _plan(bench, request, source)
        step = RawStep(bench, request, source, table, base_id, plans, f"{request.attempt}_{attempt}", started_at)
        try:
            _run(step)
        except PublishConflictError as conflict:
            bench.say(f"{table.key}: {conflict.reason}; reading it again")
            if attempt == bench.settings.publish_attempts - 1:
                raise
            continue
        finally:
            if step.parsed is not None:
                step.parsed.unpersist()
        # Objects overwritten while they were read are listed once more; a second move waits for the next run.
        if attempt == 0 and step.batches(BatchVerdict.MOVED):
            bench.say(f"{table.key}: objects changed while they were read; listing again")
            continue
        return report(step)
    return report(step)


def _plan(bench: Workbench, request: LoadRequest, source: Source) -> dict[BatchKey, BatchPlan]:
    window = timedelta(days=bench.settings.reprocessing_window_days)
    first, last = request.first_day - window, request.last_day + window
    listing: Listing = bench.landing.list(source, request.projects, first, last)
    recorded = bench.ledger.deliveries(source, request.projects, first, last)
    priors = bench.ledger.batches(request.projects, first, last)
    plans = plan_batches(source, request.projects, request.days, listing, recorded, priors, bench.settings, request.now)
    _judge_without_work(bench, request, source, listing, plans, priors)
    work = [plan for plan in plans.values() if plan.needs_work]
    objects = sum(len(plan.changed) for plan in work)
    bench.say(
        f"raw/{source.value}_events: {len(listing.deliveries)} deliveries arrived {first} to {last}, "
        f"{objects} new or changed in {len(work)} batches"
    )
    for odd in listing.odd_objects:
        bench.say(f"raw/{source.value}_events: {odd.key} is not loaded: {odd.oddity.value}, {odd.detail}")
    return plans


def _judge_without_work(
    bench: Workbench,
    request: LoadRequest,
    source: Source,
    listing: Listing,
    plans: Mapping[BatchKey, BatchPlan],
    priors: Mapping[BatchKey, BatchRecord],
) -> None:
    """Attach a verdict to the plans that need no parsing: nothing there, nothing changed, refused before."""
    first_arrivals = bench.ledger.first_arrivals(request.projects)
    for project, day in listing.first_arrivals.items():
        first_arrivals[project] = min(day, first_arrivals.get(project, day))
    for key, plan in plans.items():
        if plan.needs_work or plan.is_standing_refusal:
            continue
        if plan.listed or (plan.recorded and not plan.missing):
            continue
        if plan.missing:
            figures = BatchFigures(0, (), 0, 0, 0, 0)
            plan.verdict = (
                BatchVerdict.REFUSED,
                reconcile_batch(figures, bench.settings, tuple(plan.missing)),
            )
            continue
        others = [
            prior for other, prior in priors.items()
            if other.source is not source and (other.project_id, other.arrival_date) == (key.project_id, key.arrival_date)
        ]  # fmt: skip
        plan.verdict = judge_absent(
            plan,
            is_other_source_there=any(other.deliveries for other in others),
            first_arrival=first_arrivals.get(key.project_id),
            settings=bench.settings,
            now=request.now,
        )


def _run(step: RawStep) -> None:
    _parse(step)
    _judge(step)
    quarantine(step)
    if step.batches(BatchVerdict.ACCEPTED):
        _load(step)
    _record(step)


def _parse(step: RawStep) -> None:
    bench, settings = step.bench, step.bench.settings
    deliveries = [delivery for plan in step.plans.values() if plan.needs_work for delivery in plan.changed]
    if not deliveries:
        return
    tasks = bench.spark.sparkContext.defaultParallelism * _TASKS_PER_CORE
    step.parsed = parse_objects(
        distribute(bench.spark, deliveries, tasks),
        bench.landing,
        max_object_bytes=settings.max_object_bytes,
        max_line_bytes=settings.max_line_bytes,
    ).persist()
    by_key: dict[str, Delivery] = {delivery.key: delivery for delivery in deliveries}
    for row in object_summaries(step.parsed).collect():
        delivery = by_key[row["object_key"]]
        step.summaries[delivery.key] = DeliveryRecord(
            batch=delivery.batch, object_key=delivery.key, etag=delivery.etag, size_bytes=delivery.size_bytes,
            sha256=row["sha256"], lines=row["lines"], rows=row["rows"], quarantined=row["quarantined"],
            blank=row["blank"], error=row["error"], is_accepted=False,
        )  # fmt: skip
    unread = by_key.keys() - step.summaries.keys()
    if unread:
        raise LakehouseError(min(unread), "was not accounted for by the parser", "This is a defect: report it")


def _judge(step: RawStep) -> None:
    for key, plan in step.plans.items():
        if plan.verdict is not None:
            step.verdicts[key] = plan.verdict
        elif plan.is_standing_refusal and plan.prior is not None:
            step.verdicts[key] = (BatchVerdict.REFUSED, plan.prior.evaluations[0])
        else:
            step.verdicts[key] = _judge_parsed(step, plan)


def _judge_parsed(step: RawStep, plan: BatchPlan) -> tuple[BatchVerdict, Evaluation]:
    records = [step.summaries.get(key) or plan.recorded[key] for key in sorted(plan.listed)]
    evaluation = reconcile_batch(
        BatchFigures(
            objects=len(records),
            unreadable=tuple(f"{r.object_key}: {r.error}" for r in records if r.error and r.error != MOVED),
            lines=sum(r.lines for r in records),
            rows=sum(r.rows for r in records),
            quarantined=sum(r.quarantined for r in records),
            blank=sum(r.blank for r in records),
        ),
        step.bench.settings,
    )
    moved = [r.object_key for r in records if r.error == MOVED]
    if moved:
        reason = f"{len(moved)} objects changed while they were read, first {moved[0]}"
        return BatchVerdict.MOVED, Evaluation(
            evaluation.check, False, reason, "The next load reads them again", evaluation.figures
        )
    return (BatchVerdict.ACCEPTED if evaluation.is_passed else BatchVerdict.REFUSED), evaluation


def _load(step: RawStep) -> None:
    bench, lakehouse, table = step.bench, step.bench.lakehouse, step.table
    accepted = step.batches(BatchVerdict.ACCEPTED)
    batches = [plan.key for plan in accepted]
    replaced = sorted({key for plan in accepted for key in (*(d.key for d in plan.changed), *plan.withdrawn)})
    reach = {Slice(plan.key.arrival_date, plan.key.project_id) for plan in accepted}

    def write(target: str) -> None:
        # Looked up in the table and not in the ledger: a dead run may have left rows that no ledger row tells of.
        present = _objects_in(step, reach, replaced)
        if present:
            delete_objects(bench, target, "_arrival_date", "_object_key", reach, present)
        if step.parsed is not None:
            rows = event_rows(step.parsed, step.source)
            rows.where(in_batches(batches, None, "_arrival_date")).writeTo(target).append()

    bench.say(f"{table.key}: staging {sum(len(plan.changed) for plan in accepted)} objects of {len(accepted)} batches")
    staged = lakehouse.stage(table, step.base_id, step.attempt, write)
    try:
        days = _audit(step, staged.snapshot_id, accepted)
        crash_point(CrashPoint.AFTER_AUDIT, table.key)
        changed = _changed_slices(step, accepted, days)
        if changed:
            publication = lakehouse.publish(staged, changed, step.request.run_id)
            _account(step, publication.snapshot_id, publication.parent_id, publication.files, changed, days)
    finally:
        lakehouse.drop(staged)
    step.changes.batch_days.update(days)


def _objects_in(step: RawStep, reach: set[Slice], keys: Sequence[str]) -> list[str]:
    base = step.bench.lakehouse.read(step.table, step.base_id)
    wanted = step.bench.spark.createDataFrame([(key,) for key in keys], "_object_key string")
    rows = (
        base.where(F.col("project_id").isin(*sorted({key.project_id for key in reach})))
        .where(F.col("_arrival_date").isin(*sorted({key.event_date for key in reach})))
        .select("_object_key")
        .join(F.broadcast(wanted), on="_object_key", how="left_semi")
        .distinct()
    )
    return sorted(row["_object_key"] for row in rows.collect())


def _audit(step: RawStep, snapshot_id: int, accepted: Sequence[BatchPlan]) -> dict[BatchKey, dict[date, Digest]]:
    """Batch -> event day -> digest of the staged rows; refuses a batch whose staged rows are not the parsed ones."""
    staged = step.bench.lakehouse.read(step.table, snapshot_id)
    rows = digests(
        staged.where(in_batches([plan.key for plan in accepted], None, "_arrival_date")),
        step.table.content_columns,
        ["project_id", "_arrival_date", "event_date"],
    ).collect()
    days: dict[BatchKey, dict[date, Digest]] = {plan.key: {} for plan in accepted}
    for row in rows:
        batch = BatchKey(step.source, row["project_id"], row["_arrival_date"])
        days[batch][row["event_date"]] = digest_of(row.asDict())
    for plan in accepted:
        expected = sum((step.summaries.get(key) or plan.recorded[key]).rows for key in plan.listed)
        # Past the horizon raw keeps what landing no longer lists.
        expected += sum(
            r.rows for key, r in plan.recorded.items()
            if r.is_accepted and key not in plan.listed and key not in plan.withdrawn
        )  # fmt: skip
        found = sum(digest.rows for digest in days[plan.key].values())
        if found != expected:
            raise LakehouseError(
                str(plan.key), f"{found} rows are staged but {expected} were parsed", "Nothing was published: report it"
            )
    return days


def _changed_slices(
    step: RawStep, accepted: Sequence[BatchPlan], days: Mapping[BatchKey, Mapping[date, Digest]]
) -> set[Slice]:
    changed: set[Slice] = set()
    for plan in accepted:
        project, arrival = plan.key.project_id, plan.key.arrival_date
        before = step.bench.ledger.batch_days(step.source, [project], arrival, arrival).get(plan.key, {})
        after = days[plan.key]
        for day in before.keys() | after.keys():
            # A withdrawn object's rows must leave even where equal rows came in another object.
            if plan.withdrawn or before.get(day, EMPTY) != after.get(day, EMPTY):
                changed.add(Slice(day, project))
    return changed


def _account(
    step: RawStep,
    snapshot_id: int,
    parent_id: int,
    files: Mapping[Slice, object],
    changed: set[Slice],
    days: Mapping[BatchKey, Mapping[date, Digest]],
) -> None:
    """Ledger rows of the published slices: a slice's digest is the sum of its batch days."""
    ledger, table = step.bench.ledger, step.table
    for project in {key.project_id for key in changed}:
        event_days = sorted(key.event_date for key in changed if key.project_id == project)
        recorded = ledger.batch_days_of(step.source, project, event_days)
        priors = ledger.slices(table.key, [project], event_days)
        for day in event_days:
            key = Slice(day, project)
            parts = dict(recorded[day])
            for batch, measured in days.items():
                if batch.project_id == project:
                    parts[batch] = measured.get(day, EMPTY)
            digest = sum(parts.values(), EMPTY)
            before = priors[key].digest if key in priors else EMPTY
            step.published[key] = digest
            step.changes.slices.append(
                SliceRecord(
                    table.key,
                    key,
                    Verdict.PUBLISHED,
                    digest=digest,
                    file_hash=files[key].file_hash,  # type: ignore[attr-defined] # SliceFiles
                    input_state={},
                    code_version=table.code_version(step.bench.settings),
                    figures={"rows": digest.rows},
                )
            )
            step.changes.publications.append(
                PublicationRecord(
                    table.key,
                    key,
                    snapshot_id,
                    parent_id,
                    before,
                    digest,
                    "delivery",
                    step.request.run_id,
                    code_version=table.code_version(step.bench.settings),
                    seconds=round(time.monotonic() - step.started_at, 3),
                )
            )
    step.changes.head = (table.key, snapshot_id, parent_id)


def _record(step: RawStep) -> None:
    for key, plan in sorted(step.plans.items()):
        verdict, evaluation = step.verdicts[key]
        step.changes.batches.append(plan.record(verdict, evaluation, step.bench.settings))
        if not plan.needs_work or verdict is BatchVerdict.MOVED:
            continue
        for delivery in plan.changed:
            record = step.summaries[delivery.key]
            accepted = verdict is BatchVerdict.ACCEPTED
            step.changes.deliveries.append(replace(record, is_accepted=accepted))
        if verdict is BatchVerdict.ACCEPTED:
            step.changes.forgotten_deliveries.extend((step.source, key) for key in plan.withdrawn)
    standing = step.bench.ledger.slices(step.table.key, step.request.projects, step.request.days)
    step.changes.slices.extend(
        replace(record, verdict=Verdict.UNCHANGED)
        for key, record in standing.items()
        if key not in step.published and record.verdict is Verdict.PUBLISHED
    )
    crash_point(CrashPoint.BEFORE_LEDGER, step.table.key)
    step.bench.ledger.record(step.changes, step.request.run_id)
