"""Intervals equal snapshots: each day of each id lies in exactly one, and none outside of a snapshot."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.transforms.snapshot_rows import days_of_items, intervals_of, items_by_interval, items_by_snapshot

pytestmark = pytest.mark.slow
START = date(2026, 1, 28)
HISTORY = {"a": "AAAAIIAA", "b": "AA  AAAA", "c": "IIIIIIII", "d": "    A   ", "e": "AIAIAIAI"}
"""Id -> its status on eight days over a month's end; the fourth day has no snapshot."""
WITHOUT = 3


def test_intervals_of_a_history(spark: Any) -> None:
    """Scenario: ids change, vanish, come back; one day is missing.
    Outcome: intervals equal a plain walk over the days, by both ways to ask for a day's items."""
    rows = [
        (START + timedelta(days=number), key, status)
        for key, statuses in HISTORY.items()
        for number, status in enumerate(statuses)
        if status != " " and number != WITHOUT
    ]
    snapshots = spark.createDataFrame(rows, "snapshot_date date, id string, status string")
    intervals = intervals_of(snapshots).persist()
    found = {(r["id"], r["status"], r["active_start_date"], r["active_end_date"]) for r in intervals.collect()}
    assert found == _walked(rows)
    assert all(r["validity_month"] == r["active_start_date"].replace(day=1) for r in intervals.collect())
    days = days_of_items(spark, {START + timedelta(days=number): START + timedelta(days=number) for number in range(8)})
    by_snapshot, by_interval = (
        sorted(map(tuple, frame.collect()))
        for frame in (items_by_snapshot(snapshots, days), items_by_interval(intervals, days))
    )
    assert by_snapshot == by_interval == sorted(rows)
    lacking = START + timedelta(days=WITHOUT)
    bridged = days_of_items(spark, {lacking: lacking - timedelta(days=1)})
    wanted = sorted((lacking, key, status) for day, key, status in rows if day == lacking - timedelta(days=1))
    assert sorted(map(tuple, items_by_interval(intervals, bridged).collect())) == wanted


def _walked(rows: list[tuple[date, str, str]]) -> set[tuple[str, str, date, date]]:
    stretches: list[list[Any]] = []
    for day, key, status in sorted(rows, key=lambda row: (row[1], row[0])):
        last = stretches[-1] if stretches else None
        goes_on = last is not None and last[:2] == [key, status] and last[3] == day - timedelta(days=1) and day.day != 1
        if goes_on and last is not None:
            last[3] = day
        else:
            stretches.append([key, status, day, day])
    return {tuple(stretch) for stretch in stretches}  # type: ignore[misc]  # lists of four as tuples of four
