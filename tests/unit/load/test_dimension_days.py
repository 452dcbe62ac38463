"""Rules over facts: when a snapshot is loaded, and which items a day uses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.checks import UNREAD_OBJECTS, Check, CheckRule, Evaluation
from pipeline_assets.domain.deliveries import SnapshotDelivery
from pipeline_assets.domain.records import InputDay, InputState, Rejection, SliceRecord
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Verdict
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts, counts_on_record, judging
from pipeline_assets.load.staleness.scan import decide_with_neighbours
from pipeline_assets.tables.dimension import ACTIVE_ITEM_EVENTS, ITEM
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

PROJECT, DAY = "10001", date(2026, 2, 4)
BEFORE, LONG_BEFORE = DAY - timedelta(days=1), DAY - timedelta(days=5)
EARLY, LATE = datetime(2026, 2, 5, tzinfo=UTC), datetime(2026, 2, 20, tzinfo=UTC)
MONTH = date(2026, 2, 1)
SNAPSHOT, VALIDITY = ITEM.snapshot, ITEM.validity
HELD = Digest(3, 1, 1)
BRIDGED: dict[str, Any] = {"missing_snapshot": MissingSnapshot.PREVIOUS}


def listed(day: date = DAY, **more: Any) -> SnapshotDelivery:
    return SnapshotDelivery(
        **{"key": f"dimensions/item/{day}.csv", "etag": "v1", "size_bytes": 9, "is_marked": True, **more}
    )


def snapshot(day: date = DAY, verdict: Verdict = Verdict.PUBLISHED, **more: Any) -> SliceRecord:
    state = InputState(delivered=listed(day).version)
    code = SNAPSHOT.code_version(Settings())
    values = {"digest": HELD, "input_state": state, "code_version": code, **more}
    return SliceRecord(SNAPSHOT.key, Slice(day, ALL_PROJECTS), verdict, **values)


def of_snapshot(
    record: SliceRecord | None, one: SnapshotDelivery | None, now: datetime = LATE, **settings: Any
) -> SlicePlan:
    """The plan of a requested day's snapshot, with earlier ones on record."""
    key = Slice(DAY, ALL_PROJECTS)
    first, counts = settings.pop("first", LONG_BEFORE), settings.pop("item_counts", None)
    facts = Facts(
        Settings(**settings), frozenset({key}), {}, {},
        records={SNAPSHOT.key: {} if record is None else {key: record}},
        delivered={} if one is None else {key: one},
        first_snapshots={} if first is None else {SNAPSHOT.key: first},
        item_counts=counts,
    )  # fmt: skip
    (plan,) = decide(facts, SNAPSHOT, [key], {}, now)
    return plan


@pytest.mark.parametrize(
    ("record", "one", "now", "todo", "is_early", "reason"),
    [
        (None, listed(), EARLY, Todo.REBUILD, False, None),
        (None, listed(is_marked=False), EARLY, Todo.WAIT, True, "has no marker yet"),
        (None, listed(is_marked=False), LATE, Todo.REBUILD, False, None),
        (None, None, EARLY, Todo.WAIT, True, "is not delivered yet"),
        (None, None, LATE, Todo.WAIT, False, "by its deadline (missing_snapshot = wait)"),
        (snapshot(), listed(), LATE, Todo.KEEP, False, None),
        (snapshot(), listed(is_marked=False), EARLY, Todo.KEEP, False, None),
        (snapshot(), listed(etag="v2"), LATE, Todo.REBUILD, False, None),
        (snapshot(), None, LATE, Todo.KEEP, False, None),
        (snapshot(input_state=None), None, LATE, Todo.WAIT, False, "is not what a load published"),
        (snapshot(input_state=None), listed(), LATE, Todo.REBUILD, False, None),
        (snapshot(), listed(others=("dimensions/item/x.jsonl v1",)), LATE, Todo.REFUSE, False, "are both the snapshot"),
    ],
)
def test_a_snapshot_is_loaded_when_it_is_marked_or_late_and_again_when_another_version_lies_there(
    record: SliceRecord | None,
    one: SnapshotDelivery | None,
    now: datetime,
    todo: Todo,
    is_early: bool,
    reason: str | None,
) -> None:
    plan = of_snapshot(record, one, now)
    assert (plan.todo, plan.is_early) == (todo, is_early)
    assert reason is None or reason in (plan.reason or "")


