"""A slice is final by the ledger alone: by closed batches and their clock, not by recovered hours alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import HOURS_HELD, MISSING, BatchRecord, InputDay, InputState, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.load.staleness.decide import SlicePlan, decide
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.staleness.scan import scan_stale_days
from pipeline_assets.tables.events import REFINED_EVENTS
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.cases import cases

PROJECT, DAY = "10001", date(2026, 2, 2)
KEY = Slice(DAY, PROJECT)
SETTINGS = Settings(projects=(PROJECT,))
NOON, SOON, AHEAD = (datetime(2026, month, day, 12, tzinfo=UTC) for month, day in ((2, 2), (2, 20), (6, 1)))
NEAR = SOON + timedelta(minutes=5)
REGULAR, BACKFILL = BatchKey(Source.REGULAR, PROJECT, DAY), BatchKey(Source.BACKFILL, PROJECT, DAY)
RAW = "raw/regular_events"
PUBLISHED = SliceRecord(
    REFINED_EVENTS.key, KEY, Verdict.PUBLISHED, digest=Digest(300, 1, 1),
    input_state=InputState({InputDay(RAW, DAY): Digest(300, 1, 1)}),
    code_version=REFINED_EVENTS.code_version(Settings()), figures={"rows": 300}, is_final=True,
)  # fmt: skip


def decided(ledger: Ledger, now: datetime, record: SliceRecord, batches: Sequence[BatchRecord]) -> SlicePlan:
    raw = SliceRecord(RAW, KEY, Verdict.PUBLISHED, digest=Digest(300, 1, 1))
    ledger.record(Changes(batches=list(batches), slices=[raw, record]), "run")
    facts = Facts.read(ledger, SETTINGS, {KEY}, [REFINED_EVENTS], now)
    (plan,) = decide(facts, REFINED_EVENTS, {KEY}, {}, now)
    return plan


def a_batch(key: BatchKey = REGULAR, **changes: object) -> BatchRecord:
    return replace(BatchRecord(key, BatchVerdict.ACCEPTED, deliveries=1, is_closed=True, hours=(10,)), **changes)  # type: ignore[arg-type]


@cases(
    ("final_at", "now", "was_final", "is_final", "since"),
    {
        "by a clock that was ahead": (AHEAD, NOON, False, False, None),
        "ahead, and closed meanwhile": (AHEAD, SOON, False, True, SOON),
        "now": (SOON, SOON, True, True, SOON),
        "long ago": (SOON, AHEAD, True, True, SOON),
        "by a host a little ahead of this one": (NEAR, SOON, True, True, NEAR),
        "too far ahead": (NEAR + timedelta(seconds=1), SOON, False, True, SOON),
        "older row, deadline ahead": (None, NOON, False, False, None),
        "older row, closed": (None, AHEAD, True, True, AHEAD),
    },
)
def test_no_finality_rests_on_a_time_that_has_not_come(
    ledger: Ledger, final_at: datetime | None, now: datetime, was_final: bool, is_final: bool, since: datetime | None
) -> None:
    record = replace(PUBLISHED, final_at=final_at and final_at.isoformat(), baseline=Baseline({"rows": 300}))
    found = decided(ledger, now, record, [a_batch()])
    assert (found.was_final, found.is_final, found.final_at) == (was_final, is_final, since and since.isoformat())
    stale = list(scan_stale_days(ledger, SETTINGS, now).values())
    reasons = [one.reason for slices in stale for one in slices if one.table == REFINED_EVENTS.key]
    expected = {(False, False): ["was judged final by a clock that was ahead"], (False, True): ["is final now"]}
    assert reasons == expected.get((was_final, is_final), [])


def test_a_refused_delivery_again_does_not_end_what_was_final_and_markers_close_before_a_deadline(
    ledger: Ledger,
) -> None:
    refused = [a_batch(verdict=BatchVerdict.REFUSED)]
    assert decided(ledger, SOON, replace(PUBLISHED, final_at=SOON.isoformat()), refused).was_final
    days = [replace(REGULAR, arrival_date=DAY + timedelta(days=shift)) for shift in range(4)]
    marked, early = [a_batch(key, hours_marked=24) for key in days], datetime(2026, 2, 6, 1, tzinfo=UTC)
    fresh = replace(PUBLISHED, is_final=False)
    assert decided(ledger, early, fresh, marked).is_final
    assert not decided(ledger, early, fresh, [replace(marked[3], hours_marked=23)]).is_final


@pytest.mark.parametrize(
    ("batches", "is_final"),
    [
        ([a_batch(BACKFILL)], False),
        ([a_batch(BACKFILL), a_batch(deliveries=0, hours=())], False),
        ([a_batch(BACKFILL, hours=tuple(range(24)))], True),
        ([a_batch(BACKFILL, hours=tuple(range(12))), a_batch(deliveries=0, hours=tuple(range(12, 24)))], True),
        ([a_batch(BACKFILL, hours=tuple(range(12))), a_batch(deliveries=0, hours=tuple(range(12)))], False),
        ([a_batch(BACKFILL), a_batch()], True),
        ([a_batch(BACKFILL, hours=None, hours_delivered=3)], False),
    ],
)
def test_recovered_hours_alone_make_no_day_final(ledger: Ledger, batches: list[BatchRecord], is_final: bool) -> None:
    found = decided(ledger, SOON, replace(PUBLISHED, is_final=False), batches)
    assert (found.is_final, ledger.batches([PROJECT], DAY, DAY)[batches[0].key].hours) == (is_final, batches[0].hours)


def test_a_day_whose_hours_never_came_is_provisional_and_bounded_until_they_come_or_are_let_go(ledger: Ledger) -> None:
    """Outcome: from the deadline on changes are bounded; complete or accepted hours make the day final."""
    warned = Evaluation(Check.DELIVERY_COMPLETE, False, figures={HOURS_HELD: 12})
    reconciled = Evaluation(Check.DELIVERY_RECONCILES, True)
    short = a_batch(hours=tuple(range(12)), evaluations=(reconciled, warned))
    fresh = replace(PUBLISHED, is_final=False)
    first = decided(ledger, SOON, fresh, [short])
    assert (first.is_final, first.is_settled, first.was_final, first.final_at) == (False, True, False, SOON.isoformat())
    stale = [one for slices in scan_stale_days(ledger, SETTINGS, SOON).values() for one in slices]
    assert "its deadline has passed, and hours of it are missing" in {one.reason for one in stale}
    kept = replace(fresh, final_at=SOON.isoformat(), baseline=Baseline({"rows": 300}))
    later = decided(ledger, AHEAD, kept, [short])
    assert (later.is_final, later.was_final, later.final_at) == (False, True, SOON.isoformat())
    stale = [one for slices in scan_stale_days(ledger, SETTINGS, AHEAD).values() for one in slices]
    assert not [one for one in stale if one.table == REFINED_EVENTS.key]
    assert not decided(ledger, NOON, kept, [short]).was_final, "judged by a clock that was ahead"
    let_go = replace(short, evaluations=(replace(reconciled, figures={MISSING: 1}),))
    next_day = replace(short, key=replace(REGULAR, arrival_date=DAY + timedelta(days=1)))
    assert decided(ledger, AHEAD, fresh, [a_batch(), next_day]).is_final, "only its own hours keep a day provisional"
    for batches in ([let_go], [short, a_batch(BACKFILL, hours=tuple(range(12, 24)))]):
        found = decided(ledger, AHEAD, kept, batches)
        assert (found.is_final, found.was_final) == (True, True)
