"""A day speaks for all projects: it is green only where none of them stands refused."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from tests.builders import an_event, events_on

pytestmark = pytest.mark.slow
DAY, NEXT = date(2026, 2, 2), date(2026, 2, 3)
GOOD, BAD = "10001", "10002"


def test_one_bad_project_keeps_the_day_red_for_all(pipeline: Any) -> None:
    """Scenario: one project's object is broken; then only the good one is loaded again, and a late fact of it arrives.
    Outcome: its data is published each time, the day never goes green, the next day does."""
    p = pipeline(projects=(GOOD, BAD))
    for day in (DAY, NEXT):
        p.deliver(day, events_on(day, 10))
        p.deliver(day, events_on(day, 10, app=int(BAD)), project=BAD, truncated=day == DAY)
    run = p.load(DAY, NEXT)
    assert not run.success
    assert run.materialized("raw/regular_events") == run.materialized("refined/events") == {str(NEXT)}
    assert p.count("refined/events", DAY) == 10

    p.deliver(DAY, events_on(DAY, 5, prefix="more"), shard=2)
    alone = p.load(DAY, projects=[GOOD])
    assert alone.success, alone.failure()
    assert p.count("refined/events", DAY) == 15
    assert alone.materialized("refined/events") == alone.materialized("raw/regular_events") == set()
    assert ("raw/regular_events", "delivery_reconciles", str(DAY)) in alone.failed_checks()

    late = an_event(event_time=f"{DAY} 01:00:00.000000", server_upload_time=f"{NEXT} 20:00:00.000000")
    p.deliver(NEXT, [late], hour=20)
    later = p.load(NEXT)
    assert p.count("refined/events", DAY) == 16
    assert later.materialized("refined/events") == later.materialized("raw/regular_events") == {str(NEXT)}