def test_a_day_before_the_first_snapshot_and_a_bridged_one_are_empty_and_nothing_at_all_says_so() -> None:
    for settings in ({"first": DAY + timedelta(days=1)}, BRIDGED):
        assert of_snapshot(None, None, **settings).todo is Todo.KEEP
    nothing = of_snapshot(None, None, first=None)
    assert (nothing.todo, nothing.reason) == (Todo.WAIT, "landing holds no snapshot of the dimension at all")


def refused(check: CheckRule, figures: dict[str, float], day: date = DAY, digest: Digest = EMPTY) -> SliceRecord:
    rejection = Rejection(InputState(delivered=listed(day).version), judging(SNAPSHOT, Settings()))
    known = {"digest": digest, "input_state": None, "rejection": rejection}
    failure = Evaluation(check, False, "is bad", "correct it", figures)
    return snapshot(day, Verdict.REFUSED, refused_evaluations=(failure,), **known)


def test_a_refused_version_is_not_read_again_but_one_that_could_not_be_read_is() -> None:
    for figures, todo in (({}, Todo.KEEP_REFUSED), ({UNREAD_OBJECTS: 1}, Todo.REBUILD)):
        assert of_snapshot(refused(Check.SNAPSHOT_IS_WHOLE, figures), listed()).todo is todo


def intervals_of(states: Mapping[InputDay, Digest], month: date = MONTH, **more: Any) -> SliceRecord:
    key = Slice(month, ALL_PROJECTS)
    return SliceRecord(VALIDITY.key, key, Verdict.PUBLISHED, input_state=InputState(states), **more)


def of_events(
    snapshots: Mapping[date, SliceRecord],
    now: datetime = LATE,
    *,
    intervals: SliceRecord | None = None,
    released: frozenset[tuple[str, Slice]] = frozenset(),
    first: date | None = LONG_BEFORE,
    **settings: Any,
) -> SlicePlan:
    """The plan of a day with events; by default intervals come from all published snapshots."""
    key = Slice(DAY, PROJECT)
    states = {InputDay(SNAPSHOT.key, day): record.digest for day, record in snapshots.items()}
    built = intervals_of(states, digest=HELD)
    facts = Facts(
        Settings(projects=(PROJECT,), **settings), frozenset({key}), {}, {PROJECT: LONG_BEFORE},
        records={
            ACTIVE_ITEM_EVENTS.key: {},
            "refined/events": {key: SliceRecord("refined/events", key, Verdict.PUBLISHED, digest=Digest(7, 1, 1))},
            SNAPSHOT.key: {record.key: record for record in snapshots.values()},
            VALIDITY.key: {(intervals or built).key: intervals or built},
        },
        first_snapshots={} if first is None else {SNAPSHOT.key: first},
        released=released,
    )  # fmt: skip
    (plan,) = decide(facts, ACTIVE_ITEM_EVENTS, [key], {}, now)
    return plan


def used(plan: SlicePlan) -> set[date]:
    return {name.day for name in plan.present.upstream if name.table == SNAPSHOT.key}


def test_the_snapshot_of_the_day_stands_for_it_and_no_other() -> None:
    later = DAY + timedelta(days=1)
    plan = of_events({day: snapshot(day) for day in (BEFORE, DAY, later)})
    assert (plan.todo, used(plan)) == (Todo.REBUILD, {DAY})


@pytest.mark.parametrize(
    ("policy", "now", "todo", "days", "reason"),
    [
        (MissingSnapshot.WAIT, EARLY, Todo.WAIT, set(), "is not delivered yet"),
        (MissingSnapshot.WAIT, LATE, Todo.WAIT, set(), "has no snapshot of 2026-02-04 (missing_snapshot = wait)"),
        (MissingSnapshot.REFUSE, EARLY, Todo.WAIT, set(), "is not delivered yet"),
        (MissingSnapshot.REFUSE, LATE, Todo.REFUSE, set(), "(missing_snapshot = refuse)"),
        (MissingSnapshot.PREVIOUS, EARLY, Todo.WAIT, set(), "is not delivered yet"),
        (MissingSnapshot.PREVIOUS, LATE, Todo.REBUILD, {BEFORE}, None),
    ],
)
def test_a_day_without_a_snapshot_is_handled_as_the_settings_say_and_never_by_a_later_one(
    policy: MissingSnapshot, now: datetime, todo: Todo, days: set[date], reason: str | None
) -> None:
    later = DAY + timedelta(days=1)
    plan = of_events({day: snapshot(day) for day in (LONG_BEFORE, BEFORE, later)}, now, missing_snapshot=policy)
    assert (plan.todo, used(plan), plan.is_early) == (todo, days, now is EARLY)
    assert reason is None or reason in (plan.reason or "")


