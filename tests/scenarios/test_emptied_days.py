"""A day that becomes empty: emptied while provisional, refused once final, emptied when a person accepts it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from pipeline_assets.tables.registry import DERIVED
from tests.support.builders import events_on

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
ALL = ("raw/regular_events", *(table.key for table in DERIVED))


def test_a_provisional_day_is_emptied_in_every_table(pipeline: Any) -> None:
    """Scenario: a day still open is delivered again, empty. Outcome: every table is empty for the day."""
    p = pipeline()
    p.now = datetime(2026, 2, 3, 6, tzinfo=UTC)
    p.deliver(DAY, events_on(DAY, 150))
    assert p.load(DAY).success
    assert p.count("refined/events", DAY) == 150
    p.deliver(DAY, [])
    assert p.load(DAY).success
    for table in ALL:
        assert p.count(table, DAY) == 0, table


def test_a_final_day_is_emptied_only_when_accepted(pipeline: Any) -> None:
    """Scenario: a closed day is delivered again, empty. Outcome: refused as a shrink; with a reason, emptied."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 150))
    assert p.load(DAY).success
    p.deliver(DAY, [])
    refused = p.load(DAY)
    assert not refused.success
    assert "shrinks" in refused.failure()
    assert p.count("refined/events", DAY) == 150
    assert p.count("aggregates/event_counts", DAY) == 1

    accept = {f"{table.key}:{DAY}": "the vendor withdrew the day" for table in DERIVED}
    accepted = p.load(DAY, accept=accept)
    assert accepted.success, accepted.failure()
    for table in ALL:
        assert p.count(table, DAY) == 0, table
    reasons = {r.accepted_reason for r in p.ledger.publications("refined/events") if r.digest_after.rows == 0}
    assert reasons == {"the vendor withdrew the day"}
