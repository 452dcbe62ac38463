"""A range with bad days: the good ones complete end to end, the bad ones keep their old state and say why."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from tests.support.builders import events_on

pytestmark = pytest.mark.slow
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(5)]
TABLES = (
    "raw/regular_events",
    "refined/events",
    "aggregates/daily_revenue",
    "aggregates/event_counts",
    "aggregates/active_users",
)


def test_three_of_five_days_complete_and_two_stay_red(pipeline: Any) -> None:
    """Scenario: five published days get new deliveries; day 2's cannot be read, day 4's lost half of its rows.
    Outcome: one run, three days green in every table, two red with reasons and old state; again: unchanged, green."""
    p = pipeline()
    for day in DAYS:
        p.deliver(day, events_on(day, 120))
    assert p.run(DAYS[0], DAYS[-1]).success
    before = p.digests()

    for day in (DAYS[0], DAYS[2], DAYS[4]):
        p.deliver(day, events_on(day, 6, prefix="new"), shard=2)
    broken = p.deliver(DAYS[1], events_on(DAYS[1], 6, prefix="new"), shard=2, truncated=True)
    p.deliver(DAYS[3], events_on(DAYS[3], 60))
    run = p.run(DAYS[0], DAYS[-1])

    assert not run.success
    good = {str(day) for day in (DAYS[0], DAYS[2], DAYS[4])}
    for table in TABLES[1:]:
        assert run.materialized(table) == good, table
    assert run.materialized("raw/regular_events") == good | {str(DAYS[3])}
    failed = run.failed_checks()
    assert ("raw/regular_events", "delivery_reconciles", str(DAYS[1])) in failed
    assert ("refined/events", "change_is_explained", str(DAYS[3])) in failed
    assert not {partition for _, _, partition in failed} & good
    assert broken in run.failure()
    assert "truncated_gzip" in run.failure()
    assert "rows 120 -> 60" in run.failure()
    after = p.digests()
    for table in TABLES[1:]:
        kept = {key for key in before[table] if before[table][key] == after[table].get(key)}
        assert {key.event_date for key in kept} >= {DAYS[1], DAYS[3]}, table
    assert p.verdict("refined/events", DAYS[1]) == "waiting"
    assert p.verdict("refined/events", DAYS[3]) == "refused"
    assert p.verdict("aggregates/event_counts", DAYS[3]) == "waiting"
    assert p.count("refined/events", DAYS[0]) == 126
    assert p.count("refined/events", DAYS[3]) == 120
    assert [row["reason"] for row in p.rows("raw/quarantine")] == ["truncated_gzip"]

    snapshots = p.snapshots()
    again = p.run(DAYS[0], DAYS[-1])
    assert again.success, again.failure()
    for table in TABLES[1:]:
        assert again.materialized(table) == good, table
        assert p.verdict(table, DAYS[0]) == "unchanged"
    assert again.failed_checks() == failed
    assert p.snapshots() == snapshots

    # The way out: the hour is exported again, whole.
    p.deliver(DAYS[1], events_on(DAYS[1], 6, prefix="new"), shard=2)
    p.deliver(DAYS[3], events_on(DAYS[3], 120))
    healed = p.run(DAYS[0], DAYS[-1])
    assert healed.success, healed.failure()
    assert not healed.failed_checks()
    assert p.count("refined/events", DAYS[1]) == 126
    assert p.digests()["refined/events"] != before["refined/events"]