def test_a_previous_snapshot_reaches_as_far_as_the_settings_say() -> None:
    held = {LONG_BEFORE: snapshot(LONG_BEFORE)}
    january = intervals_of({InputDay(SNAPSHOT.key, LONG_BEFORE): HELD}, date(2026, 1, 1))
    plan = of_events(held, **BRIDGED, previous_snapshot_days=5, intervals=january)
    assert (plan.todo, used(plan)) == (Todo.REBUILD, {LONG_BEFORE})
    plan = of_events(held, **BRIDGED, previous_snapshot_days=4)
    assert (plan.todo, used(plan)) == (Todo.WAIT, set())
    assert "none of the 4 days before it" in (plan.reason or "")


def test_events_wait_for_refused_and_held_snapshots_and_for_intervals_that_lag() -> None:
    for verdict in (Verdict.REFUSED, Verdict.HELD):
        plan = of_events({BEFORE: snapshot(BEFORE), DAY: snapshot(DAY, verdict)})
        assert (plan.todo, plan.reason) == (Todo.WAIT, f"dimensions/item_snapshot 2026-02-04 is {verdict.value}")
    # A refused delivery is not missing: the one before does not replace it.
    refused_day = snapshot(DAY, Verdict.REFUSED, digest=EMPTY)
    assert of_events({BEFORE: snapshot(BEFORE), DAY: refused_day}, **BRIDGED).todo is Todo.WAIT
    released = frozenset({(SNAPSHOT.key, Slice(DAY, ALL_PROJECTS))})
    assert of_events({DAY: snapshot(DAY, Verdict.HELD)}, released=released).todo is Todo.REBUILD
    lagging = intervals_of({InputDay(SNAPSHOT.key, DAY): Digest(2, 2, 2)})
    plan = of_events({DAY: snapshot(DAY)}, intervals=lagging)
    assert plan.reason == "dimensions/item_validity 2026-02 is not built from the snapshot of 2026-02-04 yet"


def test_before_the_first_snapshot_nothing_is_counted_and_nothing_waits() -> None:
    for first in (None, DAY + timedelta(days=1)):
        plan = of_events({}, EARLY, first=first)
        assert (plan.todo, plan.present.upstream.keys()) == (Todo.KEEP, {InputDay("refined/events", DAY)})


def test_intervals_of_a_month_are_built_from_its_published_days_whatever_was_refused_since() -> None:
    key = Slice(MONTH, ALL_PROJECTS)
    days = [snapshot(DAY, Verdict.HELD), snapshot(BEFORE, Verdict.REFUSED), snapshot(LONG_BEFORE), snapshot(MONTH)]
    records = {SNAPSHOT.key: {record.key: record for record in days}, VALIDITY.key: {}}
    facts = Facts(Settings(), frozenset({key}), {}, {}, records=records)
    (plan,) = decide(facts, VALIDITY, (), {}, LATE)
    assert (plan.todo, {name.day for name in plan.present.upstream}) == (Todo.REBUILD, {DAY, BEFORE, MONTH})


@pytest.mark.parametrize("verdict", [Verdict.HELD, Verdict.REFUSED])
@pytest.mark.parametrize("first", [None, DAY + timedelta(days=1)])
def test_a_day_whose_only_snapshot_was_rolled_back_or_refused_is_not_before_the_first(
    verdict: Verdict, first: date | None
) -> None:
    plan = of_events({DAY: snapshot(DAY, verdict, digest=EMPTY)}, first=first)
    assert (plan.todo, plan.reason) == (Todo.WAIT, f"dimensions/item_snapshot 2026-02-04 is {verdict.value}")


