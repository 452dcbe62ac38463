"""`diff`: a proposed day beside the published one: figures, keys by cause, samples; as text and as a page."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.inspection.diff import Difference, compare, lines_of, write_page
from tests.support.builders import PROJECT, RAW_AND_REFINED, events_on, sent_again
from tests.support.world import SOON, Story, Tables

pytestmark = pytest.mark.slow
DAY, NEXT = date(2026, 2, 2), date(2026, 2, 3)
REFINED, REVENUE = "refined/events", "aggregates/daily_revenue"


def _diff(p: Any, table: str, day: date = DAY, project: str = PROJECT) -> Difference:
    return compare(p.runtime, table, day, project, p.now, samples=20)


def test_a_refused_day_beside_the_published_one(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a refused redelivery: events dearer, gone, moved, new; another project's text is markup.
    Outcome: each is counted and shown by cause; nothing is written; once accepted, a load publishes the proposal; the
    page shows markup as text; what cannot be compared is said."""
    p = pipeline(projects=(PROJECT, "10002"), only=(*RAW_AND_REFINED, REVENUE))
    p.now = SOON
    other = Story(p, "10002", Tables(p))
    other.deliver(DAY, events_on(DAY, 3))
    other.deliver(NEXT, events_on(NEXT, 1))
    good = events_on(DAY, 300)
    p.deliver(DAY, good)
    p.deliver(NEXT, events_on(NEXT, 300))
    p.must_run(DAY, NEXT)
    assert _diff(p, REFINED).is_equal
    dearer = [
        {**line, "event_properties": {"$revenue": 20, "currency": "EUR"}} if n % 10 == 0 and n < 30 else line
        for n, line in enumerate(good[:200])
    ]
    p.deliver(DAY, [*dearer, *events_on(DAY, 4, prefix="new")])
    p.deliver(NEXT, [sent_again(line, NEXT, to=NEXT, at="00:10") for line in good[201:203]], hour=12)
    run = p.run(DAY, NEXT, projects=[PROJECT])
    assert not run.success
    other.deliver(DAY, [{**line, "city": "<script>alert(1)</script>"} for line in events_on(DAY, 3)])
    p.must_load(DAY, tables=["raw/regular_events"], projects=[other.project])
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
    accepted = {f"{table}:{DAY}": "right" for table in (REFINED, REVENUE)}
    p.must_run(DAY, NEXT, accept=accepted, projects=[PROJECT])
    assert str(refined.proposed) == p.digests()[REFINED][refined.key]
    assert str(revenue.proposed) == p.digests()[REVENUE][revenue.key]
    assert _diff(p, REVENUE).is_equal
    with pytest.raises(UsageError, match="is not a derived table"):
        _diff(p, "raw/regular_events")
    with pytest.raises(UsageError, match="has no rows, neither published nor to come"):
        _diff(p, REFINED, date(2026, 1, 20))

    page = write_page(_diff(p, REFINED, project=other.project), tmp_path).read_text("utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
