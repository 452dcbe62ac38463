"""Where a day stands lasts: it is shown in Dagster and in the ledger, fails no second run, and every state has its way out."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import Slice, Source
from tests.builders import LATER, PROJECT, events_on

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
RAW, REFINED, COUNTS = "raw/regular_events", "refined/events", "aggregates/event_counts"


def _record(p: Any, table: str, day: date = DAY) -> Any:
    return p.ledger.slices(table, [PROJECT], [day])[Slice(day, PROJECT)]


def test_a_provisional_day_becomes_final(pipeline: Any) -> None:
    """Scenario: a day is loaded while its late events may still come, and again when they cannot. Outcome: metadata and
    ledger say provisional, then final; the numbers are not published twice."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 10))
    p.mark(DAY)
    p.now = datetime(2026, 2, 3, 6, tzinfo=UTC)
    first = p.load(DAY)
    assert first.success, first.failure()
    assert first.metadata(REFINED, DAY)["verdict"] == f"{PROJECT}: published, provisional"
    assert not _record(p, REFINED).is_final
    history = p.history()
    # The days in which its late events may still arrive must be there too.
    for shift in range(1, 4):
        p.deliver(DAY + timedelta(days=shift), events_on(DAY + timedelta(days=shift), 1))
    p.now = LATER
    again = p.load(DAY, DAY + timedelta(days=3))
    assert again.success, again.failure()
    assert again.metadata(REFINED, DAY)["verdict"] == f"{PROJECT}: unchanged, final"
    assert again.metadata(COUNTS, DAY)["verdict"] == f"{PROJECT}: unchanged, final"
    assert "final" not in again.metadata(RAW, DAY)["verdict"]
    assert _record(p, REFINED).is_final
    assert history[REFINED] + 1 == p.history()[REFINED]


def test_nothing_is_built_on_a_refused_day_whatever_is_selected(pipeline: Any) -> None:
    """Scenario: a final day's correction is refused in refined; then aggregates alone, refined alone and all are asked for,
    and the next day's own delivery cannot be read. Outcome: nothing is built on either; each is told once, with its cure."""
    p = pipeline()
    for day in (DAY, NEXT):
        p.deliver(day, events_on(day, 120))
    assert p.load(DAY, NEXT).success
    history = p.history()
    p.deliver(DAY, events_on(DAY, 60))
    p.deliver(NEXT, events_on(NEXT, 1, prefix="bad"), hour=20, truncated=True)

    alone = p.load(NEXT, tables=[RAW])
    assert not alone.success
    below = p.load(NEXT, tables=[REFINED, COUNTS])
    assert not below.success
    assert below.materialized(REFINED) == below.materialized(COUNTS) == set()
    assert "raw/regular_events 2026-02-03/10001 stands refused" in below.failure()
    assert not p.load(DAY).success

    for tables in ([COUNTS], [REFINED], [REFINED, COUNTS], ()):
        again = p.load(DAY, NEXT, tables=tables)
        assert again.success, (tables, again.failure())
        assert not again.materialized(COUNTS)
        assert not again.materialized(REFINED)
    assert p.history() == history | {RAW: history[RAW] + 1, "raw/quarantine": history["raw/quarantine"] + 1}
    refused, waiting = _record(p, REFINED), _record(p, COUNTS)
    assert (refused.verdict.value, waiting.verdict.value) == ("refused", "waiting")
    assert refused.reason.startswith("change_is_explained: final slice shrinks by 50.0%")
    assert "accept the change with a reason" in refused.cure
    assert waiting.reason == f"refined/events {DAY}/{PROJECT} stands refused"
    assert "recover that first" in waiting.cure
    last = p.load(DAY, tables=[REFINED])
    shown = [
        event.asset_check_evaluation_data
        for event in last.result.all_events
        if event.event_type.value == "ASSET_CHECK_EVALUATION"
    ]
    (change,) = [found for found in shown if found.check_name == "change_is_explained"]
    assert not change.passed
    assert change.metadata["verdict"].value == f"{PROJECT}: refused, final"
    assert "accept the change with a reason" in change.description

    # The way out of both: a better delivery.
    p.deliver(DAY, events_on(DAY, 121))
    p.deliver(NEXT, events_on(NEXT, 1, prefix="good"), hour=20)
    healed = p.load(DAY, NEXT)
    assert healed.success, healed.failure()
    assert (p.count(REFINED, DAY), p.count(REFINED, NEXT)) == (121, 121)
    assert {p.verdict(table, day) for table in (REFINED, COUNTS) for day in (DAY, NEXT)} == {"published"}


def test_a_day_whose_only_delivery_is_bad_never_looks_empty_and_good(pipeline: Any) -> None:
    """Scenario: a day's only object cannot be read, and both sources are loaded; then it is deleted; then a person accepts
    that the day has no events. Outcome: the day waits, is refused as never delivered, and is good and empty at last."""
    p = pipeline()
    p.deliver(NEXT - timedelta(days=5), events_on(NEXT - timedelta(days=5), 1))
    key = p.deliver(DAY, events_on(DAY, 5), truncated=True)

    def stands(table: str) -> tuple[str, str]:
        (outcome,) = [one for one in reports[table].outcomes if one.is_requested]
        return outcome.verdict.value, outcome.reason or ""

    for _ in range(2):
        reports = p.reports(DAY)
        assert stands(RAW)[0] == "refused"
        assert stands(REFINED) == ("waiting", f"{RAW} {DAY}/{PROJECT} stands refused")
        assert stands(COUNTS)[0] == "waiting"
    p.remove(key)
    for _ in range(2):
        reports = p.reports(DAY)
        assert stands(RAW)[0] == "refused"
        assert "no delivery of either source" in stands(RAW)[1]
        assert stands(REFINED)[0] == "waiting"
    assert p.rows("raw/quarantine") == []
    accepted = p.load(DAY, accept={f"{RAW}:{DAY}": "the app was down"})
    assert accepted.success, accepted.failure()
    assert _batch(p).reason == "accepted without deliveries: the app was down"
    again = p.load(DAY)
    assert again.success, again.failure()
    assert again.metadata(REFINED, DAY)["rows"] == 0


def _batch(p: Any) -> Any:
    return p.ledger.batches([PROJECT], DAY, DAY)[BatchKey(Source.REGULAR, PROJECT, DAY)]


def test_other_bounds_try_a_refused_day_again(pipeline: Any) -> None:
    """Scenario: a final day shrinks and is refused; the bound is raised. Outcome: the next load publishes it."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 200))
    assert p.load(DAY).success
    p.deliver(DAY, events_on(DAY, 150))
    assert not p.load(DAY).success
    p.change(change_max_shrink=0.5)
    run = p.load(DAY)
    assert run.success, run.failure()
    assert p.count(REFINED, DAY) == 150
