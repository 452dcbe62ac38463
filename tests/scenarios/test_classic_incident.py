"""The classic incident: a correcting backfill delivers history again, and totals must not double."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from pipeline_assets.domain.slices import Source
from tests.support.builders import events_on

pytestmark = [pytest.mark.slow, pytest.mark.workers]
FIRST = date(2026, 2, 2)
DAYS = [FIRST + timedelta(days=shift) for shift in range(3)]


def test_history_delivered_again_is_counted_once(pipeline: Any) -> None:
    """Scenario: correct history is loaded, then a backfill delivers all of it again, one amount corrected.
    Outcome: events are counted once and the correction wins; appending the same files does double."""
    p = pipeline()
    for day in DAYS:
        p.deliver(day, events_on(day, 40))
    assert p.load(DAYS[0], DAYS[-1]).success
    revenue = sum(row["revenue"] for row in p.rows("aggregates/daily_revenue"))
    assert p.count("refined/events") == 120
    assert revenue == Decimal("30")

    for day in DAYS:
        again = events_on(day, 40)
        if day == DAYS[1]:
            again[0]["event_properties"] = {"$revenue": 3.5, "currency": "EUR"}
            again[0]["processed_time"] = f"{day} 23:00:00.000000"
        p.deliver(day, again, source=Source.BACKFILL, shard=9)
    assert p.load(DAYS[0], DAYS[-1], source=Source.BACKFILL).success

    assert p.count("raw/regular_events") == p.count("raw/backfill_events") == 120
    assert p.count("refined/events") == 120
    assert sum(row["revenue"] for row in p.rows("aggregates/daily_revenue")) == revenue + 1
    assert sum(row["events"] for row in p.rows("aggregates/event_counts")) == 120
    duplicates = [r.figures["delivery_duplicate"] for r in p.ledger.slices("refined/events", None).values()]
    assert sum(duplicates) == 120

    # Negative control: the same files through a job that appends.
    naive = f"{p.settings.catalog_name}.control.naive"
    p.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {p.settings.catalog_name}.control")
    p.spark.sql(f"CREATE TABLE {naive} (uuid string, event_time string) USING iceberg")
    for folder in sorted(path for path in p.landing.iterdir() if path.is_dir()):
        p.spark.read.schema("uuid string, event_time string").json(str(folder)).writeTo(naive).append()
    assert p.spark.table(naive).count() == 240
