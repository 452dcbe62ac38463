"""A late fact lands in the day it belongs to, and only that day changes."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from tests.builders import an_event, events_on

pytestmark = pytest.mark.slow
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(3)]
CHANGED = ("raw/regular_events", "refined/events", "aggregates/event_counts", "aggregates/active_users")


def test_a_fact_two_days_late_republishes_its_day_only(pipeline: Any) -> None:
    """Scenario: an event of day 1 arrives on day 3. Outcome: one more publication per table, of day 1 alone."""
    p = pipeline()
    for day in DAYS:
        p.deliver(day, events_on(day, 20))
    assert p.load(DAYS[0], DAYS[-1]).success
    before, known = p.history(), len(p.ledger.publications())

    late = an_event(
        event_time=f"{DAYS[0]} 09:00:00.000000", server_upload_time=f"{DAYS[2]} 15:00:00.000000", amplitude_id=999
    )
    p.deliver(DAYS[2], [late], hour=15)
    run = p.load(DAYS[2])

    assert run.success, run.failure()
    new = p.ledger.publications()[known:]
    assert {(record.table, record.key.event_date) for record in new} == {(table, DAYS[0]) for table in CHANGED}
    after = p.history()
    assert {table for table in after if after[table] == before[table] + 1} == set(CHANGED)
    assert all(after[table] == before[table] for table in after.keys() - set(CHANGED))
    # The late day goes green in this run too, beside the requested one.
    assert run.materialized("refined/events") == {str(DAYS[0]), str(DAYS[2])}
    assert p.count("refined/events", DAYS[0]) == 21
