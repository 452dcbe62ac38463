"""The hours that a day's batches hold, and whether a day without regular deliveries is nevertheless complete.

Contains: recorded hours, and the check for missing hours.
Add here: another question about the hours of batches.
Does not contain: plans (deliveries/plan.py), finality (finality.py).
"""

from __future__ import annotations

from pipeline_assets.domain.records import BatchRecord

HOURS_A_DAY = 24


def hours_on_record(batch: BatchRecord | None) -> frozenset[int]:
    """Hours for which a batch holds objects or markers; an older record has only counts, which become the first hours."""
    if batch is None:
        return frozenset()
    if batch.hours is not None:
        return frozenset(batch.hours)
    return frozenset(range(max(batch.hours_delivered, batch.hours_marked)))


def lacks_hours(regular: BatchRecord | None, backfill: BatchRecord | None) -> bool:
    """Whether no regular delivery arrived, only some hours were recovered, and nobody accepted the loss of the others."""
    if regular is not None and (regular.deliveries or regular.is_decided):
        return False
    if backfill is None or not backfill.deliveries:
        return regular is not None and regular.partial_hours is not None
    return len(hours_on_record(regular) | hours_on_record(backfill)) < HOURS_A_DAY
