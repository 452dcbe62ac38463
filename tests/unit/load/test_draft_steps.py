"""A publish of several walks, and the slices that wait or go with others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from pipeline_assets.load.build.verdicts import blocked_by, links_of, waiting_reason
from pipeline_assets.load.draft import Draft, _TableDraft, condensed
from pipeline_assets.load.runtime import LoadRequest, Outcome, TableReport, merged
from pipeline_assets.tables.aggregates import DAILY_REVENUE
from pipeline_assets.tables.events import REFINED_EVENTS
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

PROJECT, REFINED, REVENUE, RAW = "10001", REFINED_EVENTS.key, DAILY_REVENUE.key, "raw/regular_events"
DAY, NEXT, FAR = (Slice(date(2026, 2, day), PROJECT) for day in (2, 3, 20))
ONE, TWO = Digest(1, 1, 1), Digest(2, 2, 2)


def a_walk(head: int, before: Digest, after: Digest, **more: Any) -> Changes:
    record = SliceRecord(REFINED, DAY, Verdict.PUBLISHED, digest=after, **more)
    publication = PublicationRecord(REFINED, DAY, 7, 6, before, after, Cause.of(CauseKind.DELIVERY), "run")
    return Changes(slices=[record], publications=[publication], head=(REFINED, head, 6))


def test_a_slice_is_told_of_once_by_the_last_walk() -> None:
    """Outcome: one publication from the state before both walks to the last; the last step moves the head."""
    first = a_walk(8, EMPTY, ONE, read_hash="before", is_final=True)
    second = a_walk(9, ONE, TWO, read_hash="between")
    (_, one), (_, other) = condensed([(REFINED, first), (REFINED, second)])
    assert (one.slices, one.publications, one.head) == ([], [], None)
    assert [(record.digest, record.read_hash) for record in other.slices] == [(TWO, "before")]
    assert [(record.digest_before, record.digest_after) for record in other.publications] == [(EMPTY, TWO)]
    assert other.head == (REFINED, 9, 6)


@pytest.fixture
def draft(ledger: Ledger) -> Draft:
    runtime: Any = SimpleNamespace(ledger=ledger, settings=Settings(projects=(PROJECT,), dedupe_window_days=2))
    now = datetime(2026, 2, 20, tzinfo=UTC)
    return Draft(runtime, LoadRequest((DAY.event_date,), (PROJECT,), frozenset(), "run", now))


def test_slices_that_exchange_events_go_together(draft: Draft) -> None:
    """Near days may have exchanged events, whichever raw days they came from; a distant one stays."""
    for table in (REFINED_EVENTS, DAILY_REVENUE):
        draft._tables[table.key] = _TableDraft(table, 1, 2, {DAY, NEXT, FAR})
    draft.record(DAILY_REVENUE, Changes(), {key: {(REFINED, key): ONE} for key in (DAY, NEXT, FAR)})
    gone, batches = draft._with_what_follows({(REFINED, DAY)})
    assert (gone, batches) == ({(REFINED, DAY), (REFINED, NEXT), (REVENUE, DAY), (REVENUE, NEXT)}, frozenset())


def test_a_batch_goes_with_any_of_its_days(draft: Draft) -> None:
    """Its other days go too, with its quarantine and everything built from any of them."""
    batch = BatchKey(Source.REGULAR, PROJECT, NEXT.event_date)
    part = BatchDay(ONE)
    draft.record(REFINED_EVENTS, Changes(batch_days={batch: {DAY.event_date: part, FAR.event_date: part}}))
    draft.record(REFINED_EVENTS, Changes(), {FAR: {(RAW, FAR): ONE}})
    gone, batches = draft._with_what_follows({(RAW, DAY)})
    assert (batches, gone) == ({batch}, {(RAW, DAY), (RAW, FAR), ("raw/quarantine", NEXT), (REFINED, FAR)})


TABLE, FIRST, SECOND, LATE = "refined/events", *(Slice(date(2026, 2, day), "10001") for day in (2, 3, 1))


def an_outcome(key: Slice, verdict: Verdict, **more: bool) -> Outcome:
    return Outcome(TABLE, key, verdict, **more)


def a_report(*outcomes: Outcome, seconds: float = 1.0, built: tuple[Slice, ...] = ()) -> TableReport:
    return TableReport(TABLE, outcomes, seconds=seconds, built=built)


def test_what_a_former_walk_published_stays_news() -> None:
    """Scenario: one of two days is lost to a writer of the same content. Outcome: it is unchanged, the other published."""
    late = an_outcome(LATE, Verdict.PUBLISHED, is_requested=False)
    published = [an_outcome(key, Verdict.PUBLISHED) for key in (FIRST, SECOND)]
    former = a_report(*published, late, built=(FIRST, SECOND))
    later = a_report(an_outcome(FIRST, Verdict.UNCHANGED), an_outcome(SECOND, Verdict.UNCHANGED), built=(SECOND,))
    told = merged(former, later, {FIRST, LATE})
    verdicts = {one.key: one.verdict for one in told.outcomes}
    assert verdicts == {FIRST: Verdict.PUBLISHED, SECOND: Verdict.UNCHANGED, LATE: Verdict.PUBLISHED}
    assert (told.outcomes[-1].key, told.seconds, told.built) == (LATE, 2.0, (FIRST, SECOND))


def test_a_late_day_that_was_lost_is_not_told() -> None:
    former = a_report(an_outcome(LATE, Verdict.PUBLISHED, is_requested=False))
    unchanged = an_outcome(FIRST, Verdict.UNCHANGED)
    assert merged(former, a_report(unchanged), ()).outcomes == (unchanged,)


def test_a_refusal_fails_the_run_after_a_second_walk_too() -> None:
    """The second walk finds the refusal on record, where it looks like an old one."""
    refused = an_outcome(FIRST, Verdict.REFUSED)
    assert refused.fails_the_run
    later = a_report(replace(refused, is_repeat=True))
    assert [one.fails_the_run for one in merged(a_report(refused), later, ()).outcomes] == [True]
    assert [one.fails_the_run for one in merged(None, later, ()).outcomes] == [False]


A, B, C, D = (Slice(date(2026, 2, 2) + timedelta(days=n), "1") for n in range(4))


@pytest.mark.parametrize(
    ("links", "blocked", "expected"),
    [
        ([], {A}, {}),
        ([(A, B)], set(), {}),
        ([(A, B)], {A}, {B: (A,)}),
        ([(B, A)], {A}, {B: (A,)}),
        ([(A, B), (B, C)], {A}, {B: (A,), C: (A,)}),
        ([(A, B), (C, D)], {A}, {B: (A,)}),
        ([(A, B), (B, C)], {A, C}, {B: (A, C)}),
        ([(A, B), (B, A)], {A, B}, {}),
    ],
)
def test_what_is_tied_to_a_blocked_slice_is_held_back(
    links: list[tuple[Slice, Slice]], blocked: set[Slice], expected: dict[Slice, tuple[Slice, ...]]
) -> None:
    assert blocked_by(links, blocked) == expected


def test_a_slice_that_stands_ties_nothing() -> None:
    assert links_of({(A, B), (B, C)}, blocked={C}, built={B}) == {(B, C)}


def test_the_reason_names_the_days() -> None:
    assert waiting_reason([A.event_date, C.event_date]).startswith("shares events with 2026-02-02, 2026-02-04,")
