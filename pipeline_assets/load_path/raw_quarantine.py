"""Write raw.quarantine: the refused lines and objects of the deliveries that were just parsed.

Lives here: replacing what quarantine holds of an object. Put here: what is done with refused lines. Keep out:
why a line is refused (domain/event_lines.py).
"""

from __future__ import annotations

import pyspark.sql.functions as F
from resources.ledger_records import DeliveryRecord

from pipeline_assets.domain.slices import BatchVerdict, Slice
from pipeline_assets.load_path.raw_step import RawStep, delete_objects, in_batches
from pipeline_assets.tables.quarantine import QUARANTINE
from pipeline_assets.transforms.parse import quarantined


def quarantine(step: RawStep) -> None:
    """Replace what raw.quarantine holds of the parsed objects; done before raw, and idempotent like it."""
    bench, lakehouse = step.bench, step.bench.lakehouse
    plans = [*step.batches(BatchVerdict.ACCEPTED), *step.batches(BatchVerdict.REFUSED)]
    dirty = [
        plan for plan in plans
        if any(_is_bad(step.summaries.get(d.key)) or _is_bad(plan.recorded.get(d.key)) for d in plan.changed)
        or any(_is_bad(plan.recorded.get(key)) for key in plan.withdrawn)
    ]  # fmt: skip
    if not dirty or step.parsed is None:
        return
    refused = [plan.key for plan in dirty if step.verdicts[plan.key][0] is BatchVerdict.REFUSED]
    keys = sorted({key for plan in dirty for key in (*(d.key for d in plan.changed), *plan.withdrawn)})
    slices = {Slice(plan.key.arrival_date, plan.key.project_id) for plan in dirty}
    new_rows = (
        quarantined(step.parsed)
        .where(F.col("object_key").isin(keys))
        .withColumn("is_batch_accepted", ~in_batches(refused, "source", "arrival_date"))
    )

    def write(target: str) -> None:
        delete_objects(bench, target, "arrival_date", "object_key", slices, keys)
        new_rows.writeTo(target).append()

    base_id = lakehouse.head(QUARANTINE)
    staged = lakehouse.stage(QUARANTINE, base_id, step.attempt, write)
    try:
        lakehouse.publish(staged, slices, step.request.run_id)
    finally:
        lakehouse.drop(staged)


def _is_bad(record: DeliveryRecord | None) -> bool:
    return record is not None and bool(record.quarantined or record.error)
