"""Stage the rows of batches in a snapshot that nobody sees yet, and write their refused lines to raw.quarantine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.plain_text import sql_text
from pipeline_assets.domain.records import UNREAD, DeliveryRecord
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.load.deliveries.plan import BatchPlan, Plan
from pipeline_assets.load.deliveries.read import Attempt, ReadResult, Writing, result_of, write_refused, write_rows
from pipeline_assets.load.deliveries.verdicts import Judged
from pipeline_assets.load.file_tasks import objects_of_batches
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import QUARANTINE
from resources.iceberg.lakehouse import Staged as StagedSnapshot
from resources.ledger.changes import Changes

_KEYS_PER_STATEMENT = 500


@dataclass(frozen=True)
class Staged:
    """A staged state of raw in which batches hold the rows of their present deliveries."""

    snapshot: StagedSnapshot
    plans: tuple[BatchPlan, ...]
    present: Mapping[BatchKey, Mapping[str, int]]
    """Batch -> object -> rows of it in raw before."""


def read_and_stage(attempt: Attempt, plan: Plan) -> tuple[ReadResult, Staged | None]:
    """Read the changed objects and stage their rows in one pass, as if every batch were accepted.

    Nothing is staged where nothing is to be read or removed.
    """
    plans = [batch for batch in plan.work if plan.replaced(batch)]
    if not plans:
        return result_of(attempt, plan, None), None
    writing = _writing(attempt, plan, plans)
    staged = _stage(attempt, plan, plans, writing)
    try:
        return result_of(attempt, plan, writing), staged
    except BaseException:
        attempt.runtime.lakehouse.drop(staged.snapshot)
        raise


def without_refused(attempt: Attempt, judged: Judged, staged: Staged) -> Staged | None:
    """The same with accepted batches only: staged once more where some are not, because files may hold rows of both."""
    plan = judged.read.plan
    plans = [batch for batch in judged.batches(BatchVerdict.ACCEPTED) if plan.replaced(batch)]
    if len(plans) == len(staged.plans):
        return staged
    attempt.runtime.lakehouse.drop(staged.snapshot)
    if not plans:
        return None
    writing = _writing(attempt, plan, plans)
    accepted = _stage(attempt, plan, plans, writing)
    if writing is not None:
        try:
            writing.require_unmoved()
        except BaseException:
            attempt.runtime.lakehouse.drop(accepted.snapshot)
            raise
    return accepted


def _writing(attempt: Attempt, plan: Plan, plans: Sequence[BatchPlan]) -> Writing | None:
    to_parse = [delivery for batch in plans for delivery in plan.to_parse(batch)]
    return write_rows(attempt, to_parse) if to_parse else None


def _stage(attempt: Attempt, plan: Plan, plans: Sequence[BatchPlan], writing: Writing | None) -> Staged:
    batches = [batch.key for batch in plans]
    replaced = {batch.key: set(plan.replaced(batch)) for batch in plans}
    # Looked up in the table and not in the ledger: a dead run may have left rows that no ledger row tells of.
    found = objects_of_batches(attempt.runtime, attempt.table, attempt.base_id, batches)
    present = {batch: {key: of.rows for key, of in objects.items()} for batch, objects in found.items()}
    old = sorted({key for batch in batches for key in present[batch].keys() & replaced[batch]})
    reach = {Slice(batch.arrival_date, batch.project_id) for batch in batches}
    runtime, table = attempt.runtime, attempt.table

    def write(target: str) -> None:
        if old:
            delete_objects(runtime, target, "_arrival_date", "_object_key", reach, old)
        if writing is not None:
            runtime.lakehouse.files.append(table, target, writing.run())

    runtime.log(f"{table.key}: staging {sum(map(len, replaced.values()))} objects of {len(plans)} batches")
    snapshot = runtime.lakehouse.stage(table, attempt.base_id, attempt.name, write)
    return Staged(snapshot, tuple(plans), present)


def delete_objects(
    runtime: Runtime,
    target: str,
    day_column: str,
    key_column: str,
    reach: set[Slice],
    keys: Sequence[str],
    also: str = "TRUE",
) -> None:
    """Copy-on-write: only data files that hold rows of these objects (and meet the condition `also`) are rewritten."""
    days = ", ".join(f"DATE '{day.isoformat()}'" for day in sorted({key.event_date for key in reach}))
    projects = ", ".join(sql_text(project) for project in sorted({key.project_id for key in reach}))
    for start in range(0, len(keys), _KEYS_PER_STATEMENT):
        listed = ", ".join(map(sql_text, keys[start : start + _KEYS_PER_STATEMENT]))
        runtime.spark.sql(
            f"DELETE FROM {target} WHERE {day_column} IN ({days}) AND project_id IN ({projects}) "
            f"AND {key_column} IN ({listed}) AND {also}"
        )


def quarantine(attempt: Attempt, judged: Judged) -> None:
    """Replace what raw.quarantine holds of the objects read; done before raw, and idempotent like it.

    Of a refused batch the lines stand beside those of the version raw holds, until a version is accepted or gone.
    """
    runtime, read = attempt.runtime, judged.read
    accepted = judged.batches(BatchVerdict.ACCEPTED)
    refused = [*judged.batches(BatchVerdict.REFUSED), *judged.batches(BatchVerdict.WAITING)]
    restored = attempt.losses.of_lines & judged.brought_back.keys()
    # Lines beside those of a lost file would hide that it is gone; they are read again with it.
    stuck = {BatchKey(attempt.source, key.project_id, key.event_date) for key in attempt.losses.of_lines - restored}
    accepted, refused = ([plan for plan in plans if plan.key not in stuck] for plans in (accepted, refused))
    # What was in the table: of any version of the object, or of refused versions alone.
    old = {key for plan in accepted for key in read.plan.replaced(plan) if _is_bad(plan.recorded.get(key))}
    old_refusals = {
        key
        for plan in (*accepted, *refused)
        for key, record in plan.refused.items()
        if _is_bad(record) and (plan in accepted or key in read.summaries or key in plan.stale_refusals)
    }
    new = {
        key
        for plan in (*accepted, *refused)
        for key in read.plan.replaced(plan)
        if key in read.summaries and _is_bad(read.summaries[key]) and key not in read.unread
    }
    if not (old or old_refusals or new or restored):
        return
    concerned = old | old_refusals | new
    batches = [
        plan.key
        for plan in (*accepted, *refused)
        if not concerned.isdisjoint({*plan.listed, *plan.recorded, *plan.refused})
    ]
    slices = {*restored, *(Slice(batch.arrival_date, batch.project_id) for batch in batches)}

    # Read once more: in one pass with the rows, every row would have to be kept for the sake of the few refused lines.
    bad = [delivery for plan in (*accepted, *refused) for delivery in plan.changed if delivery.key in new]
    # Those whose bytes raw holds already were not read before.
    runtime.new_bytes.add(sum(one.size_bytes for one in bad if one.key in read.plan.touched))
    writing = write_refused(attempt, bad, {plan.key for plan in accepted}) if bad else None

    def write(target: str) -> None:
        # A dead run may have left rows of what is written now, so those go first whatever the ledger knows.
        is_refusal = "NOT is_batch_accepted"
        delete_objects(runtime, target, "arrival_date", "object_key", slices, sorted(old_refusals | new), is_refusal)
        of_accepted = {key for plan in accepted for key in read.plan.replaced(plan)}
        delete_objects(runtime, target, "arrival_date", "object_key", slices, sorted(old | (new & of_accepted)))
        if writing is not None:
            runtime.lakehouse.files.append(QUARANTINE, target, writing.run())
            writing.require_unmoved()

    draft = runtime.draft
    if restored:
        draft.record(QUARANTINE, _read_by_next_load(attempt, restored))
    staged = runtime.lakehouse.stage(QUARANTINE, draft.pin(QUARANTINE), attempt.name, write)
    draft.accept(staged, slices, is_whole=True)


def _read_by_next_load(attempt: Attempt, slices: Collection[Slice]) -> Changes:
    """Marks objects of the other source whose refused lines were lost, too: its next load reads them again."""
    (other,), ledger = set(Source) - {attempt.source}, attempt.runtime.ledger
    known = [
        record
        for key in slices
        for is_accepted in (True, False)
        for record in ledger.deliveries(
            other, [key.project_id], key.event_date, key.event_date, is_accepted=is_accepted
        ).values()
    ]
    marked = [
        replace(one, etag=f"{UNREAD}{one.etag.removeprefix(UNREAD)}", sha256=None) for one in known if _is_bad(one)
    ]
    return Changes(deliveries=marked)


def _is_bad(record: DeliveryRecord | None) -> bool:
    return record is not None and bool(
        record.quarantined or record.error or record.etag.startswith(UNREAD) or not record.etag
    )
