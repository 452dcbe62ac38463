"""`diff`: a proposed day beside the published one: figures, keys by cause, samples; as text and as a page."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.inspection.diff import Difference, compare, lines_of, write_page
from pipeline_assets.load.runtime import Runtime
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, events_on

pytestmark = pytest.mark.slow
DAY, NEXT = date(2026, 2, 2), date(2026, 2, 3)
SOON = datetime(2026, 2, 20, tzinfo=UTC)
REFINED, REVENUE = "refined/events", "aggregates/daily_revenue"


def _diff(p: Any, table: str, day: date = DAY, samples: int = 20) -> Difference:
    runtime = Runtime(p.lakehouse, p.ledger, LandingStore.from_settings(p.settings), p.settings)
    return compare(runtime, table, day, PROJECT, p.now, samples=samples)


def test_a_refused_day_beside_the_published_one(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a refused redelivery: events dearer, gone, moved, new.
    Outcome: each is counted and shown by cause; nothing is written; once accepted, a load publishes the proposal."""
    p = pipeline()
    p.now = SOON
    good = events_on(DAY, 300)
    p.deliver(DAY, good)
    p.deliver(NEXT, events_on(NEXT, 300))
    assert p.run(DAY, NEXT).success
    assert _diff(p, REFINED).is_equal
    at = {"server_upload_time": f"{NEXT} 12:00:00.000000", "processed_time": f"{NEXT} 12:00:01.000000"}
    dearer = [
        {**line, "event_properties": {"$revenue": 20, "currency": "EUR"}} if n % 10 == 0 and n < 30 else line
        for n, line in enumerate(good[:200])
    ]
    p.deliver(DAY, [*dearer, *events_on(DAY, 4, prefix="new")])
    p.deliver(NEXT, [{**line, **at, "event_time": f"{NEXT} 00:10:00.000000"} for line in good[201:203]], hour=12)
    run = p.run(DAY, NEXT)
    assert not run.success
    shown = run.check_metadata(REFINED, "change_is_explained", DAY)
    assert "keys only published: 100 (withdrawn 98, moved day 2)" in shown["difference"].value
    assert isinstance(shown["difference"], dg.MarkdownMetadataValue)
    assert shown["look"].value == f"tidemark diff {REFINED} {DAY} --html DIR"
    before = p.history(), p.digests()

    refined, revenue = _diff(p, REFINED), _diff(p, REVENUE)

    assert (p.history(), p.digests()) == before
    assert refined.measures["rows"] == (300, 204)
    assert (refined.keys.kept, refined.keys.changed) == (197, {"new delivery": 3})
    assert refined.keys.removed == {"withdrawn": 98, "moved day": 2}
    assert refined.keys.added == {"new delivery": 4}
    assert "shrinks by 32.0%" in str(refined.evaluation.reason)
    changed = [one for one in refined.samples if one.change == "changed"]
    assert len(changed) == 3
    assert changed[0].values.keys() == {"event_properties"}
    assert "insert_id e-2026-02-02-" in changed[0].name
    removed = [one.cause for one in refined.samples if one.change == "removed"]
    assert removed
    assert set(removed) <= {"withdrawn", "moved day"}
    assert revenue.measures["revenue"] == (75.0, 17 * 2.5 + 3 * 20 + 2.5)
    assert revenue.measures["purchases"] == (30, 21)

    text, page = "\n".join(lines_of(refined)), write_page(refined, tmp_path).read_text("utf-8")
    print(text)
    assert "on record: refused: change_is_explained: final slice shrinks" in text
    assert "keys only published: 100 (withdrawn 98, moved day 2)" in text
    assert "would leave it refused, unless the change is accepted" in text
    assert "only published" in page
    assert "moved day" in page
    accepted = {
        f"{table}:{DAY}": "right" for table in (REFINED, REVENUE, "aggregates/event_counts", "aggregates/active_users")
    }
    assert p.run(DAY, NEXT, accept=accepted).success
    assert str(refined.proposed) == p.digests()[REFINED][refined.key]
    assert str(revenue.proposed) == p.digests()[REVENUE][revenue.key]
    assert _diff(p, REVENUE).is_equal


def test_what_is_delivered_is_no_markup_on_the_page(pipeline: Any, tmp_path: Path) -> None:
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 3))
    assert p.load(DAY).success
    p.deliver(DAY, [{**line, "city": "<script>alert(1)</script>"} for line in events_on(DAY, 3)])
    assert p.load(DAY, tables=["raw/regular_events"]).success

    page = write_page(_diff(p, REFINED), tmp_path).read_text("utf-8")

    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_what_cannot_be_compared_is_said(pipeline: Any) -> None:
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 3))
    assert p.run(DAY).success
    with pytest.raises(UsageError, match="is not a derived table"):
        _diff(p, "raw/regular_events")
    with pytest.raises(UsageError, match="has no rows, neither published nor to come"):
        _diff(p, REFINED, date(2026, 1, 20))
