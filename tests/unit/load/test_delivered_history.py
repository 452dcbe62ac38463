"""Delivered intervals: the valid delivery, changed months, refusals, and each day's items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import SnapshotDelivery, dimension_batch
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.records import Exclusion, InputDay, InputState, SliceRecord
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Verdict
from pipeline_assets.load.build import snapshot
from pipeline_assets.load.build.snapshot import judge_history
from pipeline_assets.load.staleness import as_of
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts, judging, rests_on
from pipeline_assets.tables.dimension import ACTIVE_ITEM_EVENTS, ITEM
from pipeline_assets.tables.registry import require_known_dimensions

SETTINGS = Settings(projects=("10001",), delivered_intervals=("item",))
SNAPSHOT, VALIDITY = ITEM.snapshot, ITEM.validity
DAY = date(2026, 2, 4)
JANUARY, FEBRUARY, MARCH = (Slice(date(2026, month, 1), ALL_PROJECTS) for month in (1, 2, 3))
LATE = datetime(2026, 2, 20, tzinfo=UTC)
ONE, OTHER = Digest(3, 1, 1), Digest(3, 2, 2)
DAYS = {DAY - timedelta(days=number): ONE for number in range(10)}


def listed(day: date = DAY, **more: Any) -> SnapshotDelivery:
    own = {"key": f"dimensions/item_validity/{day}.csv", "etag": "v1", "size_bytes": 9, "is_marked": True}
    return SnapshotDelivery(**{**own, **more})


def history(days: Mapping[date, Digest] | None = DAYS, **more: Any) -> as_of.History:
    delivery = more.pop("delivery", listed())
    return as_of.History(DAY, delivery, as_of.version_of(delivery, SETTINGS), days, **more)


def month(key: Slice, days: Mapping[date, Digest] = DAYS, version: str | None = None, **more: Any) -> SliceRecord:
    own = {InputDay(VALIDITY.key, day): one for day, one in days.items() if day.month == key.event_date.month}
    state = InputState(own, delivered=version or as_of.version_of(listed(), SETTINGS))
    values = {"digest": ONE, "input_state": state, "code_version": VALIDITY.code_version(SETTINGS), **more}
    return SliceRecord(VALIDITY.key, key, values.pop("verdict", Verdict.PUBLISHED), **values)


RECORDS = {JANUARY: month(JANUARY), FEBRUARY: month(FEBRUARY)}


def plans(
    one: as_of.History | None, records: Mapping[Slice, SliceRecord] = RECORDS, *more: Slice
) -> dict[Slice, SlicePlan]:
    facts = Facts(
        SETTINGS, frozenset({*records, *more, FEBRUARY}), {}, {}, records={VALIDITY.key: records, SNAPSHOT.key: {}},
        history=one,
    )  # fmt: skip
    return {plan.key: plan for plan in decide(facts, VALIDITY, {FEBRUARY, *more}, {}, LATE)}


def test_only_months_that_tell_of_other_items_are_built_again() -> None:
    assert {key: plan.todo for key, plan in plans(history()).items()} == dict.fromkeys(RECORDS, Todo.KEEP)
    changed = history({**DAYS, date(2026, 1, 28): OTHER}, delivery=listed(etag="v2"))
    found = plans(changed)
    assert found[JANUARY].todo is Todo.REBUILD
    assert found[FEBRUARY].todo is Todo.REBUILD, "its record names the version that is published"
    later = replace(changed, day=MARCH.event_date, days={**DAYS, MARCH.event_date: ONE})
    todos = {key: plan.todo for key, plan in plans(later, RECORDS, MARCH).items()}
    assert todos == {JANUARY: Todo.KEEP, FEBRUARY: Todo.KEEP, MARCH: Todo.REBUILD}


def test_what_is_refused_stands_at_the_last_month_and_leaves_all_others() -> None:
    failure = Evaluation(Check.INTERVALS_ARE_WHOLE, False, "line 2: overlaps", "correct it")
    refused = history(None, failure=failure, delivery=listed(etag="v2"))
    found = plans(refused)
    assert (found[JANUARY].todo, found[FEBRUARY].todo) == (Todo.KEEP, Todo.REFUSE)
    assert found[FEBRUARY].present.delivered == refused.version
    assert found[FEBRUARY].present.upstream == RECORDS[FEBRUARY].input_state.upstream  # type: ignore[union-attr]
    waits = plans(None, {})[FEBRUARY]
    assert (waits.todo, waits.reason) == (Todo.WAIT, "landing holds no complete delivery of intervals")
    ahead = plans(history(), RECORDS, MARCH)[MARCH]
    assert (ahead.todo, ahead.reason) == (Todo.WAIT, "intervals are delivered as of 2026-02-04 and not of 2026-03 yet")
    causes = {key: plan.cause.kind for key, plan in plans(as_of.nothing_since(DAY)).items()}
    assert causes == dict.fromkeys(RECORDS, CauseKind.EXCLUSION), "where the only delivery is excluded all is emptied"


def test_the_newest_complete_delivery_stands_and_is_read_once() -> None:
    before, after = DAY - timedelta(days=1), DAY + timedelta(days=1)
    days = {before: listed(before), DAY: listed(), after: listed(after, is_marked=False), date(2062, 1, 1): listed()}
    assert as_of.standing_day(days, SETTINGS, datetime(2026, 2, 5, 1, tzinfo=UTC)) == DAY
    assert as_of.standing_day(days, SETTINGS, LATE) == after, "its deadline has passed"
    assert as_of.standing_day({}, SETTINGS, LATE) is None
    version = as_of.version_of(listed(), SETTINGS)
    assert as_of.is_on_record(VALIDITY, DAY, version, RECORDS)
    held = {**RECORDS, JANUARY: month(JANUARY, verdict=Verdict.HELD)}
    for records in ({}, held, {**RECORDS, JANUARY: month(JANUARY, input_state=None)}):
        assert not as_of.is_on_record(VALIDITY, DAY, version, records)
    assert not as_of.is_on_record(VALIDITY, DAY, as_of.version_of(listed(etag="v2"), SETTINGS), RECORDS)
    judged_by = judging(VALIDITY, SETTINGS)
    assert not as_of.is_refused_before(VALIDITY, DAY, version, RECORDS, judged_by, {})
    news, waits = as_of.news_of(VALIDITY, days, RECORDS, judged_by, SETTINGS, datetime(2026, 2, 5, 1, tzinfo=UTC))
    assert (news, waits) == (None, [f"dimensions/item_validity/{after}.csv has no marker yet"])
    news, _ = as_of.news_of(VALIDITY, days, {}, judged_by, SETTINGS, LATE)
    assert news is not None
    assert news[:2] == (after, f"dimensions/item_validity/{after}.csv is new")


@pytest.mark.parametrize(
    ("days", "reason"),
    [
        (DAYS, None),
        ({**DAYS, DAY + timedelta(days=1): ONE}, None),
        ({**DAYS, DAY: OTHER}, None),
        ({**DAYS, DAY: Digest(1, 1, 1)}, "of 2026-02-04 1 items, 3 are published: 66.7% fewer"),
        ({**DAYS, DAY + timedelta(days=1): Digest(9, 1, 1)}, "of 2026-02-05 9 items, 3 of 2026-02-04 are published: 200.0% more"),
        ({DAY: ONE}, "of 2026-01-26 0 items, 3 are published: 100.0% fewer"),
        ({}, "; and so of 9 more days"),
    ],
)  # fmt: skip
def test_a_history_that_tells_of_far_other_counts_is_refused(
    days: Mapping[date, Digest], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "FEW_ITEMS", 1)
    found = judge_history("x.csv", days, DAYS, SETTINGS)
    assert (found is None) if reason is None else (found is not None and reason in (found.reason or ""))
    assert judge_history("x.csv", days, {}, SETTINGS) is None, "the first of all is compared with nothing"


def of_events(day: date, now: datetime = LATE, verdict: Verdict = Verdict.PUBLISHED, **more: Any) -> SlicePlan:
    """The plan of a day with events, with given recorded months and snapshots."""
    settings, key = SETTINGS.model_copy(update=more.pop("settings", {})), Slice(day, "10001")
    refined = SliceRecord("refined/events", key, Verdict.PUBLISHED, digest=Digest(7, 1, 1))
    snapshots = {Slice(one, ALL_PROJECTS): a_snapshot(one) for one in more.pop("snapshots", ())}
    facts = Facts(
        settings, frozenset({key}), {}, {"10001": date(2025, 1, 1)},
        records={
            ACTIVE_ITEM_EVENTS.key: {},
            "refined/events": {key: refined},
            SNAPSHOT.key: snapshots,
            VALIDITY.key: {JANUARY: month(JANUARY), FEBRUARY: month(FEBRUARY, verdict=verdict)},
        },
        first_snapshots={VALIDITY.key: JANUARY.event_date},
    )  # fmt: skip
    (plan,) = decide(facts, ACTIVE_ITEM_EVENTS, [key], {}, now)
    return plan


def a_snapshot(day: date) -> SliceRecord:
    return SliceRecord(SNAPSHOT.key, Slice(day, ALL_PROJECTS), Verdict.PUBLISHED, digest=OTHER)


def test_a_day_is_joined_with_its_day_of_the_history_and_its_snapshot_where_there_is_one() -> None:
    plan = of_events(DAY)
    assert (plan.todo, plan.present.upstream[InputDay(VALIDITY.key, DAY)]) == (Todo.REBUILD, ONE)
    assert InputDay(SNAPSHOT.key, DAY) in of_events(DAY, snapshots=[DAY]).present.upstream
    assert of_events(DAY, verdict=Verdict.REFUSED).todo is Todo.REBUILD, "a refused delivery leaves what stands"
    held = of_events(DAY, verdict=Verdict.HELD)
    assert (held.todo, held.reason) == (Todo.WAIT, "dimensions/item_validity 2026-02 is held")
    later = DAY + timedelta(days=2)
    early = of_events(later, datetime(2026, 2, 6, 12, tzinfo=UTC))
    assert (early.is_early, early.reason) == (True, "dimensions/item_validity does not tell of 2026-02-06 yet")
    late = of_events(later)
    assert late.reason == "dimensions/item_validity does not tell of 2026-02-06 (missing_snapshot = wait)"
    bridged = of_events(later, settings={"missing_snapshot": MissingSnapshot.PREVIOUS})
    assert InputDay(VALIDITY.key, DAY) in bridged.present.upstream
    before = of_events(date(2026, 1, 20))
    assert (before.todo, [name.table for name in before.present.upstream]) == (Todo.KEEP, ["refined/events"])


def test_a_publish_rests_on_the_month_of_a_delivered_day_and_on_the_snapshot_beside_it() -> None:
    """Otherwise a load would need a missing slice, or publish beside intervals that moved."""
    events, plan = Slice(DAY, "10001"), of_events(DAY, snapshots=[DAY])
    assert rests_on(ACTIVE_ITEM_EVENTS, SETTINGS, events, plan.present, plan.months) == {
        ("refined/events", events): Digest(7, 1, 1),
        (SNAPSHOT.key, Slice(DAY, ALL_PROJECTS)): OTHER,
        (VALIDITY.key, FEBRUARY): RECORDS[FEBRUARY].digest,
    }
    changed = plans(history({**DAYS, date(2026, 1, 28): OTHER}, delivery=listed(etag="v2")))[JANUARY]
    assert changed.present.upstream
    assert rests_on(VALIDITY, SETTINGS, JANUARY, changed.present, changed.months) == {}, "it is read from landing"


def test_a_published_snapshot_whose_version_is_excluded_is_withdrawn_and_another_one_is_not() -> None:
    key, delivery = Slice(DAY, ALL_PROJECTS), listed(key=f"dimensions/item/{DAY}.csv")
    record = replace(a_snapshot(DAY), input_state=InputState(delivered=delivery.version))
    out = Exclusion(dimension_batch(DAY), delivery.key, "v1", "abc", "is wrong")

    def planned(one: SliceRecord, **known: Any) -> SlicePlan:
        facts = Facts(SETTINGS, frozenset({key}), {}, {}, records={SNAPSHOT.key: {key: one}}, **known)
        return decide(facts, SNAPSHOT, (), {}, LATE)[0]

    for etag, todo in (("v1", Todo.REBUILD), ("v0", Todo.KEEP)):
        plan = planned(record, exclusions={delivery.key: (replace(out, etag=etag),)})
        assert plan.todo is todo
    assert plan.present == record.input_state
    gone = replace(record, digest=EMPTY, input_state=InputState())
    plan = planned(gone, excluded={key: "is wrong"}, first_snapshots={SNAPSHOT.key: DAY})
    assert plan.reason == "the snapshot of 2026-02-04 is excluded: is wrong (missing_snapshot = wait)"


def test_a_setting_that_names_no_dimension_is_refused() -> None:
    require_known_dimensions(SETTINGS)
    with pytest.raises(SettingsError, match="shoes is no dimension"):
        require_known_dimensions(Settings(delivered_intervals=("shoes",)))
