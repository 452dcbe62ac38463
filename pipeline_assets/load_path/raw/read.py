"""Read the objects that changed, and judge each batch by what was found.

Lives here: the parse of one attempt and the verdict on a batch. Put here: what a batch is judged by. Keep out: the bounds
themselves (domain/checks.py) and publishing (publish.py).
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.errors import PySparkException
from resources.ledger_records import MISSING, DeliveryRecord

from pipeline_assets.domain.checks import BatchFigures, Evaluation, reconcile_batch
from pipeline_assets.domain.errors import LakehouseError, error_in
from pipeline_assets.domain.slices import BatchVerdict
from pipeline_assets.load_path.raw.batches import BatchPlan
from pipeline_assets.load_path.raw.step import RawStep
from pipeline_assets.transforms.parse import MOVED, TOUCHED, distribute, object_summaries, parse_objects

_TASKS_PER_CORE = 3


def parse(step: RawStep) -> None:
    """Read every changed object once; `step.parsed` holds its rows, `step.summaries` what was found."""
    bench, settings = step.bench, step.bench.settings
    work = [plan for plan in step.plans.values() if plan.needs_work]
    deliveries = {delivery.key: delivery for plan in work for delivery in plan.changed}
    if not deliveries:
        return
    recorded = {key: record for plan in work for key, record in plan.recorded.items()}
    known_bytes = {key: sha256 for plan in work for key, sha256 in plan.known_bytes.items()}
    tasks = bench.spark.sparkContext.defaultParallelism * _TASKS_PER_CORE
    step.parsed = parse_objects(
        distribute(bench.spark, list(deliveries.values()), tasks, known_bytes),
        bench.landing,
        max_object_bytes=settings.max_object_bytes,
        max_line_bytes=settings.max_line_bytes,
    ).persist()
    code = step.table.code_version(settings)
    try:
        summaries = object_summaries(step.parsed).collect()
    except PySparkException as error:
        # What a worker meets comes back as the text of a foreign exception.
        met = error_in(str(error))
        if met is None:
            raise
        raise met from error
    for row in summaries:
        delivery = deliveries[row["object_key"]]
        if row["error"] == TOUCHED:
            step.touched.add(delivery.key)
            known = recorded[delivery.key]
            step.summaries[delivery.key] = replace(known, etag=delivery.etag, size_bytes=delivery.size_bytes)
            continue
        step.summaries[delivery.key] = DeliveryRecord(
            batch=delivery.batch, object_key=delivery.key, etag=delivery.etag, size_bytes=delivery.size_bytes,
            sha256=row["sha256"], lines=row["lines"], rows=row["rows"], quarantined=row["quarantined"],
            blank=row["blank"], error=row["error"], is_accepted=False, code_version=code,
        )  # fmt: skip
    unread = deliveries.keys() - step.summaries.keys()
    if unread:
        raise LakehouseError(min(unread), "was not accounted for by the parser", "This is a defect: report it")
    if step.touched:
        bench.say(f"{step.table.key}: {len(step.touched)} objects have the bytes already loaded; only hashed")


def judge(step: RawStep) -> None:
    """Give every batch its verdict."""
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
        reason = f"objects changed while they were read: {len(moved)}, first {moved[0]}"
        return BatchVerdict.MOVED, Evaluation(
            evaluation.check, False, reason, "The next load reads them again", evaluation.figures
        )
    if evaluation.is_passed and plan.withdrawn and plan.accepted_reason is not None:
        figures = {**evaluation.figures, MISSING: len(plan.withdrawn)}
        reason = f"{len(plan.withdrawn)} withdrawn: {plan.accepted_reason}"
        evaluation = replace(evaluation, reason=reason, figures=figures)
    return (BatchVerdict.ACCEPTED if evaluation.is_passed else BatchVerdict.REFUSED), evaluation
