"""When an hour is complete and a batch is due, by listing, ledger and earlier looks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.records import MISSING, BatchRecord
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.load.deliveries.readiness import ArrivalStatus, HourObservation, evaluate_arrivals, state_of
from pipeline_assets.load.staleness.finality import lacks_hours
from pipeline_assets.orchestration.sensor_requests import Attempt, Cursor, Subject, admit, attempted
from tests.unit.load.test_batches import BATCH, a_delivery, a_record, absent_of, an_exclusion, markers_of, plans_of

PROJECT, DAY, BACKFILL = BATCH.project_id, BATCH.arrival_date, replace(BATCH, source=Source.BACKFILL)
NOON = datetime(2026, 2, 2, 12, tzinfo=UTC)
PAST = datetime(2026, 2, 6, tzinfo=UTC)
STATE = "state"
QUIET: dict[str, Any] = {"hours_complete_by": Completeness.QUIET}
TWO = BatchRecord(BACKFILL, BatchVerdict.ACCEPTED, deliveries=2, hours=(3, 4))
"""A recovery of two hours."""


def a_status(
    *args: Any, now: datetime = NOON, seen: dict[str, HourObservation] | None = None, **options: Any
) -> ArrivalStatus:
    sensor = {
        name: options.pop(name) for name in ("hours_complete_by", "load_open_days", "quiet_minutes") if name in options
    }
    first = {PROJECT: options.pop("first", DAY)}
    if "first_arrival" in options:
        sensor["first_arrival"] = options["first_arrival"]
    elsewhere = [replace(BATCH, source=source) for source in Source if options.get("is_elsewhere")]
    options.pop("is_elsewhere", None)
    plans = plans_of(*args, now=now, **options)
    return evaluate_arrivals(plans, first, elsewhere, seen or {}, Settings(**sensor), now)


def rested(status: ArrivalStatus, minutes: int = 15) -> dict[str, HourObservation]:
    """As if seen first so long ago."""
    return {
        name: replace(one, since=one.since - timedelta(minutes=minutes)) for name, one in status.observations.items()
    }


@pytest.mark.parametrize(
    ("markers", "options", "due"),
    [
        ([], {}, None),
        ([9], {}, None),
        ([10], {}, "new hours: 1"),
        (range(24), {}, "new hours: 1"),
        ([10], {"load_open_days": False}, None),
        (range(24), {"load_open_days": False}, "new hours: 1"),
        ([], {"now": PAST}, "new hours: 1"),
        ([], {"now": PAST, "load_open_days": False}, "new hours: 1"),
        ([10], QUIET, None),
        ([], {**QUIET, "load_open_days": False, "quiet_minutes": 0}, None),
        ([], {**QUIET, "load_open_days": False, "quiet_minutes": 0, "now": PAST}, "new hours: 1"),
    ],
)
def test_a_new_hour_is_due_when_its_exporter_says_so_or_its_time_is_up(
    markers: Any, options: dict[str, Any], due: str | None
) -> None:
    status = a_status([a_delivery(10)], markers=markers_of(markers), **options)
    assert status.due.get(BATCH) == due
    assert (BATCH in status.waiting) == (due is None)
    by_rest = options.get("hours_complete_by") is Completeness.QUIET
    assert set(status.observations) == ({f"{BATCH}/10"} if by_rest else set())


def test_without_markers_an_hour_is_complete_when_it_rests() -> None:
    """Outcome: the batch is due after the quiet time, counted from the last change."""
    quiet = {**QUIET, "quiet_minutes": 15}
    first = a_status([a_delivery(10)], **quiet)
    grown = a_status([a_delivery(10), a_delivery(10, 2)], seen=rested(first), **quiet)
    assert not grown.due
    almost = a_status([a_delivery(10), a_delivery(10, 2)], seen=rested(grown, 14), **quiet)
    assert (almost.waiting, almost.observations) == ({BATCH: "hours 10 are not complete yet"}, rested(grown, 14))
    assert a_status([a_delivery(10), a_delivery(10, 2)], seen=rested(grown, 15), **quiet).due == {BATCH: "new hours: 1"}


@pytest.mark.parametrize(
    ("listed", "kind"),
    [
        ([a_delivery(9), a_delivery(10, etag="e2")], "changed"),
        ([a_delivery(9), a_delivery(10), a_delivery(10, 2)], "changed"),
        ([a_delivery(9)], "gone"),
        ([a_delivery(9), a_delivery(10, 2)], "changed"),
    ],
)
def test_what_happens_to_a_loaded_hour_is_due_when_it_rests_whatever_its_marker_said(listed: Any, kind: str) -> None:
    recorded, markers = [a_record(9), a_record(10)], markers_of(range(24))
    prior = BatchRecord(BATCH, BatchVerdict.ACCEPTED, deliveries=2, is_closed=True)
    status = partial(a_status, listed, recorded, markers=markers, priors=[prior])
    assert status().due == status(now=PAST).due == {}
    assert status(seen=rested(status())).due == {BATCH: f"{kind} hours: 1"}


def test_complete_hours_do_not_wait_for_incomplete_ones() -> None:
    status = a_status([a_delivery(hour) for hour in (9, 10, 11)], markers=markers_of([9, 11]))
    assert status.due == {BATCH: "new hours: 2"}


def _prior(verdict: BatchVerdict, **changes: Any) -> BatchRecord:
    return BatchRecord(BATCH, verdict, **{"deliveries": 1, **changes})


ALL = markers_of(range(24))
_MISSED = Evaluation(Check.DELIVERY_RECONCILES, False, "missing", "", {MISSING: 1})


@pytest.mark.parametrize(
    ("prior", "recorded", "options", "due"),
    [
        (None, [], {}, None),
        (None, [], {"now": PAST}, "its deadline has passed without a delivery"),
        (None, [], {"now": PAST, "first": DAY + timedelta(days=1)}, None),
        (_prior(BatchVerdict.WAITING), [], {"now": PAST}, "its deadline has passed without a delivery"),
        (_prior(BatchVerdict.REFUSED), [], {"now": PAST}, None),
        (
            _prior(BatchVerdict.REFUSED),
            [],
            {"now": PAST, "markers": ALL},
            "all hours have markers, and none has events",
        ),
        (_prior(BatchVerdict.REFUSED), [], {"now": PAST, "is_elsewhere": True}, "the other source delivered it"),
        (None, [], {"markers": ALL}, "all hours have markers"),
        (None, [], {"markers": ALL, "first": DAY + timedelta(days=1)}, None),
        (_prior(BatchVerdict.ACCEPTED, deliveries=0), [], {"markers": ALL}, None),
        (_prior(BatchVerdict.MOVED), [a_record()], {}, "objects changed while they were read"),
        (_prior(BatchVerdict.ACCEPTED), [a_record()], {}, None),
        (_prior(BatchVerdict.ACCEPTED), [a_record()], {"now": PAST}, "it is closed now"),
        (_prior(BatchVerdict.ACCEPTED, is_closed=True), [a_record()], {"now": PAST}, None),
        (_prior(BatchVerdict.ACCEPTED, deliveries=0), [], {"now": PAST}, None),
        (_prior(BatchVerdict.REFUSED, evaluations=(_MISSED,)), [a_record()], {}, "what was missing is back"),
    ],
)
def test_a_batch_without_news_is_due_when_its_standing_changes(
    prior: BatchRecord | None, recorded: Any, options: dict[str, Any], due: str | None
) -> None:
    listed = [a_delivery()] if recorded else []
    status = a_status(listed, recorded, priors=[prior] if prior else [], **options)
    assert (status.due.get(BATCH, "nothing").startswith(due)) if due else not status.due


@pytest.mark.parametrize("verdict", [BatchVerdict.WAITING, BatchVerdict.REFUSED])
def test_a_recovery_that_was_asked_for_in_vain_is_due_once_the_regular_exports_tell_the_day(
    verdict: BatchVerdict,
) -> None:
    """Outcome: the day is loaded once more; one that nobody requested, or that still lacks hours, is not."""
    asked = BatchRecord(BACKFILL, verdict)
    empty = BatchRecord(BATCH, BatchVerdict.ACCEPTED, hours_marked=24, hours=tuple(range(24)))
    told: dict[str, Any] = {"source": Source.BACKFILL, "now": PAST}
    assert a_status(priors=[asked, empty], **told).due == {asked.key: "all hours have markers, and none has events"}
    some = replace(empty, deliveries=3, hours=(3, 4, 5))
    assert a_status(priors=[asked, some], is_elsewhere=True, **told).due == {asked.key: "the other source delivered it"}
    assert not a_status(priors=[asked, replace(empty, hours=tuple(range(23)))], **told).due
    assert not a_status(priors=[empty], **told).due
    assert not a_status(priors=[replace(asked, verdict=BatchVerdict.ACCEPTED), empty], **told).due


def test_what_a_person_ruled_out_is_due_like_what_is_gone() -> None:
    """Outcome: exclusion and inclusion each make the batch due once it rests, as a new state without failed attempts."""
    listed, prior = [a_delivery(9), a_delivery(10)], _prior(BatchVerdict.ACCEPTED, deliveries=2, is_closed=True)
    options: dict[str, Any] = {"priors": [prior], "markers": ALL}
    excluded = {"exclusions": [an_exclusion(10)]}
    both = [a_record(9), a_record(10)]
    first = a_status(listed, both, **options, **excluded)
    assert not first.due
    assert a_status(listed, both, seen=rested(first), **options, **excluded).due == {BATCH: "gone hours: 1"}
    assert not a_status(listed, both[:1], **options, **excluded).waiting
    assert a_status(listed, both[:1], **options).due == {BATCH: "new hours: 1"}
    with_it, without = (plans_of(listed, both, **options, **more)[BATCH] for more in ({}, excluded))
    assert state_of(with_it, Settings()) != state_of(without, Settings())


def test_what_stands_refused_is_left_alone_until_it_changes() -> None:
    """Scenario: a batch refused as unreadable, and one as missing. Outcome: only another state is due."""
    listed = [a_delivery(9), a_delivery(10)]
    (plan,) = plans_of(listed, now=NOON).values()
    refused = _prior(BatchVerdict.REFUSED, input_state=plan.input_state(Settings()))
    marked = markers_of(range(24))
    assert not a_status(listed, priors=[refused], markers=marked).due
    assert a_status([a_delivery(9), a_delivery(10, etag="e2")], priors=[refused], markers=marked).due
    for there in ([a_delivery(9)], []):
        (plan,) = plans_of(there, [a_record(9), a_record(10)], now=NOON).values()
        missing = _prior(BatchVerdict.REFUSED, evaluations=(_MISSED,), input_state=plan.input_state(Settings()))
        gone = a_status(there, [a_record(9), a_record(10)], priors=[missing], markers=marked)
        assert (gone.due, gone.waiting) == ({}, {})


def test_another_state_is_another_reason_to_try() -> None:
    first, other = a_delivery(), a_delivery(etag="e2")
    looks = ((first, [], NOON), (other, [], NOON), (first, [10], NOON), (first, [], PAST))
    plans = [plans_of([one], markers=markers_of(hours), now=now)[BATCH] for one, hours, now in looks]
    assert len({state_of(plan, Settings()) for plan in plans}) == len(looks)


def test_attempts_are_bounded_and_pause_longer_each_time() -> None:
    day, other = (Subject(one, one) for one in (date(2026, 2, 2), date(2026, 2, 3)))
    assert admit({day: STATE}, {}, NOON, 3).admitted == [day]
    attempts = attempted({day: STATE, other: STATE}, {}, [day], NOON)
    assert attempts == {day: Attempt(STATE, 1, NOON)}
    soon = admit({day: STATE, other: STATE}, attempts, NOON + timedelta(minutes=4), 3)
    assert (soon.admitted, soon.paused) == ([other], [day])
    assert admit({day: STATE}, attempts, NOON + timedelta(minutes=5), 3).admitted == [day]
    second = attempted({day: STATE}, attempts, [day], NOON)
    assert second[day].next_at == NOON + timedelta(minutes=10)
    assert admit({day: STATE}, {day: Attempt(STATE, 3, NOON)}, PAST, 3).given_up == [day]
    assert admit({day: "new"}, {day: Attempt(STATE, 3, NOON)}, PAST, 3).admitted == [day]
    # A dead run is no fault of its day: retries go on, with pauses that grow to most of a day.
    assert admit({day: STATE}, {day: Attempt(STATE, 3, NOON)}, NOON, 3, lambda _: True).paused == [day]
    tomorrow, tried = NOON + timedelta(days=1), {day: Attempt(STATE, 99, NOON)}
    assert admit({day: STATE}, tried, tomorrow, 3, lambda _: True).admitted == [day]
    assert attempted({}, second, [], NOON) == {}
    assert attempted({}, second, [], NOON, lambda looked_at: looked_at != day) == second


def test_another_state_counts_anew_whether_or_not_it_was_looked_at() -> None:
    """Outcome: the first attempt of three; nothing of the given-up state is left."""
    day = Subject(DAY, DAY)
    before = {day: Attempt("s1", 3, NOON, is_given_up=True)}
    assert attempted({day: "s2"}, before, [day], PAST, lambda _: False) == {day: Attempt("s2", 1, PAST)}
    assert attempted({day: "s2"}, before, [], PAST, lambda _: False) == {}
    assert attempted({day: "s1"}, {day: Attempt("s1", 3, NOON)}, [], PAST, given_up=[day]) == before
    assert attempted({}, before, [], PAST, lambda _: False) == before


def test_what_is_due_of_one_day_for_several_reasons_is_counted_apart() -> None:
    """Scenario: a day outside of the calendar, an interval and a day of its own are built by the same load."""
    own, outside, interval = Subject(DAY, DAY), Subject(date(2015, 1, 1), DAY), Subject(DAY, DAY, "dimensions/items")
    attempts = attempted(dict.fromkeys([own, outside, interval], STATE), {}, [outside, interval], NOON)
    assert admit(dict.fromkeys([own, outside, interval], STATE), attempts, NOON, 3).admitted == [own]
    asked: list[date] = []
    admit({outside: STATE}, {outside: Attempt(STATE, 3, NOON)}, PAST, 3, lambda day: bool(asked.append(day)))
    assert asked == [DAY]
    assert attempted({}, attempts, [], NOON, lambda subject: subject != outside) == {outside: Attempt(STATE, 1, NOON)}
    cursor = Cursor(attempts=attempts)
    assert Cursor.parse(cursor.as_text()) == cursor


def test_a_cursor_comes_back_as_it_was() -> None:
    seen, attempts = {f"{BATCH}/1": HourObservation("x", NOON)}, {Subject(DAY, DAY): Attempt(STATE, 2, NOON)}
    cursor = Cursor(seen, attempts, {"2026-02-02": "y"}, DAY)
    assert (Cursor.parse(cursor.as_text()), Cursor.parse(None)) == (cursor, Cursor())
    said = cursor.as_text()
    for text in ("{", "[]", "null", '{"seen": []}', said.replace("Z", ""), said.replace('"count":2', '"count":0')):
        with pytest.raises(ValueError, match=r".+"):
            Cursor.parse(text)


def test_recoveries_rest_before_they_are_loaded() -> None:
    status = partial(a_status, source=Source.BACKFILL, now=PAST)
    first = status([a_delivery(batch=BACKFILL)])
    assert first.waiting
    assert status([a_delivery(batch=BACKFILL)], seen=rested(first)).due == {BACKFILL: "new hours: 1"}
    assert not status().due


def test_a_project_begins_for_sensors_where_it_begins_for_loads() -> None:
    """Scenario: recoveries before the first regular day, which begins at 14:00. Outcome: it lacks hours for both."""
    hours = range(14, 24)
    known: dict[str, Any] = {"recorded": [a_record(hour) for hour in hours], "markers": markers_of(hours), "now": PAST}
    came = [a_delivery(hour) for hour in hours]
    passed = Evaluation(Check.DELIVERY_RECONCILES, True)
    short = plans_of(came, **known)[BATCH].record(BatchVerdict.ACCEPTED, passed, Settings())
    plans, firsts = plans_of(came, priors=[short], **known), {PROJECT: DAY}
    assert not evaluate_arrivals(plans, firsts, (), {}, Settings(), PAST, {PROJECT: DAY - timedelta(days=9)}).due
    assert "were never its own" in evaluate_arrivals(plans, firsts, (), {}, Settings(), PAST, firsts).due[BATCH]


def test_a_time_later_than_now_is_taken_as_now_and_not_waited_for() -> None:
    ahead = NOON + timedelta(days=30)
    seen = a_status([a_delivery(10)], now=ahead, **QUIET).observations
    day = Subject(DAY, DAY)
    cursor = Cursor(dict(seen), {day: Attempt(STATE, 1, ahead)}).as_of(NOON)
    later = NOON + timedelta(minutes=15)
    assert a_status([a_delivery(10)], now=later, seen=cursor.as_of(later).seen, **QUIET).due == {BATCH: "new hours: 1"}
    assert admit({day: STATE}, cursor.attempts, later, 3).admitted == [day]
    assert Cursor.parse(cursor.as_text()) == cursor == cursor.as_of(later)


def test_a_partly_recovered_day_is_told_until_its_hours_are_there_or_a_person_lets_them_go() -> None:
    plan = plans_of(priors=[TWO], now=PAST)[BATCH]
    _, evaluation = absent_of(plan, PAST, is_elsewhere=True)
    record = plan.record(BatchVerdict.ACCEPTED, evaluation, Settings())
    warning = record.evaluations[1]
    assert (warning.check, warning.is_passed) == (Check.DELIVERY_COMPLETE, False)
    assert "2 of 24 hours" in str(warning.reason)
    assert (lacks_hours(record, TWO), lacks_hours(None, TWO)) == (True, True)

    again = a_status(priors=[TWO, record], now=PAST, is_elsewhere=True)
    assert not again.due
    assert "2 of 24 hours" in again.waiting[BATCH]
    more = a_status(priors=[replace(TWO, hours=(3, 4, 5)), record], now=PAST, is_elsewhere=True)
    assert more.due == {BATCH: "the other source holds other hours of it than before"}

    whole = replace(TWO, hours=tuple(range(24)))
    complete = plans_of(priors=[whole], now=PAST)[BATCH].record(BatchVerdict.ACCEPTED, evaluation, Settings())
    assert (complete.evaluations[1].is_passed, lacks_hours(record, whole)) == (True, False)
    let_go = replace(record, evaluations=(replace(evaluation, figures={MISSING: 1}),))
    assert (lacks_hours(let_go, TWO), lacks_hours(replace(record, deliveries=3, evaluations=()), TWO)) == (False, False)
    assert not a_status(priors=[TWO, let_go], now=PAST, is_elsewhere=True).waiting


@pytest.mark.parametrize(
    ("first", "now"),
    [(DAY, NOON), (DAY, PAST), (DAY + timedelta(days=40), PAST)],
    ids=["before its deadline", "past it", "alone before the believed first arrival"],
)
def test_what_is_told_to_be_missing_can_be_let_go(first: date, now: datetime) -> None:

    def load(reasons: dict[date, str]) -> tuple[BatchRecord, str]:
        plan = plans_of(priors=[TWO], now=now, reasons=reasons)[BATCH]
        verdict = absent_of(plan, now, first=first, is_elsewhere=True)
        return plan.record(*verdict, Settings()), replace(plan, verdict=verdict).told_loss(Settings())

    warned, _ = load({})
    assert "--accept-missing" in str(warned.evaluations[1].hint)
    assert BATCH in a_status(priors=[TWO, warned], now=now, first=first, is_elsewhere=True).waiting
    let_go, told = load({DAY: "the vendor lost them"})
    assert "is let go whole" in told
    assert let_go.is_decided
    assert all(evaluation.is_passed for evaluation in let_go.evaluations)
    after = a_status(priors=[TWO, let_go], now=now, first=first, is_elsewhere=True)
    assert (after.due, after.waiting) == ({}, {})


def test_nothing_of_a_day_before_a_configured_first_arrival_is_told_to_be_missing() -> None:
    start = DAY + timedelta(days=1)
    plan = plans_of(priors=[TWO], now=PAST, first_arrival=start)[BATCH]
    verdict = absent_of(plan, PAST, first=start, is_elsewhere=True)
    record = plan.record(*verdict, Settings())
    assert all(evaluation.is_passed for evaluation in record.evaluations)
    status = partial(a_status, now=PAST, first=start, first_arrival=start, is_elsewhere=True)
    settled = status(priors=[TWO, record])
    assert (settled.due, settled.waiting) == ({}, {})
    # A start that is named later takes the warning back by one load.
    warned = plans_of(priors=[TWO], now=PAST)[BATCH].record(*verdict, Settings())
    assert status(priors=[TWO, warned]).due