@pytest.mark.parametrize(
    ("counts", "todo"),
    [
        (None, Todo.KEEP_REFUSED),
        ({BEFORE: 300, DAY: 3}, Todo.KEEP_REFUSED),
        ({BEFORE: 3}, Todo.REBUILD),
        ({}, Todo.REBUILD),
        ({LONG_BEFORE: 3, BEFORE: 300}, Todo.KEEP_REFUSED),
    ],
)
def test_a_refused_count_is_judged_again_when_it_was_compared_with_what_is_no_longer_on_record(
    counts: Mapping[date, int] | None, todo: Todo
) -> None:
    record = refused(Check.COUNT_IS_EXPECTED, {"rows_before": 300, "rows_after": 7})
    assert of_snapshot(record, listed(), item_counts=counts).todo is todo


NOW = datetime(2026, 6, 1, tzinfo=UTC)


def on(number: int) -> date:
    return DAY + timedelta(days=number)


def published(day: date, rows: int) -> SliceRecord:
    return snapshot(day, digest=Digest(rows, 1, 1))


def refused_beside(
    before: int, day: date, check: CheckRule = Check.COUNT_IS_EXPECTED, digest: Digest = EMPTY
) -> SliceRecord:
    return refused(check, {"rows_before": before, "rows_after": 300}, day, digest)


def plans_near(ledger: Ledger, day: date, delivered: dict[date, SnapshotDelivery]) -> dict[date, SlicePlan]:
    key = Slice(day, ALL_PROJECTS)
    facts = Facts(
        Settings(), frozenset({key}), {}, {},
        delivered={Slice(day, ALL_PROJECTS): one for day, one in delivered.items()},
        first_snapshots={SNAPSHOT.key: DAY},
        item_counts=counts_on_record(ledger, SNAPSHOT, {day}),
    ).reading(ledger, [SNAPSHOT])  # fmt: skip
    plans = decide_with_neighbours(ledger, facts, SNAPSHOT, {key}, {}, NOW)
    return {plan.key.event_date: plan for plan in plans}


def test_refused_counts_follow_the_snapshot_they_were_compared_with_and_no_others_do(ledger: Ledger) -> None:
    """Scenario: counts of later days, up to three months on, were refused in a chain beside a day's three items.
    Outcome: where its snapshot is corrected each is built in turn; other refusals and comparisons stay."""
    far, further = 30, 60
    records = [
        published(DAY, 3), refused_beside(3, on(1)), refused_beside(3, on(2), Check.SNAPSHOT_IS_WHOLE),
        refused_beside(3, on(far), digest=Digest(3, 2, 2)), refused_beside(3, on(further)),
        published(on(further + 1), 900), refused_beside(900, on(further + 2)),
    ]  # fmt: skip
    ledger.record(Changes(slices=records), "run")
    delivered = {record.key.event_date: listed(record.key.event_date) for record in records}
    assert plans_near(ledger, DAY, delivered).keys() == {DAY}, "nothing changes, so nobody else is looked at"
    plans = plans_near(ledger, DAY, {**delivered, DAY: listed(DAY, etag="v2")})
    judged_again = {day: plan.is_judged_again for day, plan in plans.items()}
    assert judged_again == {DAY: False, on(1): True, on(far): True, on(further): True}
    assert {plan.todo for plan in plans.values()} == {Todo.REBUILD}
    assert {plan.is_requested for day, plan in plans.items() if day != DAY} == {False}


def test_a_refused_day_of_which_another_version_waits_for_its_marker_waits_on(ledger: Ledger) -> None:
    ledger.record(Changes(slices=[published(DAY, 3), refused_beside(3, NOW.date())]), "run")
    again = listed(NOW.date(), etag="v2", is_marked=False)
    plans = plans_near(ledger, DAY, {DAY: listed(DAY, etag="v2"), NOW.date(): again})
    assert plans.keys() == {DAY}, "it lies too far away to have been compared"
    near = NOW.date() - timedelta(days=1)
    ledger.record(Changes(slices=[published(near, 3)]), "run")
    plans = plans_near(ledger, near, {near: listed(near, etag="v2"), NOW.date(): again})
    assert {day: plan.todo for day, plan in plans.items()} == {near: Todo.REBUILD, NOW.date(): Todo.WAIT}
