"""Rules over facts: when a snapshot is loaded, and which items a day uses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.checks import UNREAD_OBJECTS, Check, Evaluation
from pipeline_assets.domain.deliveries import SnapshotDelivery
from pipeline_assets.domain.records import InputDay, InputState, Rejection, SliceRecord
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Verdict
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts, judging
from pipeline_assets.tables.dimension import ACTIVE_ITEM_EVENTS, ITEM

PROJECT, DAY = "10001", date(2026, 2, 4)
BEFORE, LONG_BEFORE = DAY - timedelta(days=1), DAY - timedelta(days=5)
EARLY, LATE = datetime(2026, 2, 5, tzinfo=UTC), datetime(2026, 2, 20, tzinfo=UTC)
MONTH = date(2026, 2, 1)
SNAPSHOT, VALIDITY = ITEM.snapshot, ITEM.validity
HELD = Digest(3, 1, 1)


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
    record: SliceRecord | None, one: SnapshotDelivery | None, now: datetime, **settings: Any
) -> SlicePlan | None:
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
    return next(iter(decide(facts, SNAPSHOT, [key], {}, now)), None)


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
    assert plan is not None
    assert (plan.todo, plan.is_early) == (todo, is_early)
    assert reason is None or reason in (plan.reason or "")


def test_a_day_before_the_first_snapshot_and_a_bridged_one_are_empty_and_nothing_at_all_says_so() -> None:
    for settings in ({"first": DAY + timedelta(days=1)}, {"missing_snapshot": MissingSnapshot.PREVIOUS}):
        plan = of_snapshot(None, None, LATE, **settings)
        assert plan is not None
        assert plan.todo is Todo.KEEP
    nothing = of_snapshot(None, None, LATE, first=None)
    assert nothing is not None
    assert (nothing.todo, nothing.reason) == (Todo.WAIT, "landing holds no snapshot of the dimension at all")


def test_a_refused_version_is_not_read_again_but_one_that_could_not_be_read_is() -> None:
    refusal = Rejection(InputState(delivered=listed().version), judging(SNAPSHOT, Settings()))
    for figures, todo in (({}, Todo.KEEP_REFUSED), ({UNREAD_OBJECTS: 1}, Todo.REBUILD)):
        failure = Evaluation(Check.SNAPSHOT_IS_WHOLE, False, "is bad", "correct it", figures)
        record = snapshot(
            verdict=Verdict.REFUSED, digest=EMPTY, input_state=None, rejection=refusal, refused_evaluations=(failure,)
        )
        plan = of_snapshot(record, listed(), LATE)
        assert plan is not None
        assert plan.todo is todo


def of_events(
    snapshots: Mapping[date, SliceRecord],
    now: datetime = LATE,
    *,
    intervals: SliceRecord | None = None,
    released: frozenset[tuple[str, Slice]] = frozenset(),
    first: date | None = LONG_BEFORE,
    **settings: Any,
) -> SlicePlan | None:
    """The plan of a day with events; by default intervals come from all published snapshots."""
    key = Slice(DAY, PROJECT)
    states = {InputDay(SNAPSHOT.key, day): record.digest for day, record in snapshots.items()}
    built = SliceRecord(
        VALIDITY.key, Slice(MONTH, ALL_PROJECTS), Verdict.PUBLISHED, digest=HELD, input_state=InputState(states)
    )
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
    return next(iter(decide(facts, ACTIVE_ITEM_EVENTS, [key], {}, now)), None)


def used(plan: SlicePlan | None) -> set[date]:
    assert plan is not None
    return {name.day for name in plan.present.upstream if name.table == SNAPSHOT.key}


def test_the_snapshot_of_the_day_stands_for_it_and_no_other() -> None:
    later = DAY + timedelta(days=1)
    plan = of_events({day: snapshot(day) for day in (BEFORE, DAY, later)})
    assert plan is not None
    assert plan.todo is Todo.REBUILD
    assert used(plan) == {DAY}


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
    assert plan is not None
    assert (plan.todo, used(plan), plan.is_early) == (todo, days, now is EARLY)
    assert reason is None or reason in (plan.reason or "")


def test_a_previous_snapshot_reaches_as_far_as_the_settings_say() -> None:
    bridged = {"missing_snapshot": MissingSnapshot.PREVIOUS}
    held = {LONG_BEFORE: snapshot(LONG_BEFORE)}
    plan = of_events(held, **bridged, previous_snapshot_days=5, intervals=_january(held))
    assert plan is not None
    assert (plan.todo, used(plan)) == (Todo.REBUILD, {LONG_BEFORE})
    plan = of_events(held, **bridged, previous_snapshot_days=4)
    assert plan is not None
    assert (plan.todo, used(plan)) == (Todo.WAIT, set())
    assert "none of the 4 days before it" in (plan.reason or "")


def _january(held: Mapping[date, SliceRecord]) -> SliceRecord:
    states = {InputDay(SNAPSHOT.key, day): record.digest for day, record in held.items()}
    return SliceRecord(
        VALIDITY.key, Slice(date(2026, 1, 1), ALL_PROJECTS), Verdict.PUBLISHED, input_state=InputState(states)
    )


def test_events_wait_for_refused_and_held_snapshots_and_for_intervals_that_lag() -> None:
    bridged = {"missing_snapshot": MissingSnapshot.PREVIOUS}
    for verdict in (Verdict.REFUSED, Verdict.HELD):
        plan = of_events({BEFORE: snapshot(BEFORE), DAY: snapshot(DAY, verdict)})
        assert plan is not None
        assert (plan.todo, plan.reason) == (Todo.WAIT, f"dimensions/item_snapshot 2026-02-04 is {verdict.value}")
    # A refused delivery is not missing: the one before does not replace it.
    plan = of_events({BEFORE: snapshot(BEFORE), DAY: snapshot(DAY, Verdict.REFUSED, digest=EMPTY)}, **bridged)
    assert plan is not None
    assert plan.todo is Todo.WAIT
    held = Slice(DAY, ALL_PROJECTS)
    plan = of_events({DAY: snapshot(DAY, Verdict.HELD)}, released=frozenset({(SNAPSHOT.key, held)}))
    assert plan is not None
    assert plan.todo is Todo.REBUILD
    stale = {InputDay(SNAPSHOT.key, DAY): Digest(2, 2, 2)}
    lagging = SliceRecord(VALIDITY.key, Slice(MONTH, ALL_PROJECTS), Verdict.PUBLISHED, input_state=InputState(stale))
    plan = of_events({DAY: snapshot(DAY)}, intervals=lagging)
    assert plan is not None
    assert plan.reason == "dimensions/item_validity 2026-02 is not built from the snapshot of 2026-02-04 yet"


def test_before_the_first_snapshot_nothing_is_counted_and_nothing_waits() -> None:
    for first in (None, DAY + timedelta(days=1)):
        plan = of_events({}, EARLY, first=first)
        assert plan is not None
        assert (plan.todo, plan.present.upstream.keys()) == (Todo.KEEP, {InputDay("refined/events", DAY)})


def test_intervals_of_a_month_are_built_from_its_published_days_whatever_was_refused_since() -> None:
    key = Slice(MONTH, ALL_PROJECTS)
    days = [snapshot(DAY, Verdict.HELD), snapshot(BEFORE, Verdict.REFUSED), snapshot(LONG_BEFORE), snapshot(MONTH)]
    records = {SNAPSHOT.key: {record.key: record for record in days}, VALIDITY.key: {}}
    facts = Facts(Settings(), frozenset({key}), {}, {}, records=records)
    (plan,) = decide(facts, VALIDITY, (), {}, LATE)
    assert plan.todo is Todo.REBUILD
    assert {name.day for name in plan.present.upstream} == {DAY, BEFORE, MONTH}


@pytest.mark.parametrize("verdict", [Verdict.HELD, Verdict.REFUSED])
@pytest.mark.parametrize("first", [None, DAY + timedelta(days=1)])
def test_a_day_whose_only_snapshot_was_rolled_back_or_refused_is_not_before_the_first(
    verdict: Verdict, first: date | None
) -> None:
    plan = of_events({DAY: snapshot(DAY, verdict, digest=EMPTY)}, first=first)
    assert plan is not None
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
    failure = Evaluation(Check.COUNT_IS_EXPECTED, False, "shrinks", "correct it", {"rows_before": 300, "rows_after": 7})
    refusal = Rejection(InputState(delivered=listed().version), judging(SNAPSHOT, Settings()))
    record = snapshot(
        verdict=Verdict.REFUSED, digest=EMPTY, input_state=None, rejection=refusal, refused_evaluations=(failure,)
    )
    plan = of_snapshot(record, listed(), LATE, item_counts=counts)
    assert plan is not None
    assert plan.todo is todo
