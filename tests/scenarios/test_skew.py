"""A delivery mostly in one object and on one key: forecast, divided, with the same result."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain import skew
from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration.specs import SKEW_TAG
from resources.ledger.schema import RUNS
from tests.support.builders import RAW_AND_REFINED, Outcome, Pipeline, events_on

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)
NEVER = 10**15


def deliver(p: Pipeline) -> None:
    """Twelve thousand events in one object, most with the same ids and some without; a few in four others."""
    hot = {"device_id": "server", "insert_id": "constant"}
    large = events_on(DAY, 12_000)
    for number, event in enumerate(large):
        if number % 10 < 7:
            event.update({"device_id": hot["device_id"], "$insert_id": hot["insert_id"]})
            # Some are one row twice, some lie on the day before: each fate occurs.
            event["uuid"] = large[number - 1]["uuid"] if number % 10 == 6 else event["uuid"]
            if number % 10 == 3:
                event["event_time"] = event["event_time"].replace(str(DAY), str(DAY - timedelta(days=1)))
        elif number % 10 == 9:
            event["$insert_id"] = None
    p.deliver(DAY, large, hour=3)
    for hour in (4, 5, 6, 7):
        p.deliver(DAY, events_on(DAY, 100, prefix=f"h{hour}"), hour=hour)
    p.deliver(DAY, large[:200], hour=3, source=Source.BACKFILL)


def test_a_large_object_and_a_hot_key_are_told_of_divided_and_change_nothing(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the same day with bounds that divide nothing, and low ones. Outcome: equal rows; both are reported."""
    lakes: dict[str, Pipeline] = {}
    runs: dict[str, Outcome] = {}
    for name, bounds in (("plain", (NEVER, NEVER, 1e9)), ("apart", (64 * 1024, 500, 1.0))):
        for bound, value in zip(("SPLIT_BYTES", "HOT_KEY_ROWS", "MOST_TIMES"), bounds, strict=True):
            monkeypatch.setattr(skew, bound, value)
        p = lakes[name] = pipeline(only=RAW_AND_REFINED)
        deliver(p)
        p.run(DAY, source=Source.BACKFILL, tables=["raw/backfill_events"])
        runs[name] = p.run(DAY)
        assert runs[name].success, runs[name].failure()
    plain, apart = lakes["plain"], lakes["apart"]

    assert plain.digests() == apart.digests()
    assert plain.count("refined/events") == apart.count("refined/events") < plain.count("raw/regular_events") // 2

    told = {name: _steps(p, runs[name]) for name, p in lakes.items()}
    for name, steps in told.items():
        read, compare, write = (steps[step] for step in ("read", "compare", "write"))
        assert read["keys"][0]["value"].endswith("_3#1.json.gz")
        assert read["keys"][0]["share"] > 0.9
        assert read["measured"]["total"] == 12_400
        assert compare["keys"][0]["share"] > 0.9
        assert write["measured"]["total"] == plain.count("refined/events"), name
    assert told["plain"]["read"]["measured"]["largest"] == 12_000
    assert told["plain"]["compare"]["forecast"]["largest"] > 8_000
    assert not any(step["warning"] for step in told["plain"].values())
    assert told["apart"]["read"]["measured"]["largest"] < 12_000 / 2
    assert told["apart"]["read"]["measured"]["ratio"] < told["plain"]["read"]["measured"]["ratio"] / 4
    assert told["apart"]["compare"]["forecast"]["ratio"] == 1.0
    assert f"object {told['apart']['read']['keys'][0]['value']} 9" in told["apart"]["read"]["warning"]

    messages = [entry.user_message for entry in apart.instance.all_logs(runs["apart"].run_id)]
    at = {text: n for n, message in enumerate(messages) for text in _TOLD if text in message}
    assert sorted(at, key=lambda text: at[text]) == list(_TOLD)
    tag = apart.instance.get_run_by_id(runs["apart"].run_id).tags[SKEW_TAG]
    ratio = told["apart"]["read"]["forecast"]["ratio"]
    assert tag.startswith(f"raw/regular_events read {ratio:.1f} !; refined/events compare 1.0; refined/events write ")


_TOLD = (
    "raw/regular_events: warning: the largest task of read",
    "raw/regular_events: read done: 12,400 rows",
)


def _steps(p: Pipeline, run: Outcome) -> dict[str, dict[str, Any]]:
    with p.ledger.engine.connect() as connection:
        steps = connection.execute(sa.select(RUNS.c.skew).where(RUNS.c.run_id == run.run_id)).scalar_one()
    assert len({step["table"] for step in steps if step["step"] == "read"}) == 1
    return {step["step"]: step for step in steps}
