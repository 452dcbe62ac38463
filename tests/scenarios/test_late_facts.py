"""A late fact lands in the day it belongs to, and only that day changes."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from tests.support.builders import an_event, events_on

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(3)]
CHANGED = ("raw/regular_events", "refined/events", "aggregates/event_counts", "aggregates/active_users")


def test_a_fact_two_days_late_republishes_its_day_only(pipeline: Any) -> None:
    """Scenario: an event of day 1 arrives on day 3. Outcome: one more publication per table, of day 1 alone."""
    p = pipeline()
    for day in DAYS:
        p.deliver(day, events_on(day, 20))
    assert p.run(DAYS[0], DAYS[-1]).success
    before, known = p.history(), len(p.ledger.publications())

    late = an_event(
        event_time=f"{DAYS[0]} 09:00:00.000000", server_upload_time=f"{DAYS[2]} 15:00:00.000000", amplitude_id=999
    )
    p.deliver(DAYS[2], [late], hour=15)
    run = p.run(DAYS[2])

    assert run.success, run.failure()
    new = p.ledger.publications()[known:]
    assert {(record.table, record.key.event_date) for record in new} == {(table, DAYS[0]) for table in CHANGED}
    after = p.history()
    assert {table for table in after if after[table] == before[table] + 1} == set(CHANGED)
    assert all(after[table] == before[table] for table in after.keys() - set(CHANGED))
    # The late day goes green in this run too, beside the requested one.
    assert run.materialized("refined/events") == {str(DAYS[0]), str(DAYS[2])}
    assert p.count("refined/events", DAYS[0]) == 21


def test_late_facts_that_are_withdrawn_leave_their_far_day_again(pipeline: Any) -> None:
    """Scenario: a delivery brings late facts of a day weeks ago, then comes again without them. Outcome: the far day is
    published with them, and without them again, in raw and in all that is built from it."""
    p = pipeline()
    far, now = DAYS[0], DAYS[0] + timedelta(days=36)
    p.deliver(far, events_on(far, 5))
    assert p.load(far).success
    p.deliver(now, [*events_on(now, 3), *events_on(far, 2, prefix="late")])
    assert p.load(now).success
    assert (p.count("raw/regular_events", far), p.count("refined/events", far)) == (7, 7)

    p.deliver(now, events_on(now, 3))
    run = p.load(now)

    assert run.success, run.failure()
    assert (p.count("raw/regular_events", far), p.count("refined/events", far)) == (5, 5)
    assert sum(row["events"] for row in p.rows("aggregates/event_counts") if row["event_date"] == far) == 5
    history = p.history()
    assert p.load(now).success
    assert p.history() == history
