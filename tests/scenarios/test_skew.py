"""A delivery of which most lies in one object and on one event key: told before it hurts, and divided, with the same result."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration.specs import SKEW_TAG
from tests.support.builders import Outcome, Pipeline, events_on

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)
NEVER = 10**15


def deliver(p: Pipeline) -> None:
    """Twelve thousand events in one object, most of them with the same ids and some without; a few in four others."""
    hot = {"device_id": "server", "insert_id": "constant"}
    large = events_on(DAY, 12_000)
    for number, event in enumerate(large):
        if number % 10 < 7:
            event.update({"device_id": hot["device_id"], "$insert_id": hot["insert_id"]})
            # Some of them are one row twice, some lie on the day before: each fate of a row is among them.
            event["uuid"] = large[number - 1]["uuid"] if number % 10 == 6 else event["uuid"]
            if number % 10 == 3:
                event["event_time"] = event["event_time"].replace(str(DAY), str(DAY - timedelta(days=1)))
        elif number % 10 == 9:
            event["$insert_id"] = None
    p.deliver(DAY, large, hour=3)
    for hour in (4, 5, 6, 7):
        p.deliver(DAY, events_on(DAY, 100, prefix=f"h{hour}"), hour=hour)
    p.deliver(DAY, large[:200], hour=3, source=Source.BACKFILL)


def test_a_large_object_and_a_hot_key_are_told_of_divided_and_change_nothing(pipeline: Any) -> None:
    """Scenario: the same skewed day is loaded by a deployment that divides nothing, and by one that does. Outcome: equal rows in
    every table; before a step its forecast is in the log and on the run, afterwards what its tasks had to do beside it."""
    plain = pipeline(split_object_bytes=NEVER, hot_key_rows=NEVER, skew_warning_ratio=1e9)
    apart = pipeline(split_object_bytes=64 * 1024, hot_key_rows=500, skew_warning_ratio=1.0)
    runs: dict[str, Outcome] = {}
    for name, p in (("plain", plain), ("apart", apart)):
        deliver(p)
        p.run(DAY, source=Source.BACKFILL, tables=["raw/backfill_events"])
        runs[name] = p.run(DAY)
        assert runs[name].success, runs[name].failure()

    assert plain.digests() == apart.digests()
    assert plain.count("refined/events") == apart.count("refined/events") < plain.count("raw/regular_events") // 2

    told = {name: _steps(p, runs[name]) for name, p in (("plain", plain), ("apart", apart))}
    for name, steps in told.items():
        read, compare, write = (steps[step] for step in ("read", "compare", "write"))
        assert read["keys"][0]["heaviest"].endswith("_3#1.json.gz")
        assert read["keys"][0]["heaviest_share"] > 0.9
        assert read["measured"]["total"] == 12_400
        assert read["keys"][-1] == {
            "key": "insert_id", "values": 0, "heaviest": "", "heaviest_share": 0.0, "null_share": 1_200 / 12_400,
        }  # fmt: skip
        assert compare["keys"][0]["heaviest_share"] > 0.9
        assert compare["undivided"]["largest"] > 8_000
        assert write["measured"]["total"] == p_rows(plain), name
    assert told["plain"]["read"]["measured"]["largest"] == 12_000
    assert told["plain"]["compare"]["forecast"] == told["plain"]["compare"]["undivided"]
    assert not any(step["warning"] for step in told["plain"].values())
    assert told["apart"]["read"]["measured"]["largest"] < 12_000 / 2
    assert told["apart"]["read"]["measured"]["ratio"] < told["plain"]["read"]["measured"]["ratio"] / 4
    assert told["apart"]["read"]["undivided"]["ratio"] > 2 * told["apart"]["read"]["forecast"]["ratio"]
    assert told["apart"]["compare"]["forecast"]["ratio"] == 1.0
    assert f"object {told['apart']['read']['keys'][0]['heaviest']} 9" in told["apart"]["read"]["warning"]

    messages = [entry.user_message for entry in apart.instance.all_logs(runs["apart"].run_id)]
    at = {text: n for n, message in enumerate(messages) for text in _TOLD if text in message}
    assert sorted(at, key=lambda text: at[text]) == list(_TOLD)
    tag = apart.instance.get_run_by_id(runs["apart"].run_id).tags[SKEW_TAG]
    ratio = told["apart"]["read"]["forecast"]["ratio"]
    assert tag.startswith(f"raw/regular_events read {ratio:.1f} !; refined/events compare 1.0; refined/events write ")


_TOLD = (
    "raw/regular_events: read: work of",
    "raw/regular_events: warning: the largest task of read",
    "raw/regular_events: read done: 12,400 rows",
    "refined/events: compare: ",
)


def p_rows(p: Pipeline) -> int:
    """Rows that refined holds."""
    return p.count("refined/events")


def _steps(p: Pipeline, run: Outcome) -> dict[str, dict[str, Any]]:
    steps = p.ledger.skew_of_runs(1)[run.run_id]
    assert len({step["table"] for step in steps if step["step"] == "read"}) == 1
    return {step["step"]: step for step in steps}
