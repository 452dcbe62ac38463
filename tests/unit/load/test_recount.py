"""A count refused beside a snapshot that this load corrects is judged again by this load."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from pipeline_assets.domain.checks import Check, CheckRule, Evaluation
from pipeline_assets.domain.deliveries import SnapshotDelivery
from pipeline_assets.domain.records import InputState, Rejection, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Verdict
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.facts import Facts, counts_on_record, judging
from pipeline_assets.load.staleness.scan import decide_with_neighbours
from pipeline_assets.tables.dimension import ITEM
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

SNAPSHOT, SETTINGS, NOW = ITEM.snapshot, Settings(), datetime(2026, 6, 1, tzinfo=UTC)
DAY = date(2026, 2, 2)


def on(number: int) -> date:
    return DAY + timedelta(days=number)


def listed(day: date, etag: str = "v1") -> SnapshotDelivery:
    return SnapshotDelivery(f"dimensions/item/{day}.csv", etag, 9, is_marked=True)


def published(day: date, rows: int) -> SliceRecord:
    state, code = InputState(delivered=listed(day).version), SNAPSHOT.code_version(SETTINGS)
    key = Slice(day, ALL_PROJECTS)
    return SliceRecord(
        SNAPSHOT.key, key, Verdict.PUBLISHED, digest=Digest(rows, 1, 1), input_state=state, code_version=code
    )


def refused(day: date, before: int, check: CheckRule = Check.COUNT_IS_EXPECTED, digest: Digest = EMPTY) -> SliceRecord:
    failure = Evaluation(check, False, "is odd", "correct it", {"rows_before": before, "rows_after": 300})
    rejection = Rejection(InputState(delivered=listed(day).version), judging(SNAPSHOT, SETTINGS))
    return SliceRecord(
        SNAPSHOT.key, Slice(day, ALL_PROJECTS), Verdict.REFUSED, digest=digest, rejection=rejection,
        refused_evaluations=(failure,),
    )  # fmt: skip


def plans_of(ledger: Ledger, day: date, delivered: dict[date, SnapshotDelivery]) -> dict[date, SlicePlan]:
    key = Slice(day, ALL_PROJECTS)
    facts = Facts(
        SETTINGS, frozenset({key}), {}, {},
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
        published(DAY, 3),
        refused(on(1), 3),
        refused(on(2), 3, Check.SNAPSHOT_IS_WHOLE),
        refused(on(far), 3, digest=Digest(3, 2, 2)),
        refused(on(further), 3),
        published(on(further + 1), 900),
        refused(on(further + 2), 900),
    ]
    ledger.record(Changes(slices=records), "run")
    delivered = {record.key.event_date: listed(record.key.event_date) for record in records}
    assert plans_of(ledger, DAY, delivered).keys() == {DAY}, "nothing changes, so nobody else is looked at"
    plans = plans_of(ledger, DAY, {**delivered, DAY: listed(DAY, "v2")})
    assert {day: plan.is_judged_again for day, plan in plans.items()} == {
        DAY: False,
        on(1): True,
        on(far): True,
        on(further): True,
    }
    assert {plan.todo for plan in plans.values()} == {Todo.REBUILD}
    assert {plan.is_requested for day, plan in plans.items() if day != DAY} == {False}


def test_a_refused_day_of_which_another_version_waits_for_its_marker_waits_on(ledger: Ledger) -> None:
    ledger.record(Changes(slices=[published(DAY, 3), refused(NOW.date(), 3)]), "run")
    again = SnapshotDelivery(f"dimensions/item/{NOW.date()}.csv", "v2", 9, is_marked=False)
    plans = plans_of(ledger, DAY, {DAY: listed(DAY, "v2"), NOW.date(): again})
    assert plans.keys() == {DAY}, "it lies too far away to have been compared"
    near = NOW.date() - timedelta(days=1)
    ledger.record(Changes(slices=[published(near, 3)]), "run")
    plans = plans_of(ledger, near, {near: listed(near, "v2"), NOW.date(): again})
    assert {day: plan.todo for day, plan in plans.items()} == {near: Todo.REBUILD, NOW.date(): Todo.WAIT}
