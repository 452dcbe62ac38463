"""Each delivery of intervals is the whole history; only changed days are computed again."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.slices import ALL_PROJECTS, Slice
from pipeline_assets.inspection.verify import ReplayMatch
from pipeline_assets.load.build import snapshot
from tests.scenarios.test_dimensions import EVENTS, LOADED, _asked_for, _record, _runs_of
from tests.scenarios.test_prove import _prove
from tests.support.dimensions import (
    ACTIVE,
    SNAPSHOTS,
    VALIDITY,
    active_events,
    deliver_intervals,
    deliver_items,
    item_events,
    load_items,
    must_load_items,
)

pytestmark = pytest.mark.slow
JANUARY, FIRST, SECOND, THIRD = date(2026, 1, 20), date(2026, 2, 2), date(2026, 2, 3), date(2026, 2, 4)
MONTHS = (date(2026, 1, 1), date(2026, 2, 1))
HISTORY = [
    ("1", "ACTIVE", date(2025, 6, 1), None, "Bern"), ("2", "INACTIVE", date(2025, 6, 1), date(2026, 2, 2), "Bern"),
    ("2", "ACTIVE", date(2026, 2, 3), None, "Bern"), ("3", "ACTIVE", date(2025, 6, 1), date(2026, 1, 25), "Basel"),
]  # fmt: skip
"""Id, status, first day, last day, site."""


def _intervals(p: Any) -> set[tuple[str, str, date, date]]:
    return {(r["id"], r["status"], r["active_start_date"], r["active_end_date"]) for r in p.rows(VALIDITY)}


def _verdicts(p: Any) -> list[str]:
    return [_record(p, VALIDITY, month, ALL_PROJECTS).verdict.value for month in MONTHS]


def _proof(p: Any, scratch: Path) -> dict[tuple[str, date], ReplayMatch]:
    """Table and day -> result of its replay, for dimensions and the tables joined with them."""
    proof = _prove(p, scratch, FIRST, SECOND)
    return {
        (one.table, one.key.event_date): one.match for one in proof.slices if one.table in (SNAPSHOTS, VALIDITY, ACTIVE)
    }


def test_delivered_intervals(pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the history of items comes with a snapshot; then broken, smaller, corrected and contradicting ones.
    Outcome: a refusal changes nothing; a correction recomputes the changed days; contradictions are not published."""
    monkeypatch.setattr(snapshot, "FEW_ITEMS", 1)
    p = pipeline(delivered_intervals=("item",))
    p.now = datetime(2026, 2, 4, 12, tzinfo=UTC)
    days = (JANUARY, FIRST, SECOND)
    for day in days:
        p.deliver(day, item_events(day, EVENTS))
        p.mark(day)
    assert p.load(JANUARY, SECOND, tables=LOADED).success is False, "days between were not delivered"
    deliver_items(p, FIRST, {"1": "ACTIVE", "2": "INACTIVE"})
    deliver_intervals(p, SECOND, HISTORY)
    assert _asked_for(p)[0] == {str(FIRST)}, "one run for both days"
    must_load_items(p, FIRST, SECOND)
    start = date(2026, 1, 1)
    assert _intervals(p) == {
        ("1", "ACTIVE", start, date(2026, 1, 31)),
        ("1", "ACTIVE", date(2026, 2, 1), SECOND),
        ("2", "INACTIVE", start, date(2026, 1, 31)),
        ("2", "INACTIVE", date(2026, 2, 1), FIRST),
        ("2", "ACTIVE", SECOND, SECOND),
        ("3", "ACTIVE", start, date(2026, 1, 25)),
    }
    assert {r["attributes"] for r in p.rows(VALIDITY)} == {'{"site":"Bern"}', '{"site":"Basel"}'}
    assert active_events(p) == {
        (JANUARY, "1"): 3, (JANUARY, "3"): 1, (FIRST, "1"): 3, (SECOND, "1"): 3, (SECOND, "2"): 2,
    }  # fmt: skip
    agreed = {
        day: next(e for e in _record(p, ACTIVE, day).evaluations if e.check.name == "methods_agree") for day in days
    }
    assert agreed[FIRST].figures == {"rows_by_snapshot": 1, "rows_by_interval": 1}
    assert agreed[SECOND].reason == "no snapshot of the day is published to compare with"
    assert _asked_for(p)[0] == set()

    history, used = p.history_of(VALIDITY), {day: _runs_of(p, ACTIVE, day) for day in days}
    key = deliver_intervals(p, THIRD, [*HISTORY, ("1", "INACTIVE", date(2026, 2, 1), date(2026, 2, 2), "Bern")])
    refused = load_items(p, THIRD)
    assert not refused.success
    assert f"{key}: line 6: the interval of the id '1' overlaps with the one on line 2" in refused.failure()
    assert (_verdicts(p), p.history_of(VALIDITY)) == (["unchanged", "refused"], history)
    assert load_items(p, THIRD).success, "the same refusal fails no second run"
    assert f"{key} is refused: intervals_are_whole: {key}: line 6" in _asked_for(p)[1]
    deliver_intervals(p, THIRD, [HISTORY[0][:4]], as_json=True)
    (p.landing / key).unlink()
    smaller = load_items(p, THIRD).failure()
    assert f"{key.replace('csv', 'jsonl')}: of 2026-01-01 1 items, 3 are published: 66.7% fewer" in smaller
    assert p.history_of(VALIDITY) == history
    (p.landing / key.replace("csv", "jsonl")).unlink()

    corrected = [("2", "INACTIVE", date(2025, 6, 1), JANUARY, "Bern"), ("2", "ACTIVE", date(2026, 1, 21), None, "Bern")]
    deliver_intervals(p, THIRD, [HISTORY[0], ("3", "INACTIVE", date(2025, 6, 1), None, "Basel"), *corrected])
    told = load_items(p, THIRD, accept={f"{VALIDITY}:2026-02-01": "a third item was forgotten"})
    assert "methods_agree" in told.failure()
    assert "have the wrong one delivered again" in told.failure()
    assert _verdicts(p) == ["published", "published"]
    assert ("3", "INACTIVE", start, date(2026, 1, 31)) in _intervals(p)
    changed = {day for day in days if _runs_of(p, ACTIVE, day) != used[day]}
    assert changed == {JANUARY}
    assert _record(p, ACTIVE, FIRST).verdict.value == "refused", (
        "the snapshot knows two items, and the second is inactive"
    )
    assert active_events(p)[FIRST, "1"] == 3, "what was published stays"
    assert _record(p, ACTIVE, SECOND).verdict.value == "unchanged", "a third item that is inactive counts for nothing"
    used = {day: _runs_of(p, ACTIVE, day) for day in days}
    deliver_items(p, FIRST, {"1": "ACTIVE", "2": "ACTIVE", "3": "INACTIVE"})
    must_load_items(p, FIRST, accept={f"{SNAPSHOTS}:{FIRST}": "corrected"})
    assert (active_events(p)[FIRST, "2"], _record(p, ACTIVE, FIRST).verdict.value) == (2, "published")
    assert {day for day in days if _runs_of(p, ACTIVE, day) != used[day]} == {FIRST}
    excluded = {f"dimensions/item_validity/{THIRD}.csv": "a wrong history"}
    load_items(p, THIRD, exclude=excluded)
    assert ("3", "ACTIVE", start, date(2026, 1, 25)) in _intervals(p), "the delivery before it stands"
    assert max(end for *_, end in _intervals(p)) == SECOND
    assert (active_events(p)[JANUARY, "3"], _record(p, ACTIVE, JANUARY).verdict.value) == (1, "published")
    must_load_items(p, THIRD, include=excluded)
    assert ("3", "INACTIVE", start, date(2026, 1, 31)) in _intervals(p)
    assert (JANUARY, "3") not in active_events(p)
    assert p.ledger.slices(VALIDITY, [ALL_PROJECTS]).keys() == {Slice(month, ALL_PROJECTS) for month in MONTHS}

    proof = _proof(p, tmp_path / "proof")
    assert {(SNAPSHOTS, FIRST), (VALIDITY, MONTHS[1]), (ACTIVE, FIRST), (ACTIVE, SECOND)} <= proof.keys()
    assert set(proof.values()) == {ReplayMatch.EQUAL}, proof
    lake = p.settings.catalog_name
    p.spark.sql(
        f"UPDATE {lake}.dimensions.item_validity SET status = 'GONE' WHERE id = '1' AND validity_month > '2026-01-31'"
    )
    p.spark.sql(f"DELETE FROM {lake}.dimensions.item_snapshot WHERE snapshot_date = DATE '{FIRST}'")
    proof = _proof(p, tmp_path / "changed")
    assert {place: match for place, match in proof.items() if match is not ReplayMatch.EQUAL} == {
        (VALIDITY, MONTHS[1]): ReplayMatch.DIFFERS,
        (SNAPSHOTS, FIRST): ReplayMatch.MISSING,
    }
