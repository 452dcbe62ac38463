"""The hours that a day's batches hold, and whether some never came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchRecord
from pipeline_assets.domain.slices import Source

HOURS_A_DAY = 24


def hours_on_record(batch: BatchRecord | None) -> frozenset[int]:
    """Hours for which a batch holds objects or markers; an older record has only counts, which become the first hours."""
    if batch is None:
        return frozenset()
    if batch.hours is not None:
        return frozenset(batch.hours)
    return frozenset(range(max(batch.hours_delivered, batch.hours_marked)))


def lacks_hours(regular: BatchRecord | None, backfill: BatchRecord | None) -> bool:
    """Whether hours of the day are recorded as missing, or only some were recovered, and nobody let the others go."""
    if regular is not None and regular.is_let_go:
        return False
    is_told = regular is not None and regular.partial_hours is not None
    is_recovered = backfill is not None and backfill.deliveries > 0 and not (regular is not None and regular.deliveries)
    return (is_told or is_recovered) and len(hours_on_record(regular) | hours_on_record(backfill)) < HOURS_A_DAY


def is_short(batches: Mapping[BatchKey, BatchRecord], key: BatchKey) -> bool:
    """Whether a regular batch is recorded as missing hours, and no recovery brought them; or a recovery has unplaced objects."""
    if key.source is Source.BACKFILL:
        return key in batches and batches[key].has_unplaced
    regular, backfill = batches.get(key), batches.get(replace(key, source=Source.BACKFILL))
    is_told = regular is not None and regular.partial_hours is not None
    return is_told and lacks_hours(regular, backfill)
