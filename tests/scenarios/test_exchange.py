"""Slices that exchange events are published together or not at all; only slices that share a key are built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain import skew
from pipeline_assets.domain.slices import Digest, Slice, Source
from pipeline_assets.load import file_tasks
from pipeline_assets.load.build import competing_rows, refined_audit
from pipeline_assets.tables.events import REFINED_EVENTS
from tests.support.builders import LATER, RAW_AND_REFINED, an_event, events_on, sent_again
from tests.support.world import Steps, Story, stories_in, tell

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(5)]
REFINED, COUNTS = "refined/events", "aggregates/event_counts"


def _moved(events: Iterable[Mapping[str, Any]], to: date, sent: date) -> list[dict[str, Any]]:
    """The same events sent again on another day, with a time on the day `to`."""
    return [sent_again(event, sent, to=to, uuid=f"again-{event['uuid']}") for event in events]


def _places(p: Story) -> dict[str, list[date]]:
    found: dict[str, list[date]] = {}
    for row in p.rows(REFINED):
        found.setdefault(row["insert_id"], []).append(row["event_date"])
    return found


def test_rows_beyond_a_bound_are_decided_by_tasks_to_the_same_end(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: one process, tasks by rows and tasks by keys decide the same days. Outcome: equal winners and records."""
    found = []
    for hot_key_rows, bounds in ((10_000, {}), (8, {}), (8, {"_MOST_KEYS": 0, "_LEAST_HEAVY": 1})):
        for name, most in bounds.items():
            monkeypatch.setattr(competing_rows, name, most)
        monkeypatch.setattr(skew, "HOT_KEY_ROWS", hot_key_rows)
        p = pipeline(only=(*RAW_AND_REFINED, COUNTS))
        events = {day: events_on(day, 40) for day in DAYS[:3]}
        for day in DAYS[:3]:
            for number, event in enumerate(events[day][20:30]):
                event.update({"device_id": "server", "$insert_id": "constant", "uuid": f"{day}-{number // 2}"})
            p.deliver(day, [*events[day], *events[day][:10]])
        p.must_load(DAYS[0], DAYS[2])
        p.deliver(DAYS[2], _moved(events[DAYS[0]][:4], DAYS[1], DAYS[2]), hour=20)
        p.must_load(DAYS[2])
        digests = {table: p.digests()[table] for table in (REFINED, COUNTS)}
        records = p.ledger.slices(REFINED, None, DAYS[:3])
        found.append((digests, {key: (one.figures, one.input_state) for key, one in records.items()}))
    assert found[1:] == found[:1] * 2
    assert [Digest.parse(digest).rows for digest in found[0][0][REFINED].values()] == [26, 34, 31]


