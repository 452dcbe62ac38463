"""The recorded facts that decisions about slices stand on: candidates, batches, first arrivals, and what is final.

Contains: reading them, once per run.
Add here: another fact that decisions need.
Does not contain: deciding (decide.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source, widen
from pipeline_assets.load.deliveries.batch import deadline
from pipeline_assets.load.recorded import early_slices
from pipeline_assets.load.request import Books, LoadRequest
from pipeline_assets.load.staleness.coverage import HOURS_A_DAY, lacks_hours
from pipeline_assets.load.staleness.first_arrival import first_arrivals
from resources.ledger.records import BatchRecord


@dataclass(frozen=True)
class Facts:
    """The recorded facts that decisions stand on, read once per run."""

    candidates: Mapping[str, frozenset[date]]
    """Project -> days to look at: the requested ones, and those that arrivals in reach touch, widened."""
    batches: Mapping[BatchKey, BatchRecord]
    first_arrivals: Mapping[str, date]
    early: frozenset[Slice]
    """Days that wait for deliveries whose deadline lies ahead."""


def read_facts(books: Books, request: LoadRequest) -> Facts:
    """Read what is recorded about the requested days, the arrivals in their reach and the days those touch."""
    settings, ledger = books.settings, books.ledger
    reach = timedelta(days=settings.reprocessing_window_days)
    touched: dict[str, set[date]] = {project: set() for project in request.projects}
    for source in Source:
        found = ledger.batch_days(source, request.projects, request.first_day - reach, request.last_day + reach)
        for batch, days in found.items():
            touched[batch.project_id] |= days.keys()
    candidates = {
        project: frozenset(widen({*request.days, *days}, settings.dedupe_window_days))
        for project, days in touched.items()
    }
    return facts_of(books, candidates, first_arrivals(ledger, settings, request.projects, request.now.date()))


def facts_of(books: Books, candidates: Mapping[str, frozenset[date]], firsts: Mapping[str, date]) -> Facts:
    """What is recorded about these days of these projects."""
    reach = timedelta(days=books.settings.reprocessing_window_days)
    every_day = [day for days in candidates.values() for day in days]
    projects = sorted(candidates)
    batches = books.ledger.batches(projects, min(every_day), max(every_day) + reach)
    return Facts(candidates, batches, firsts, early_slices(batches))


def is_moot(facts: Facts, batch: BatchRecord) -> bool:
    """Whether it is a recovery that somebody looked for and that never came, of a day whose regular exports are accepted."""
    if batch.key.source is not Source.BACKFILL or batch.deliveries or batch.verdict is BatchVerdict.ACCEPTED:
        return False
    regular = facts.batches.get(BatchKey(Source.REGULAR, batch.key.project_id, batch.key.arrival_date))
    return regular is not None and regular.verdict is BatchVerdict.ACCEPTED


def is_final_day(books: Books, request: LoadRequest, facts: Facts, key: Slice) -> bool:
    """Every batch that arrives in [D, D + reprocessing window] is closed and whole, and none refused or waiting."""
    first_arrival = facts.first_arrivals.get(key.project_id)
    if first_arrival is None or key.event_date < first_arrival:
        return False
    return is_closed_window(books, request, facts, key) and not any(
        _is_open_trouble(facts, key.project_id, arrival) for arrival in _window(books, key)
    )


def is_closed_window(books: Books, request: LoadRequest, facts: Facts, key: Slice) -> bool:
    """Every batch that arrives in [D, D + reprocessing window] has all markers, or its deadline has passed by now.

    Asked of the markers on record and of the clock, not of what was once recorded as closed: that clock may have been ahead.
    """
    for arrival in _window(books, key):
        if request.now > deadline(arrival, books.settings):
            continue
        for source in Source:
            batch = facts.batches.get(BatchKey(source, key.project_id, arrival))
            # The backfill source has batches only where somebody recovered something.
            is_required = source is Source.REGULAR or (batch is not None and batch.deliveries > 0)
            if is_required and not (batch is not None and batch.hours_marked == HOURS_A_DAY):
                return False
    return True


def _window(books: Books, key: Slice) -> list[date]:
    return [key.event_date + timedelta(days=shift) for shift in range(books.settings.reprocessing_window_days + 1)]


def _is_open_trouble(facts: Facts, project_id: str, arrival: date) -> bool:
    """Whether a batch of the day is refused or waits, or most of the day's hours were never delivered by anybody."""
    batches = {source: facts.batches.get(BatchKey(source, project_id, arrival)) for source in Source}
    if lacks_hours(batches[Source.REGULAR], batches[Source.BACKFILL]):
        return True
    return any(
        batch is not None and batch.verdict is not BatchVerdict.ACCEPTED and not is_moot(facts, batch)
        for batch in batches.values()
    )
