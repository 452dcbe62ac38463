"""Which hours of a day its batches hold, and whether a day without any regular delivery is whole all the same.

Contains: hours on record, and what they lack.
Add here: another question about hours that batches hold.
Does not contain: plans (deliveries/plan.py) and finality (facts.py).
"""

from __future__ import annotations

from pipeline_assets.domain.records import BatchRecord

HOURS_A_DAY = 24


def hours_on_record(batch: BatchRecord | None) -> frozenset[int]:
    """Hours of which a batch holds objects or markers; of an older row, which only counts them, as many."""
    if batch is None:
        return frozenset()
    if batch.hours is not None:
        return frozenset(batch.hours)
    return frozenset(range(max(batch.hours_delivered, batch.hours_marked)))


def lacks_hours(regular: BatchRecord | None, backfill: BatchRecord | None) -> bool:
    """Whether no regular delivery came, some hours of the day were recovered, and nobody accepted that the others are lost."""
    if regular is not None and (regular.deliveries or regular.is_decided):
        return False
    if backfill is None or not backfill.deliveries:
        return regular is not None and regular.partial_hours is not None
    return len(hours_on_record(regular) | hours_on_record(backfill)) < HOURS_A_DAY