def a_day_waits_for_the_refused_day_it_takes_events_from(p: Story) -> Steps:
    """Scenario: half of a final day's events move to the next day, beyond bounds. Outcome: neither is published until
    accepted, then both in one commit; the audit finds the doubles beside the old state."""
    events = {day: events_on(day, 400 if day == DAYS[1] else 120) for day in DAYS[:4]}
    for day in DAYS[:4]:
        p.deliver(day, events[day])
    yield p.must_load(DAYS[0], DAYS[3])
    before = p.digests()[REFINED]
    p.deliver(DAYS[2], _moved(events[DAYS[0]][:60], DAYS[1], DAYS[2]), hour=20)
    # A day in reach without a shared key goes on.
    p.deliver(DAYS[3], events_on(DAYS[3], 5, prefix="more"), hour=20)

    run = yield p.load(DAYS[2], DAYS[3])

    assert not run.success
    assert (p.verdict(REFINED, DAYS[0]), p.verdict(REFINED, DAYS[1])) == ("refused", "waiting")
    assert f"shares events with {DAYS[0]}, which cannot be published now" in str(p.record(REFINED, DAYS[1]).reason)
    assert {day for day, digest in p.digests()[REFINED].items() if before[day] != digest} == {DAYS[3]}
    assert all(len(days) == 1 for days in _places(p).values())
    assert p.verdict(COUNTS, DAYS[1]) == "waiting"

    history = p.history()
    again = yield p.must_load(DAYS[2], DAYS[3])
    assert again.built(REFINED) == []
    assert (p.verdict(REFINED, DAYS[1]), p.history()) == ("waiting", history)

    old = p.runtime.lakehouse.head(REFINED_EVENTS)
    yield p.must_load(
        DAYS[0], accept={f"{table}:{DAYS[0]}": "the app's clock was wrong" for table in (REFINED, COUNTS)}
    )
    places = _places(p)
    assert {event: places[event] for event in places if event.startswith(f"e-{DAYS[0]}")} == {
        event["$insert_id"]: [DAYS[1] if number < 60 else DAYS[0]] for number, event in enumerate(events[DAYS[0]])
    }
    last = {r.key.event_date: r for r in p.publications(REFINED) if r.key.event_date in DAYS[:2]}
    assert last[DAYS[0]].snapshot_id == last[DAYS[1]].snapshot_id
    assert (p.count(COUNTS, DAYS[1]), p.verdict(COUNTS, DAYS[1])) == (
        1,
        "published",
    )
    head, (first, second) = last[DAYS[0]].snapshot_id, (Slice(day, p.project) for day in DAYS[:2])
    for most, range_rows, is_checked in ((refined_audit._MOST_KEYS, 100, False), (0, 100, True), (0, 10_000, False)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(refined_audit, "_MOST_KEYS", most)
            patched.setattr(file_tasks, "_KEYS_PER_RANGE", range_rows)
            near = {old: {first}, head: {second}}
            measured = refined_audit.measure_refined(p.runtime, head, near, [second], is_checked=is_checked)
        assert measured.keys() == {second}
        assert {name: measured[second][name] for name in ("keys_twice", "keys_twice_a_day", "false_hashes")} == {
            "keys_twice": 60, "keys_twice_a_day": 0, "false_hashes": 0,
        }  # fmt: skip
        assert str(measured[second]["digest"]) == p.digests()[REFINED][DAYS[1]]


def a_day_waits_for_a_neighbour_that_cannot_be_built(p: Story) -> Steps:
    """Scenario: an event moves from unreadable day 2 to day 1. Outcome: day 1 waits until day 2 is recovered."""
    events = {day: events_on(day, 20) for day in DAYS[:3]}
    for day in DAYS[:3]:
        p.deliver(day, events[day])
    yield p.must_load(DAYS[0], DAYS[2])
    p.deliver(DAYS[1], events_on(DAYS[1], 3, prefix="more"), hour=20, truncated=True)
    p.deliver(DAYS[2], _moved(events[DAYS[1]][:1], DAYS[0], DAYS[2]), hour=20)

    run = yield p.load(DAYS[0], DAYS[2])

    assert not run.success
    assert {day: p.verdict(REFINED, day) for day in DAYS[:3]} == {
        DAYS[0]: "waiting",
        DAYS[1]: "waiting",
        DAYS[2]: "unchanged",
    }
    moved = events[DAYS[1]][0]["$insert_id"]
    assert _places(p)[moved] == [DAYS[1]]

    p.deliver(DAYS[1], events_on(DAYS[1], 3, prefix="more"), hour=20)
    yield p.must_load(DAYS[1])
    assert _places(p)[moved] == [DAYS[0]]
    assert (p.count(REFINED, DAYS[0]), p.count(REFINED, DAYS[1])) == (21, 22)


def only_days_that_share_a_changed_key_are_built_again(p: Story) -> Steps:
    """Scenario: late events of day 3, one known from day 2; then others. Outcome: only days that share a key are built."""
    events = {day: events_on(day, 120) for day in DAYS}
    for day in DAYS:
        p.deliver(day, events[day])
    yield p.must_load(DAYS[0], DAYS[-1])

    p.deliver(DAYS[4], [*_moved(events[DAYS[1]][:1], DAYS[2], DAYS[4]), *events_on(DAYS[2], 2, prefix="late")], hour=20)
    assert (yield p.load(DAYS[4])).built(REFINED) == [DAYS[1], DAYS[2]]
    assert (p.count(REFINED, DAYS[1]), p.count(REFINED, DAYS[2])) == (119, 123)

    p.deliver(DAYS[3], events[DAYS[3]][:30])
    assert not (yield p.load(DAYS[3])).success
    p.deliver(DAYS[4], events_on(DAYS[2], 3, prefix="later"), hour=21)
    second = yield p.load(DAYS[0], DAYS[4])
    assert second.built(REFINED) == [DAYS[2]]
    assert p.verdict(REFINED, DAYS[3]) == "refused"
    assert second.success, second.failure()
    # The check had to ask for the keys once; the neighbours' keys are on record now.
    third = yield p.load(DAYS[0], DAYS[4])
    assert third.built(REFINED) == []
    assert {one.verdict.value for one in third.outcomes(REFINED)} <= {"unchanged", "refused", "waiting"}


def an_event_is_on_one_day_while_the_rule_changes_day_by_day(p: Story) -> Steps:
    """Scenario: an event on two days; precedence changes; days load one by one. Outcome: one day shows it throughout."""
    p.change(source_precedence=(Source.REGULAR, Source.BACKFILL))
    event = events_on(DAYS[0], 1, prefix="twice")[0]
    moved = event | {"event_time": f"{DAYS[1]} 10:00:00.000000", "uuid": "other"}
    p.deliver(DAYS[0], [event, *events_on(DAYS[0], 5)])
    p.deliver(DAYS[1], [moved, *events_on(DAYS[1], 5)], source=Source.BACKFILL)
    p.deliver(DAYS[1], events_on(DAYS[1], 5, prefix="own"))
    for source in (Source.BACKFILL, Source.REGULAR):
        yield p.must_load(DAYS[0], DAYS[1], source=source)
    assert _places(p)[event["$insert_id"]] == [DAYS[0]]

    p.change(source_precedence=(Source.BACKFILL, Source.REGULAR))
    for day in DAYS[:2]:
        alone = yield p.load(day)
        assert _places(p)[event["$insert_id"]] == [DAYS[0]]
        assert alone.outcome(REFINED, day).verdict.value == "waiting"
        assert "load or recover those days" in str(alone.outcome(REFINED, day).hint)
    yield p.must_load(DAYS[0], DAYS[1])
    assert _places(p)[event["$insert_id"]] == [DAYS[1]]


def a_day_that_is_in_order_holds_nothing_back(p: Story) -> Steps:
    """Scenario: an id lies on three days; a better row arrives on the third. Outcome: it moves; the first day stays."""
    reused = an_event(insert_id="reused", device_id="d")
    for number, (day, hour) in enumerate(zip(DAYS[:3], (10, 12, 11), strict=True)):
        at = {"event_time": f"{day} 10:00:00.000000", "server_upload_time": f"{DAYS[2]} {hour}:00:00.000000"}
        p.deliver(day, [reused | at | {"uuid": f"u{number}"}, *events_on(day, 5)])
    yield p.must_load(DAYS[0], DAYS[2])
    assert _places(p)["reused"] == [DAYS[1]]
    arrival = DAYS[2] + timedelta(days=30)
    better = sent_again(reused, arrival, to=DAYS[2], uuid="u9")
    p.deliver(arrival, [better, *events_on(DAYS[2], 2, prefix="late")])

    assert (yield p.load(arrival)).built(REFINED) == DAYS[1:3]
    # Pairwise: the first day's row loses to the second's, which loses in turn.
    assert _places(p)["reused"] == [DAYS[2]]
    assert p.count(REFINED, DAYS[2]) == 8
    assert (yield p.load(arrival)).built(REFINED) == []


def test_slices_that_share_events(pipeline: Any, subtests: Any) -> None:
    tell(pipeline, subtests, stories_in(globals()), now=LATER, only=(*RAW_AND_REFINED, COUNTS))
