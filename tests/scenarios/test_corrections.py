"""Corrections of published events through both sources: sent again, moved, too late, tied, computed by vendors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from pipeline_assets.domain.slices import Source
from tests.support.builders import an_event, events_on
from tests.support.world import Steps, Story, stories_in, tell

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY, NEXT, FAR = date(2026, 2, 2), date(2026, 2, 3), date(2026, 1, 30)
RAW, REFINED, REVENUE, USERS = (
    "raw/regular_events", "refined/events", "aggregates/daily_revenue", "aggregates/active_users",
)  # fmt: skip
SENT = {
    "event_time": f"{DAY} 10:00:00.000000",
    "server_upload_time": f"{DAY} 10:30:00.000000",
    "processed_time": f"{DAY} 10:31:00.000000",
}
LATER = {"server_upload_time": f"{NEXT} 12:00:00.000000", "processed_time": f"{NEXT} 12:01:00.000000"}
Found = dict[date, float]
"""Event day -> amount of the one remaining event."""


@dataclass(frozen=True)
class Correction:
    what: str
    changes: Mapping[str, str]
    """Changed times; its amount is 25."""
    left: tuple[Found, ...]
    """Results that the rule allows."""


CORRECTIONS = (
    Correction("the amount is sent again", LATER, ({DAY: 25},)),
    Correction("the time moves over midnight", {**LATER, "event_time": f"{NEXT} 00:10:00.000000"}, ({NEXT: 25},)),
    Correction("older than what is published", {"server_upload_time": f"{DAY} 10:29:00.000000"}, ({DAY: 10},)),
    Correction(
        "the same key beyond the window", {**LATER, "event_time": f"{FAR} 10:00:00.000000"}, ({DAY: 10, FAR: 25},)
    ),
    Correction("uploaded at once, processed later", {"processed_time": f"{DAY} 10:32:00.000000"}, ({DAY: 25},)),
    Correction("uploaded at once, processed earlier", {"processed_time": f"{DAY} 10:30:30.000000"}, ({DAY: 10},)),
    # A backfill wins it; of two regular rows the content decides.
    Correction("a tie on both times", {}, ({DAY: 10}, {DAY: 25})),
)


def _purchase(number: int, amount: float, uuid: str, **times: str) -> dict[str, Any]:
    bag = {"$revenue": amount, "currency": "EUR"}
    return an_event(**{**SENT, **times}, insert_id=f"p{number}", uuid=f"{uuid}{number}", event_properties=bag)


def _left(p: Story) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for row in p.rows(REFINED):
        if str(row["insert_id"]).startswith("p"):
            amount = json.loads(row["event_properties"])["$revenue"]
            found.setdefault(row["insert_id"], {})[row["event_date"]] = amount
    return found


def corrections_fold_in(p: Story, source: Source) -> Steps:
    """Scenario: a delivery of either source corrects closed days in all ways. Outcome: the later one wins; a tie or an
    older one changes nothing; a move is one commit of both days; a far key is another event."""
    p.deliver(DAY, [*events_on(DAY, 300), *(_purchase(n, 10, "first") for n in range(len(CORRECTIONS)))])
    p.deliver(NEXT, events_on(NEXT, 50))
    yield p.must_load(DAY, NEXT)
    known = len(p.publications(REFINED))
    sent = [_purchase(n, 25, "again", **one.changes) for n, one in enumerate(CORRECTIONS)]
    p.deliver(NEXT, sent, hour=13, source=source)
    yield p.must_load(NEXT, source=source)
    left = _left(p)
    for number, one in enumerate(CORRECTIONS):
        assert left[f"p{number}"] in one.left, one.what
    if source is Source.BACKFILL:
        assert left[f"p{len(CORRECTIONS) - 1}"] == {DAY: 25}
    new = p.publications(REFINED)[known:]
    assert {record.key.event_date for record in new} == {DAY, NEXT, FAR}
    assert len({record.snapshot_id for record in new}) == 1
    for day in (DAY, NEXT, FAR):
        amounts = sum(found[day] for found in left.values() if day in found)
        others = {DAY: 30 * 2.5, NEXT: 5 * 2.5, FAR: 0.0}[day]
        (revenue,) = [row["revenue"] for row in p.rows(REVENUE) if row["event_date"] == day]
        assert float(revenue) == amounts + others
    history = p.history()
    yield p.must_load(NEXT, source=source)
    assert p.history() == history


def through_regular_exports(p: Story) -> Steps:
    return corrections_fold_in(p, Source.REGULAR)


def through_a_recovery(p: Story) -> Steps:
    return corrections_fold_in(p, Source.BACKFILL)


def an_older_correction_alone_publishes_nothing(p: Story) -> Steps:
    """Outcome: raw keeps older rows with the reason why they lost; refined and its aggregates are not written again."""
    p.deliver(DAY, [*events_on(DAY, 20), _purchase(0, 10, "first")])
    p.deliver(NEXT, events_on(NEXT, 1))
    yield p.must_load(DAY, NEXT)
    before = p.history()
    p.deliver(NEXT, [_purchase(0, 25, "older", server_upload_time=f"{DAY} 10:29:00.000000")], hour=13)
    yield p.must_load(NEXT)
    assert p.history() == before | {RAW: before[RAW] + 1}
    assert p.record(REFINED, DAY).figures["send_duplicate"] == 1
    assert _left(p) == {"p0": {DAY: 10}}


def history_delivered_again_is_counted_once(p: Story) -> Steps:
    """Scenario: a backfill repeats all history, one amount corrected. Outcome: each event counts once, corrected."""
    days = [DAY + timedelta(days=shift) for shift in range(3)]
    for day in days:
        p.deliver(day, events_on(day, 40))
    yield p.must_load(days[0], days[-1])
    assert sum(row["revenue"] for row in p.rows(REVENUE)) == Decimal(30)
    for day in days:
        again = events_on(day, 40)
        if day == days[1]:
            again[0]["event_properties"] = {"$revenue": 3.5, "currency": "EUR"}
            again[0]["processed_time"] = f"{day} 23:00:00.000000"
        p.deliver(day, again, source=Source.BACKFILL, shard=9)
    yield p.must_load(days[0], days[-1], source=Source.BACKFILL)
    assert p.count(RAW) == p.count("raw/backfill_events") == p.count(REFINED) == 120
    assert sum(row["revenue"] for row in p.rows(REVENUE)) == Decimal(31)
    assert sum(row["events"] for row in p.rows("aggregates/event_counts")) == 120
    assert sum(p.record(REFINED, day).figures["delivery_duplicate"] for day in days) == 120


SALE = {"$price": 20, "$quantity": 1, "$revenue": 20, "$currency": "USD"}


def _on(day: date, **changes: Any) -> dict[str, Any]:
    times = dict.fromkeys(("event_time", "server_upload_time", "processed_time"), f"{day} 10:00:00.000000")
    return an_event(**times, platform="Web", **changes)


def _revenue(p: Story, day: date) -> list[tuple[str, Decimal, int, int]]:
    columns = ("currency", "revenue", "purchases", "paying_users")
    return [tuple(row[name] for name in columns) for row in p.rows(REVENUE) if row["event_date"] == day]


def what_the_vendor_adds_counts_once(p: Story) -> Steps:
    """Scenario: ten users' sales have computed copies and merged ids; later a setting counts computed sales.
    Outcome: 200 USD of ten users, and a figure of ten uncounted sales; the setting makes the day stale."""
    events = []
    for n in range(10):
        first, second = 700_000_000_000 + n, 800_000_000_000 + n
        merged = {"merged_amplitude_id": first}
        told = {"data": {"first_event": True, **merged}} if n % 2 else merged
        computed = f"[Amplitude] Revenue ({'Verified' if n % 2 else 'Unverified'})"
        sale = {"amplitude_id": first, "event_properties": SALE}
        events += [
            _on(DAY, event_type="[Amplitude] Revenue", **sale),
            _on(DAY, event_type=computed, **sale),
            _on(DAY, amplitude_id=second, **told),
        ]
    events.append(_on(DAY, event_type=None, amplitude_id=700_000_000_000, data={"merged_amplitude_id": None}))
    p.deliver(DAY, events)
    p.deliver(NEXT, events_on(NEXT, 1))
    yield p.must_load(DAY, NEXT)
    assert _revenue(p, DAY) == [("USD", Decimal(200), 10, 10)]
    assert [row["active_users"] for row in p.rows(USERS) if row["event_date"] == DAY] == [10]
    assert p.count(REFINED, DAY) == len(events)
    figures = p.record(REVENUE, DAY).figures
    assert figures.items() >= {"events_that_repeat_revenue": 10, "unreadable_revenue": 0}.items()
    p.change(event_types_without_revenue=())
    yield p.must_load(DAY, accept={f"{REVENUE}:{DAY}": "computed sales count from now on"})
    assert _revenue(p, DAY) == [("USD", Decimal(400), 20, 10)]


def a_bag_as_text_gives_the_same_rows(p: Story) -> Steps:
    """Outcome: bags as text keep every digest; text alone gives the same revenue, merged users and items."""
    bags = {"event_properties": SALE, "data": {"merged_amplitude_id": 5}, "user_properties": {"half": '"\\"'}}
    events = [_on(DAY, amplitude_id=n, **bags) for n in range(10)]
    texts = {name: json.dumps(bag) for name, bag in bags.items()}
    p.deliver(DAY, events)
    p.deliver(NEXT, [_on(NEXT, amplitude_id=n, **texts) for n in range(10)])
    yield p.must_load(DAY, NEXT)
    before = p.digests()
    assert _revenue(p, DAY) == _revenue(p, NEXT) == [("USD", Decimal(200), 10, 1)]
    p.deliver(DAY, [one | texts for one in events])
    yield p.must_load(NEXT)
    assert p.digests() == before


def test_corrections_fold_in(pipeline: Any, subtests: Any) -> None:
    tell(pipeline, subtests, stories_in(globals()))
