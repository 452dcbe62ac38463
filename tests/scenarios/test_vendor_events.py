"""What the vendor adds to an export counts once: computed sales, merged users, and bags whose JSON is delivered as text."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from pipeline_assets.inspection.replay import choose, derived_table, replay
from pipeline_assets.inspection.replay_result import ReplayBasis
from pipeline_assets.load.runtime import Runtime
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, Pipeline, an_event

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY, NEXT = date(2026, 2, 2), date(2026, 2, 3)
REFINED, REVENUE, USERS = "refined/events", "aggregates/daily_revenue", "aggregates/active_users"
SALE = {"$price": 20, "$quantity": 1, "$revenue": 20, "$currency": "USD"}


def _on(day: date, **changes: Any) -> dict[str, Any]:
    times = dict.fromkeys(("event_time", "server_upload_time", "processed_time"), f"{day} 10:00:00.000000")
    return an_event(**times, platform="Web", **changes)


def _revenue(p: Pipeline, day: date) -> list[tuple[str, Decimal, int, int]]:
    columns = ("currency", "revenue", "purchases", "paying_users")
    return [tuple(row[name] for name in columns) for row in p.rows(REVENUE) if row["event_date"] == day]


def test_what_the_vendor_adds_counts_once(pipeline: Any) -> None:
    """Scenario: ten people buy, each sale has a computed one beside it, and each person's second id was merged into the first,
    as `data` or a key of its own says. Later a setting lets computed sales count. Outcome: 200 USD of ten people, all rows in
    refined, and a figure names the ten that do not count; the setting makes the day stale, and a replay uses the recorded one."""
    p = pipeline()
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
    p.mark(DAY)

    assert p.load(DAY).success
    assert _revenue(p, DAY) == [("USD", Decimal(200), 10, 10)]
    assert [row["active_users"] for row in p.rows(USERS)] == [10]
    assert p.count(REFINED) == len(events)
    (published,) = choose(p.ledger.publications(REVENUE), REVENUE, DAY, (PROJECT,), None)
    assert (published.publication.figures or {}).items() >= {
        "events_that_repeat_revenue": 10,
        "unreadable_revenue": 0,
    }.items()

    p.change(event_types_without_revenue=())
    runtime = Runtime(p.lakehouse, p.ledger, LandingStore.from_settings(p.settings), p.settings)
    assert replay(runtime, derived_table(REVENUE), published, ReplayBasis.AS_PUBLISHED, 0).is_equal
    assert p.load(DAY, accept={f"{REVENUE}:{DAY}/{PROJECT}": "computed sales count from now on"}).success
    assert _revenue(p, DAY) == [("USD", Decimal(400), 20, 10)]


def test_a_bag_as_text_gives_the_same_rows(pipeline: Any) -> None:
    """Scenario: an hour whose bags are JSON objects is delivered again with the same bags as text. Outcome: the tables keep every
    digest, and an hour that came as text alone counts its revenue, its merged users and its items."""
    p = pipeline()
    bags = {"event_properties": SALE, "data": {"merged_amplitude_id": 5}, "user_properties": {"half": '"\\"'}}
    events = [_on(DAY, amplitude_id=n, **bags) for n in range(10)]
    texts = {name: json.dumps(bag) for name, bag in bags.items()}
    p.deliver(DAY, events)
    p.deliver(NEXT, [_on(NEXT, amplitude_id=n, **texts) for n in range(10)])
    p.mark(DAY)
    p.mark(NEXT)
    assert p.load(DAY, NEXT).success
    before = p.digests()
    assert _revenue(p, DAY) == _revenue(p, NEXT) == [("USD", Decimal(200), 10, 1)]

    p.deliver(DAY, [one | texts for one in events])
    assert p.load(DAY).success
    assert p.digests() == before
