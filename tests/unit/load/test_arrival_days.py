"""A single wrong date in a name moves no project's start, and is reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.days import asked_for, first_believable
from pipeline_assets.domain.deliveries import BatchKey, Listing
from pipeline_assets.domain.records import BatchRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.load.staleness.finality import first_arrivals, last_arrival
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.builders import PROJECT, LandingFolder
from tests.unit.load.test_batches import BATCH
from tests.unit.resources.test_landing_store import Place, a_key, bucket, place  # noqa: F401 - fixtures

_NUMBERS = count(10_000)
TODAY = date(2026, 2, 10)
START, NEXT = date(2026, 2, 2), date(2026, 2, 3)
LONG_AGO, FAR = date(2006, 1, 1), date(2062, 1, 1)


@pytest.mark.parametrize(
    ("days", "first"),
    [
        ([START], START),
        ([START, NEXT], START),
        ([LONG_AGO, START, NEXT], START),
        ([LONG_AGO, date(2007, 5, 5), START], START),
        ([START, NEXT, FAR], START),
        ([LONG_AGO, date(2006, 1, 20), START], LONG_AGO),
        ([START, date(2026, 3, 4)], START),
        ([FAR], None),
        ([], None),
    ],
)
def test_a_day_that_lies_alone_or_ahead_is_not_taken_for_the_start(days: list[date], first: date | None) -> None:
    assert first_believable(days, TODAY) == first


@pytest.fixture
def folder(tmp_path: Path) -> LandingFolder:
    folder = LandingFolder()
    folder.landing, folder.grammar = tmp_path, KeyGrammar(Settings().marker_pattern)
    return folder


def listed(folder: LandingFolder, *asked: Any) -> Listing:
    store = LandingStore.from_settings(Settings(landing_url=str(folder.landing)))
    return store.list(Source.REGULAR, [PROJECT], START, NEXT, *asked)


def test_the_first_arrival_is_a_setting_or_what_listing_and_ledger_know_together(
    folder: LandingFolder, ledger: Ledger
) -> None:
    for day in (LONG_AGO, START):
        folder.deliver(day, [])
    ledger.record(Changes(batches=[BatchRecord(BATCH, BatchVerdict.ACCEPTED, deliveries=1)]), "run")
    listing = listed(folder)
    settings = Settings(first_arrival=NEXT)
    assert first_arrivals(ledger, Settings(), [PROJECT], TODAY, listing=listing) == {PROJECT: START}
    assert first_arrivals(ledger, settings, [PROJECT], TODAY, listing=listing) == {PROJECT: NEXT}
    assert first_arrivals(ledger, Settings(), [PROJECT], TODAY) == {PROJECT: BATCH.arrival_date}
    assert first_arrivals(ledger, settings, ["7"], TODAY) == {}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    known=st.sets(st.integers(0, 160), max_size=6),
    listed=st.sets(st.integers(0, 160), max_size=3),
    today=st.integers(0, 160),
)
def test_the_first_arrival_is_told_without_reading_all_that_came_later(
    ledger: Ledger, known: set[int], listed: set[int], today: int
) -> None:
    """Scenario: any recorded and listed days of any source. Outcome: the first of all together."""
    project = str(next(_NUMBERS))
    days = [START + timedelta(days=number) for number in sorted(known)]
    met = {START + timedelta(days=number) for number in listed}
    batches = [
        BatchRecord(BatchKey(list(Source)[number % 2], project, day), BatchVerdict.ACCEPTED, deliveries=1)
        for number, day in enumerate(days)
    ]
    ledger.record(Changes(batches=batches), "run")
    moment = START + timedelta(days=today)
    listing = Listing(arrival_days={project: frozenset(met)} if met else {})
    first = first_believable([*days, *met], moment)
    expected = {project: first} if first is not None else {}
    assert first_arrivals(ledger, Settings(), [project], moment, listing=listing) == expected
    last = max((day for day in days[::2] if day <= moment), default=moment)
    assert last_arrival(ledger, next(iter(Source)), [project], moment) == last


def test_strays_are_kept_as_the_last_look_found_them(folder: LandingFolder, ledger: Ledger) -> None:
    key = folder.deliver(FAR, [])
    listing = listed(folder, asked_for(Settings(), TODAY))
    for _ in range(2):
        ledger.strays.replace(Source.REGULAR, [PROJECT], listing.strays)
        assert list(ledger.strays.all([PROJECT])) == [key]
    ledger.strays.replace(Source.BACKFILL, [PROJECT], [])
    assert list(ledger.strays.all([PROJECT])) == [key]
    (one,) = listing.strays
    many = [replace(one, key=f"{number:03}", hour=number // 24, shard=number) for number in range(1000)]
    statements: list[bool] = []
    sa.event.listen(ledger.engine, "before_cursor_execute", lambda *found: statements.append(found[-1]))
    ledger.strays.replace(Source.REGULAR, [PROJECT], many)
    assert list(ledger.strays.all([PROJECT])) == [f"{number:03}" for number in (*range(100), *range(900, 1000))]
    assert (statements.count(True), len(statements) < 20) == (1, True)
    ledger.strays.replace(Source.REGULAR, [PROJECT], [])
    assert not ledger.strays.all([PROJECT])
