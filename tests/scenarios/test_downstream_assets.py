"""A user's own asset below our tables runs for good days only, once per change."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.scenarios import downstream_asset
from tests.scenarios.downstream_asset import REVENUE_REPORT, with_tidemark
from tests.support.builders import RAW_AND_REFINED, events_on

DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(4)]
COUNTS = (110, 120, 130, 140)
"""Events of each day; every tenth is a purchase of 2.50 EUR."""
PAGE = Path(__file__).parents[2] / "docs" / "your-own-assets.md"


class Daemon:
    """Evaluates the conditions tick by tick, as Dagster's daemon does, each from where the last one ended."""

    def __init__(self, p: Any) -> None:
        self._defs, self._instance = with_tidemark(p.settings), p.instance
        self._cursor: Any = None

    def requests(self) -> set[str]:
        tick = dg.evaluate_automation_conditions(self._defs, self._instance, cursor=self._cursor)
        self._cursor = tick.cursor
        return {str(day) for day in tick.get_requested_partitions(REVENUE_REPORT)}

    def run(self, day: str) -> dict[str, Any]:
        job = self._defs.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(asset_selection=[REVENUE_REPORT], partition_key=day, instance=self._instance)
        (event,) = result.asset_materializations_for_node("reports__revenue_report")
        return {name: value.value for name, value in event.metadata.items() if name.startswith("revenue_")}


@pytest.mark.slow
def test_an_asset_below_ours_runs_for_good_days_only(pipeline: Any) -> None:
    """Scenario: days are unreadable, refused, healed and changed right after a request.
    Outcome: each tick requests exactly the good and new days, and the asset reads the published rows."""
    p = pipeline(only=(*RAW_AND_REFINED, "aggregates/daily_revenue"))
    days = [str(day) for day in DAYS]
    for day, count in zip(DAYS, COUNTS, strict=True):
        p.deliver(day, events_on(day, count), truncated=day == DAYS[1])
    daemon = Daemon(p)

    assert not p.run(DAYS[0], DAYS[3]).success
    p.deliver(DAYS[3], events_on(DAYS[3], 60))
    assert "shrinks" in p.run(DAYS[3]).failure()
    assert p.verdict("aggregates/daily_revenue", DAYS[3]) == "waiting"
    assert daemon.requests() == {days[0], days[2]}
    assert daemon.run(days[2]) == {"revenue_EUR": 32.5}
    assert daemon.requests() == set()

    p.deliver(DAYS[1], events_on(DAYS[1], COUNTS[1]))
    p.deliver(DAYS[3], events_on(DAYS[3], COUNTS[3]))
    p.deliver(DAYS[2], events_on(DAYS[2], 60))
    run = p.run(DAYS[0], DAYS[3])
    assert "shrinks" in run.failure()
    assert run.materialized("aggregates/daily_revenue") == {days[0], days[1], days[3]}
    assert daemon.requests() == {days[1], days[3]}
    assert daemon.run(days[1]) == {"revenue_EUR": 30.0}

    p.deliver(DAYS[1], events_on(DAYS[1], 10, prefix="new"), shard=2)
    run = p.must_run(DAYS[0], DAYS[3])
    assert run.materialized("aggregates/daily_revenue") == {days[0], days[1], days[3]}
    assert daemon.requests() == {days[1]}
    assert daemon.run(days[1]) == {"revenue_EUR": 32.5}
    assert daemon.requests() == set()
    _read_as_the_page_says(p, DAYS[3], expected={"EUR": 35.0})


def _read_as_the_page_says(p: Any, day: date, expected: dict[str, float]) -> None:
    names: dict[str, Any] = {"settings": p.settings, "day": day}
    exec(_code_blocks()[1], names)
    rows = names["rows"].to_pylist()
    assert {row["currency"]: float(row["revenue"]) for row in rows} == expected


def _code_blocks() -> list[str]:
    return [part.split("\n```", 1)[0] + "\n" for part in PAGE.read_text("utf-8").split("```python\n")[1:]]


def test_the_page_shows_the_code_that_is_tested() -> None:
    assert _code_blocks()[0] == Path(downstream_asset.__file__).read_text("utf-8")
