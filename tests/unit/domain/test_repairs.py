"""The repair of a day that differs: the run that closes it, or an operator's decision."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.repairs import DayFacts, RepairKind, repairs_of, together
from pipeline_assets.domain.slices import Slice, Source

DAY, NEXT = date(2026, 2, 2), date(2026, 2, 3)
ALL_DAY = tuple(Hour(DAY, hour) for hour in range(24))


def _key(shift: int = 0, project: str = "10001") -> Slice:
    return Slice(DAY + timedelta(days=shift), project)


def _facts(shift: int = 0, *, is_lacking: bool = True, project: str = "10001", **changes: Any) -> DayFacts:
    return DayFacts(_key(shift, project), is_lacking, **changes)


def _commands(facts: DayFacts, *tried: RepairKind) -> list[str]:
    found = together(repairs_of(facts, {(kind, facts.key) for kind in tried}), 30)
    return [f"{one.kind.value}: {one.command}" for one in found]


SPAN = f"--from {DAY} --to {DAY} --project 10001"
OPEN = datetime(2026, 2, 5, tzinfo=UTC)
DAYS = {"is_lacking": True, "hours_to_ask": ALL_DAY}
REFUSED = {"refined/events": "change_is_explained: grows"}


@pytest.mark.parametrize(("facts", "expected"), [
    ({"unread": {Source.BACKFILL: {DAY, NEXT}}, "lacking_hours": ALL_DAY[:2]},
     [f"load: tidemark load --source backfill --from {DAY} --to {NEXT} --project 10001"]),
    # Arrivals near the day are loaded first, and may hold none of its events.
    ({"unread": {Source.REGULAR: {NEXT}}, "hours_to_ask": ALL_DAY},
     [f"load: tidemark load --source regular --from {NEXT} --to {NEXT} --project 10001",
      f"recover days: tidemark recover {SPAN} --load"]),
    ({"stale": "delivery"}, [f"load: tidemark load --source regular {SPAN}"]),
    ({"lacking_hours": (*ALL_DAY[3:5], ALL_DAY[9]), "hours_to_ask": ALL_DAY},
     [f"recover hours: tidemark recover --from {DAY}T03 --to {DAY}T04 --project 10001 --load",
      f"recover hours: tidemark recover --from {DAY}T09 --to {DAY}T09 --project 10001 --load"]),
    (DAYS, [f"recover days: tidemark recover {SPAN} --load"]),
    # More is published than counted: the vendor could only add rows.
    ({**DAYS, "is_lacking": False}, [f"decide: tidemark reconcile --keys FILE {SPAN}"]),
    # Hours that the vendor still delivers are not requested; present ones are loaded.
    ({**DAYS, "lacking_hours": ALL_DAY[:2], "open_until": OPEN}, [f"wait: tidemark reconcile {SPAN}"]),
    ({**DAYS, "open_until": OPEN}, [f"wait: tidemark reconcile {SPAN}"]),
    ({**DAYS, "open_until": OPEN, "unread": {Source.REGULAR: {DAY}}}, [f"load: tidemark load --source regular {SPAN}"]),
    ({**DAYS, "is_lacking": False, "open_until": OPEN}, [f"decide: tidemark reconcile --keys FILE {SPAN}"]),
    ({**DAYS, "open_until": OPEN, "refused": REFUSED}, [f"decide: tidemark diff refined/events {DAY} --project 10001"]),
    ({}, [f"decide: tidemark reconcile --keys FILE {SPAN}"]),
    # Only an operator undoes holds, refusals and exclusions, and no load changes a held day.
    ({**DAYS, "unread": {Source.REGULAR: {DAY}}, "holds": {"refined/events": "doubled"}},
     [f'decide: tidemark release {SPAN} --table refined/events --reason "REASON"']),
    ({**DAYS, "refused": REFUSED}, [f"decide: tidemark diff refined/events {DAY} --project 10001"]),
    ({"excluded": {f"10001/10001_{DAY}_9#1.json.gz": "doubled"}},
     [f"decide: tidemark include '10001/10001_{DAY}_9#1.json.gz' --reason \"REASON\""]),
    ({"outdated": ("aggregates/daily_revenue",), "is_lacking": False},
     [f'rebuild: tidemark rebuild start --table aggregates/daily_revenue {SPAN} --reason "REASON"']),
])  # fmt: skip
def test_the_run_that_closes_it(facts: dict[str, Any], expected: list[str]) -> None:
    assert _commands(_facts(**facts)) == expected


def test_what_did_not_close_it_is_followed_by_the_next_and_at_the_end_by_a_person() -> None:
    facts = _facts(unread={Source.REGULAR: {DAY}}, lacking_hours=ALL_DAY[:1], hours_to_ask=ALL_DAY)
    order = (RepairKind.LOAD, RepairKind.RECOVER, RepairKind.RECOVER_DAYS)
    for number, kind in enumerate(order):
        (one,) = repairs_of(facts, {(tried, facts.key) for tried in order[:number]})
        assert (one.kind, one.kind.is_run) == (kind, True)
    (last,) = repairs_of(facts, {(tried, facts.key) for tried in order})
    assert (last.kind, last.kind.is_run) == (RepairKind.DECIDE, False)
    # Another day's run is no attempt at this one.
    (first,) = repairs_of(facts, {(kind, _key(1)) for kind in order})
    assert first.kind is RepairKind.LOAD


def test_a_day_that_is_waited_for_is_nobodys_task_and_no_run() -> None:
    (one,) = repairs_of(_facts(open_until=OPEN))
    assert one.reason == "the day is open until 2026-02-05 00:00 UTC; what lacks may still be delivered"
    assert (one.kind.is_run, one.kind.is_for_a_person) == (False, False)
    assert {kind for kind in RepairKind if kind.is_for_a_person} == {RepairKind.REBUILD, RepairKind.DECIDE}


def test_days_that_follow_each_other_are_one_run_and_no_day_is_lost() -> None:
    days = [0, 1, 2, 4, 5]
    asked = {shift: tuple(Hour(_key(shift).event_date, hour) for hour in range(24)) for shift in days}
    found = [one for shift in days for one in repairs_of(_facts(shift, hours_to_ask=asked[shift]))]
    found += repairs_of(_facts(0, project="10002", hours_to_ask=ALL_DAY))
    joined = together(found, 2)
    spans = [("10001", 2, 3), ("10001", 4, 4), ("10001", 6, 7), ("10002", 2, 2)]
    assert [(one.project_id, one.first.day, one.last.day) for one in joined] == spans
    assert [key for one in joined for key in one.slices] == [*map(_key, days), _key(0, "10002")]


def test_a_load_that_serves_two_days_is_one_run_for_both() -> None:
    near = {Source.REGULAR: {DAY}}
    (one,) = together([*repairs_of(_facts(unread=near)), *repairs_of(_facts(1, unread=near))], 30)
    assert (one.slices, one.first, one.last) == ((_key(), _key(1)), DAY, DAY)
