"""Which hours of a day arrived, from which day deliveries are expected, how late rows are, and which slices are final."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from pipeline_assets.domain.days import ALONE, deadline, first_believable
from pipeline_assets.domain.deliveries import BatchKey, Listing
from pipeline_assets.domain.lateness import ARRIVAL_DAYS, Lateness, deciding, lateness, narrowness
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from resources.ledger.store import Ledger

if TYPE_CHECKING:
    from pipeline_assets.load.staleness.facts import Facts


HOURS_A_DAY = 24


def hours_on_record(batch: BatchRecord | None) -> frozenset[int]:
    """Hours with objects or markers; an older record has only counts, which become the first hours."""
    if batch is None:
        return frozenset()
    if batch.hours is not None:
        return frozenset(batch.hours)
    return frozenset(range(max(batch.hours_delivered, batch.hours_marked)))


def lacks_hours(regular: BatchRecord | None, backfill: BatchRecord | None) -> bool:
    """Whether hours of the day are missing on record, and no operator accepted that."""
    if regular is not None and regular.is_let_go:
        return False
    is_told = regular is not None and regular.partial_hours is not None
    is_recovered = backfill is not None and backfill.deliveries > 0 and not (regular is not None and regular.deliveries)
    return (is_told or is_recovered) and len(hours_on_record(regular) | hours_on_record(backfill)) < HOURS_A_DAY


def is_short(batches: Mapping[BatchKey, BatchRecord], key: BatchKey) -> bool:
    """Whether a regular batch misses hours without a recovery, or a recovery has unplaced objects."""
    if key.source is Source.BACKFILL:
        return key in batches and batches[key].has_unplaced
    regular, backfill = batches.get(key), batches.get(replace(key, source=Source.BACKFILL))
    is_told = regular is not None and regular.partial_hours is not None
    return is_told and lacks_hours(regular, backfill)


def first_arrivals(
    ledger: Ledger,
    settings: Settings,
    projects: Sequence[str],
    today: date,
    *,
    listing: Listing | None = None,
    source: Source | None = None,
) -> dict[str, date]:
    """Project -> first arrival day, from settings, else from the listing and the ledger (one `source`, or both for None)."""
    known: dict[str, set[date]] = {}
    # Read from the first day until two lie close together.
    passed = dict.fromkeys(projects, date.min)
    while passed:
        following = ledger.nearest_arrivals(passed, source)
        for project, day in following.items():
            known.setdefault(project, set()).add(day)
        passed = {
            project: day
            for project, day in following.items()
            if day - passed[project] > ALONE and day <= today + timedelta(days=1)
        }
    for project, days in listing.arrival_days.items() if listing is not None else ():
        known[project] = known.get(project, set()) | days
    firsts = {project: settings.first_arrival or first_believable(days, today) for project, days in known.items()}
    return {project: day for project, day in firsts.items() if day is not None}


def was_final(facts: Facts, record: SliceRecord | None, now: datetime) -> bool:
    """Whether a recorded finality counts; not if a clock that was ahead judged it, or an unrecorded one with arrivals open."""
    if record is None or not record.was_final(now):
        return False
    return record.final_at is not None or is_closed_window(facts, record.key, now)


def finality(facts: Facts, key: Slice, now: datetime) -> tuple[bool, bool]:
    """Whether all batches of [D, D + reprocessing window] are closed and good (settled), and no hour of D is missing (final)."""
    first_arrival = facts.first_arrivals.get(key.project_id)
    if first_arrival is None or key.event_date < first_arrival or not is_closed_window(facts, key, now):
        return False, False
    for arrival in _window(facts.settings, key):
        batches = [facts.batches.get(BatchKey(source, key.project_id, arrival)) for source in Source]
        regular, backfill = batches
        if not (regular is not None and regular.deliveries) and lacks_hours(regular, backfill):
            return False, False
        troubles = (one for one in batches if one is not None and one.verdict is not BatchVerdict.ACCEPTED)
        if not all(is_moot(facts, one) for one in troubles):
            return False, False
    own = [BatchKey(source, key.project_id, key.event_date) for source in Source]
    return True, not any(is_short(facts.batches, batch) for batch in own)


def is_closed_window(facts: Facts, key: Slice, now: datetime) -> bool:
    """Whether every batch of [D, D + reprocessing window] has all markers or is past its deadline, by the present clock."""
    for arrival in _window(facts.settings, key):
        if now > deadline(arrival, facts.settings):
            continue
        for source in Source:
            batch = facts.batches.get(BatchKey(source, key.project_id, arrival))
            is_required = source is Source.REGULAR or (batch is not None and batch.deliveries > 0)
            if is_required and not (batch is not None and batch.hours_marked == HOURS_A_DAY):
                return False
    return True


def is_moot(facts: Facts, batch: BatchRecord) -> bool:
    """Whether the batch is a recovery that never arrived, of a day whose regular exports are accepted."""
    if batch.key.source is not Source.BACKFILL or batch.deliveries or batch.verdict is BatchVerdict.ACCEPTED:
        return False
    regular = facts.batches.get(replace(batch.key, source=Source.REGULAR))
    return regular is not None and regular.verdict is BatchVerdict.ACCEPTED


def _window(settings: Settings, key: Slice) -> list[date]:
    return [key.event_date + timedelta(days=shift) for shift in range(settings.reprocessing_window_days + 1)]


def last_arrival(ledger: Ledger, source: Source, projects: Sequence[str], today: date) -> date:
    """The newest arrival day of these projects in the ledger; today if there is none."""
    after_today = dict.fromkeys(projects, today + timedelta(days=1))
    return max(ledger.nearest_arrivals(after_today, source, is_before=True).values(), default=today)


def recent_lateness(ledger: Ledger, source: Source, projects: Sequence[str], today: date) -> Mapping[str, Lateness]:
    """Project -> lateness of the rows of the last 91 arrival days."""
    last = last_arrival(ledger, source, projects, today)
    first = last - timedelta(days=ARRIVAL_DAYS - 1)
    return lateness(ledger.summaries.arrivals(source, projects, first, last))


def too_narrow(ledger: Ledger, settings: Settings, source: Source, projects: Sequence[str], today: date) -> list[str]:
    """A sentence for each project of regular exports whose window misses a larger share of recent rows than tolerated."""
    if source is not Source.REGULAR:
        return []
    return warnings_of(recent_lateness(ledger, source, projects, today), settings)


def warnings_of(found: Mapping[str, Lateness], settings: Settings) -> list[str]:
    """The same sentences from lateness that was already read."""
    days, tolerated = settings.reprocessing_window_days, settings.tolerated_missed_share
    told = {one or "all projects": narrowness(found[one], days, tolerated) for one in deciding(found, tolerated)}
    return [
        f"the reprocessing window is too narrow for {project}: {why}; see tidemark window"
        for project, why in sorted(told.items())
        if why is not None
    ]
