"""Decides which slices are final: everything that may still change them has arrived, or nobody awaits it after its deadline."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.load.staleness.coverage import HOURS_A_DAY, is_short, lacks_hours
from pipeline_assets.load.staleness.facts import Facts


def was_final(facts: Facts, record: SliceRecord | None, now: datetime) -> bool:
    """Whether a recorded finality counts; it does not if a clock that was ahead judged it.

    A record without the time of that judgement counts only if the window of arrivals is closed now.
    """
    if record is None or not record.was_final(now):
        return False
    return record.final_at is not None or is_closed_window(facts, record.key, now)


def is_final_day(facts: Facts, key: Slice, now: datetime) -> bool:
    """Whether the day is settled, and no hour that arrived on it is missing."""
    own = [BatchKey(source, key.project_id, key.event_date) for source in Source]
    return is_settled_day(facts, key, now) and not any(is_short(facts.batches, batch) for batch in own)


def is_settled_day(facts: Facts, key: Slice, now: datetime) -> bool:
    """Whether every batch that arrives in [D, D + reprocessing window] is closed, and none is refused or waits.

    Changes of the day are bounded from then on, although missing hours of a regular export may keep it from being final.
    """
    first_arrival = facts.first_arrivals.get(key.project_id)
    if first_arrival is None or key.event_date < first_arrival:
        return False
    return is_closed_window(facts, key, now) and not any(
        _is_open_trouble(facts, key.project_id, arrival) for arrival in _window(facts.settings, key)
    )


def is_closed_window(facts: Facts, key: Slice, now: datetime) -> bool:
    """Whether every batch that arrives in [D, D + reprocessing window] has all markers or is past its deadline.

    This uses recorded markers and the present clock, not an earlier judgement, whose clock may have been ahead.
    """
    for arrival in _window(facts.settings, key):
        if now > deadline(arrival, facts.settings):
            continue
        for source in Source:
            batch = facts.batches.get(BatchKey(source, key.project_id, arrival))
            # The backfill source has batches only for days that were recovered.
            is_required = source is Source.REGULAR or (batch is not None and batch.deliveries > 0)
            if is_required and not (batch is not None and batch.hours_marked == HOURS_A_DAY):
                return False
    return True


def is_moot(facts: Facts, batch: BatchRecord) -> bool:
    """Whether the batch is a recovery that never arrived, of a day whose regular exports are accepted."""
    if batch.key.source is not Source.BACKFILL or batch.deliveries or batch.verdict is BatchVerdict.ACCEPTED:
        return False
    regular = facts.batches.get(BatchKey(Source.REGULAR, batch.key.project_id, batch.key.arrival_date))
    return regular is not None and regular.verdict is BatchVerdict.ACCEPTED


def _window(settings: Settings, key: Slice) -> list[date]:
    return [key.event_date + timedelta(days=shift) for shift in range(settings.reprocessing_window_days + 1)]


def _is_open_trouble(facts: Facts, project_id: str, arrival: date) -> bool:
    """Whether a batch of the day is refused or waits, or only some hours of a day without regular deliveries were recovered."""
    batches = {source: facts.batches.get(BatchKey(source, project_id, arrival)) for source in Source}
    regular = batches[Source.REGULAR]
    if not (regular is not None and regular.deliveries) and lacks_hours(regular, batches[Source.BACKFILL]):
        return True
    return any(
        batch is not None and batch.verdict is not BatchVerdict.ACCEPTED and not is_moot(facts, batch)
        for batch in batches.values()
    )
