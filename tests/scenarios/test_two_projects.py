"""A day speaks for all projects: it is green only where none of them is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import pytest

from tests.support.builders import an_event, events_on

pytestmark = pytest.mark.slow
DAY, NEXT, LAST = date(2026, 2, 2), date(2026, 2, 3), date(2026, 2, 4)
GOOD, BAD = "10001", "10002"


def test_one_bad_project_keeps_the_day_red_for_all(pipeline: Any) -> None:
    """Outcome: the other project's data is published; the day never goes green, the next day does. That one's data version
    and rows are those of the whole day whichever project was loaded, and change only with its content."""
    p = pipeline(projects=(GOOD, BAD))
    for day in (DAY, NEXT):
        p.deliver(day, events_on(day, 10))
        p.deliver(day, events_on(day, 10, app=int(BAD)), project=BAD, truncated=day == DAY)
    run = p.run(DAY, NEXT)
    assert not run.success
    assert run.materialized("raw/regular_events") == run.materialized("refined/events") == {str(NEXT)}
    assert p.count("refined/events", DAY) == 10

    one = p.run(NEXT, projects=[GOOD])
    p.deliver(NEXT, events_on(NEXT, 1, prefix="more", app=int(BAD)), project=BAD, shard=2)
    other = p.run(NEXT, projects=[BAD])
    for table in ("raw/regular_events", "refined/events"):
        shown = [each.metadata(table, NEXT) for each in (run, one, other)]
        assert [metadata["rows"] for metadata in shown] == [20, 20, 21], table
        assert shown[0]["data_version"] == shown[1]["data_version"] != shown[2]["data_version"]
        assert shown[1]["verdict"].startswith(f"{GOOD}: unchanged")
        assert f"; {BAD}: unchanged" in shown[1]["verdict"]

    p.deliver(DAY, events_on(DAY, 5, prefix="more"), shard=2)
    alone = p.must_run(DAY, projects=[GOOD])
    assert p.count("refined/events", DAY) == 15
    assert alone.materialized("refined/events") == alone.materialized("raw/regular_events") == set()
    assert ("raw/regular_events", "delivery_reconciles", str(DAY)) in alone.failed_checks()

    late = an_event(event_time=f"{DAY} 01:00:00.000000", server_upload_time=f"{NEXT} 20:00:00.000000")
    p.deliver(NEXT, [late], hour=20)
    later = p.run(NEXT)
    assert p.count("refined/events", DAY) == 16
    assert later.materialized("refined/events") == later.materialized("raw/regular_events") == {str(NEXT)}


def test_a_day_that_has_not_come_yet_is_no_failure(pipeline: Any) -> None:
    """Scenario: in the morning one project's hours are missing; in the evening they come; the day before never does.
    Outcome: checks only warn before deadlines; a day is green once all projects are there, and red past its deadline."""
    p = pipeline(projects=(GOOD, BAD), calendar_start=DAY)
    p.deliver(DAY, events_on(DAY, 10))
    p.deliver(DAY, events_on(DAY, 4, app=int(BAD)), project=BAD)
    p.now = datetime(2026, 2, 4, 6, tzinfo=UTC)
    p.deliver(LAST, events_on(LAST, 5), hour=5)
    morning = p.must_run(DAY, LAST)
    assert (p.count("refined/events", DAY), p.count("refined/events", LAST)) == (14, 5)
    assert morning.materialized("refined/events") == morning.materialized("raw/regular_events") == {str(DAY)}
    assert not morning.failed_checks()
    warned = morning.failed_checks(dg.AssetCheckSeverity.WARN)
    for asset, check in (
        ("raw/regular_events", "delivery_reconciles"),
        ("aggregates/event_counts", "reconciles_with_refined"),
    ):
        assert {day for *found, day in warned if found == [asset, check]} == {str(NEXT), str(LAST)}

    p.deliver(LAST, events_on(LAST, 5), hour=6, truncated=True)
    noon = p.run(DAY, LAST)
    assert not noon.success
    assert ("raw/regular_events", "delivery_reconciles", str(LAST)) in noon.failed_checks()

    p.deliver(LAST, events_on(LAST, 5), hour=6)
    p.deliver(LAST, events_on(LAST, 6, app=int(BAD)), hour=5, project=BAD)
    evening = p.must_run(DAY, LAST)
    assert evening.materialized("aggregates/event_counts") == {str(DAY), str(LAST)}

    p.now = datetime(2026, 2, 7, tzinfo=UTC)
    over = p.run(DAY, LAST)
    assert not over.success
    assert over.failure().startswith(f"{NEXT} raw/regular_events {GOOD} refused: ")
    assert ("refined/events", "unique_event_key", str(NEXT)) in over.failed_checks()
    assert over.materialized("refined/events") == {str(DAY), str(LAST)}
