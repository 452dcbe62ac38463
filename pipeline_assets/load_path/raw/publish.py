"""Stage the rows of accepted batches, check them against what was parsed, publish the event days that changed.

Lives here: from parsed rows to a commit of a raw table and its ledger rows. Put here: how raw is written. Keep out: which
batches are accepted (read.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import date

from resources.crash_points import CrashPoint, crash_point
from resources.lakehouse import SliceFiles
from resources.ledger_records import BatchDay, PublicationRecord, SliceRecord

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict
from pipeline_assets.load_path.raw.batches import BatchPlan
from pipeline_assets.load_path.raw.step import RawStep, delete_objects, in_batches
from pipeline_assets.transforms.measure import batch_day_digests, digest_of, lineage_of
from pipeline_assets.transforms.parse import event_rows


def publish(step: RawStep) -> None:
    """Bring raw in line with the accepted batches; nothing is staged where no object's bytes changed."""
    plans = [plan for plan in step.batches(BatchVerdict.ACCEPTED) if step.replaced(plan)]
    if not plans:
        return
    bench, lakehouse, table = step.bench, step.bench.lakehouse, step.table
    batches = [plan.key for plan in plans]
    replaced = {plan.key: set(step.replaced(plan)) for plan in plans}
    # Looked up in the table and not in the ledger: a dead run may have left rows that no ledger row tells of.
    present = _objects_in(step, batches)
    old = sorted({key for batch in batches for key in present[batch].keys() & replaced[batch]})
    reach = {Slice(batch.arrival_date, batch.project_id) for batch in batches}

    def write(target: str) -> None:
        if old:
            delete_objects(bench, target, "_arrival_date", "_object_key", reach, old)
        if step.parsed is not None:
            rows = event_rows(step.parsed, step.source)
            rows.where(in_batches(batches, None, "_arrival_date")).writeTo(target).append()

    bench.say(f"{table.key}: staging {sum(map(len, replaced.values()))} objects of {len(plans)} batches")
    staged = lakehouse.stage(table, step.base_id, step.attempt, write)
    try:
        before = _batch_days(step, batches)
        # Days that a batch held rows of stay on record as touched by it, so that what is derived from them follows.
        audited = _audit(step, staged.snapshot_id, batches)
        days = {batch: {**dict.fromkeys(before[batch], BatchDay()), **audited[batch]} for batch in batches}
        for plan in plans:
            _require_parsed_rows(step, plan, present[plan.key], days[plan.key])
        crash_point(CrashPoint.AFTER_AUDIT, table.key)
        changed = _changed_slices(before, days)
        publication = lakehouse.publish(staged, changed.keys(), step.request.run_id) if changed else None
        if publication is not None and not publication.is_empty:
            _account(step, publication.snapshot_id, publication.parent_id, publication.files, changed, days)
    finally:
        lakehouse.drop(staged)
    step.changes.batch_days.update(days)


def _objects_in(step: RawStep, batches: Sequence[BatchKey]) -> dict[BatchKey, dict[str, int]]:
    """Batch -> object -> rows of it in raw now."""
    base = step.bench.lakehouse.read(step.table, step.base_id)
    rows = base.where(in_batches(batches, None, "_arrival_date"))
    counted = rows.groupBy("project_id", "_arrival_date", "_object_key").count().collect()
    found: dict[BatchKey, dict[str, int]] = {batch: {} for batch in batches}
    for row in counted:
        found[BatchKey(step.source, row["project_id"], row["_arrival_date"])][row["_object_key"]] = row["count"]
    return found


def _audit(step: RawStep, snapshot_id: int, batches: Sequence[BatchKey]) -> dict[BatchKey, dict[date, BatchDay]]:
    """Batch -> event day -> its staged rows."""
    staged = step.bench.lakehouse.read(step.table, snapshot_id)
    measured = batch_day_digests(staged.where(in_batches(batches, None, "_arrival_date")), step.table.content_columns)
    days: dict[BatchKey, dict[date, BatchDay]] = {batch: {} for batch in batches}
    for row in measured.collect():
        batch = BatchKey(step.source, row["project_id"], row["_arrival_date"])
        days[batch][row["event_date"]] = BatchDay(digest_of(row.asDict()), lineage_of(row.asDict()))
    return days


