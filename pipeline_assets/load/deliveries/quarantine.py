"""Write raw.quarantine: the refused lines and objects of the deliveries that were just read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import UNREAD, DeliveryRecord
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.load.deliveries.attempt import Attempt
from pipeline_assets.load.deliveries.read import write_refused
from pipeline_assets.load.deliveries.stage import delete_objects
from pipeline_assets.load.deliveries.verdicts import Judged
from pipeline_assets.tables.quarantine import QUARANTINE
from resources.ledger.changes import Changes


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