def _batch_days(step: RawStep, batches: Sequence[BatchKey]) -> dict[BatchKey, dict[date, BatchDay]]:
    """Batch -> event day -> its recorded rows."""
    arrivals = [batch.arrival_date for batch in batches]
    projects = sorted({batch.project_id for batch in batches})
    recorded = step.bench.ledger.batch_days(step.source, projects, min(arrivals), max(arrivals))
    return {batch: recorded.get(batch, {}) for batch in batches}


def _require_parsed_rows(
    step: RawStep, plan: BatchPlan, present: Mapping[str, int], days: Mapping[date, BatchDay]
) -> None:
    """Staged rows must be those of the objects left alone and those parsed."""
    replaced = step.replaced(plan)
    expected = sum(rows for key, rows in present.items() if key not in replaced)
    expected += sum(step.summaries[key].rows for key in replaced if key in step.summaries)
    found = sum(part.digest.rows for part in days.values())
    if found != expected:
        reason = f"{found} rows are staged but {expected} were parsed"
        raise LakehouseError(str(plan.key), reason, "Nothing was published: report it")


def _changed_slices(
    before: Mapping[BatchKey, Mapping[date, BatchDay]], after: Mapping[BatchKey, Mapping[date, BatchDay]]
) -> dict[Slice, list[BatchKey]]:
    """Event days whose rows changed, or came to be held by other objects, and the batches that did it.

    The latter must be published too: rows left under the key of an object that was withdrawn could never be replaced.
    """
    changed: dict[Slice, list[BatchKey]] = {}
    for batch, days in after.items():
        for day, part in days.items():
            if before[batch].get(day, BatchDay()) != part:
                changed.setdefault(Slice(day, batch.project_id), []).append(batch)
    return changed


def _account(
    step: RawStep,
    snapshot_id: int,
    parent_id: int,
    files: Mapping[Slice, SliceFiles],
    changed: Mapping[Slice, Sequence[BatchKey]],
    days: Mapping[BatchKey, Mapping[date, BatchDay]],
) -> None:
    """Ledger rows of the published slices: a slice's digest is the sum of its batch days."""
    ledger, table = step.bench.ledger, step.table
    code = table.code_version(step.bench.settings)
    for project in {key.project_id for key in changed}:
        event_days = sorted(key.event_date for key in changed if key.project_id == project)
        recorded = ledger.batch_days_of(step.source, project, event_days)
        priors = ledger.slices(table.key, [project], event_days)
        for day in event_days:
            key = Slice(day, project)
            parts = dict(recorded[day])
            for batch, measured in days.items():
                if batch.project_id == project:
                    parts[batch] = measured.get(day, BatchDay())
            digest = sum((part.digest for part in parts.values()), EMPTY)
            before = priors[key].digest if key in priors else EMPTY
            step.published[key] = digest
            step.changes.slices.append(
                SliceRecord(
                    table.key, key, Verdict.PUBLISHED, digest=digest, file_hash=files[key].file_hash, input_state={},
                    code_version=code, figures={"rows": digest.rows},
                )
            )  # fmt: skip
            reasons = [
                plan.accepted_reason
                for plan in (step.plans[batch] for batch in changed[key])
                if plan.withdrawn and plan.accepted_reason is not None
            ]
            cause = "delivery" if digest != before else "the same rows, held by other objects"
            step.changes.publications.append(
                PublicationRecord(
                    table.key, key, snapshot_id, parent_id, before, digest, cause, step.request.run_id,
                    code_version=code, accepted_reason="; ".join(dict.fromkeys(reasons)) or None,
                    seconds=round(time.monotonic() - step.started_at, 3),
                )
            )  # fmt: skip
    step.changes.head = (table.key, snapshot_id, parent_id)
