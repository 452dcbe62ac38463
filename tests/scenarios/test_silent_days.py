"""Days of which nothing was delivered: empty where markers or a setting say so, refused otherwise; late facts find them."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.slices import Slice, Source
from tests.support.builders import PROJECT, events_on

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
LATER_DAY = DAY + timedelta(days=3)
RAW, REFINED = "raw/regular_events", "refined/events"


def _before(p: Any) -> None:
    """Deliveries of an earlier day, so that the silent one is awaited."""
    p.deliver(DAY - timedelta(days=5), events_on(DAY - timedelta(days=5), 3))
    assert p.load(DAY - timedelta(days=5)).success


def test_a_late_fact_finds_a_day_whose_markers_say_that_it_is_empty(pipeline: Any) -> None:
    """Scenario: a day with 24 markers and no object, of which nobody loads but the backfill side; a fact of it arrives three days
    later, and that day is loaded. Outcome: the day is empty and good on the side that is asked; the other load accepts it as
    empty too, and its fact is published; a second load changes nothing."""
    p = pipeline()
    _before(p)
    p.mark(DAY)
    asked = p.run(DAY, source=Source.BACKFILL)
    assert asked.success, asked.failure()
    assert str(DAY) in asked.materialized("raw/backfill_events")
    p.deliver(LATER_DAY, [*events_on(LATER_DAY, 2), *events_on(DAY, 1, prefix="late")])

    run = p.run(LATER_DAY)

    assert run.success, run.failure()
    assert p.count(REFINED, DAY) == 1
    assert p.verdict(REFINED, DAY) == "published"
    (batch,) = [one for one in p.ledger.batches([PROJECT], DAY, DAY).values() if one.key.source.value == "regular"]
    assert (batch.verdict.value, batch.deliveries, batch.hours_marked) == ("accepted", 0, 24)
    history = p.history()
    assert p.run(LATER_DAY).success
    assert p.history() == history


def test_a_silent_day_without_all_markers_still_waits(pipeline: Any) -> None:
    """Scenario: the same with 23 markers. Outcome: the fact is in raw, the day waits and says for what."""
    p = pipeline()
    _before(p)
    p.mark(DAY, hours=range(23))
    p.deliver(LATER_DAY, [*events_on(LATER_DAY, 2), *events_on(DAY, 1, prefix="late")])

    p.load(LATER_DAY)

    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (1, 0)
    record = p.ledger.slices(REFINED, [PROJECT], [DAY])[Slice(DAY, PROJECT)]
    assert record.verdict.value == "waiting"
    assert "are not loaded yet" in str(record.reason)


def test_a_silent_day_of_a_sparse_project_is_empty(pipeline: Any) -> None:
    """Scenario: a closed day without any delivery, of a project declared sparse and of one that is not; a fact of it arrives
    weeks later. Outcome: empty, green and told as that where it is declared, refused where it is not; the late fact is published
    only there; the day becomes final."""
    for sparse in ((PROJECT,), ()):
        p = pipeline(sparse_projects=sparse)
        _before(p)

        run = p.load(DAY)

        assert run.success == bool(sparse)
        told = run.failure() if not sparse else p.ledger.batches([PROJECT], DAY, DAY)
        if sparse:
            (batch,) = told.values()
            assert (batch.verdict.value, batch.deliveries) == ("accepted", 0)
            assert "declared sparse" in str(batch.reason)
            assert p.ledger.slices(REFINED, [PROJECT], [DAY]) == {} or p.verdict(REFINED, DAY) == "unchanged"
        else:
            assert "no delivery of either source" in told
            assert "TIDEMARK_SPARSE_PROJECTS" in told
        silent, late = DAY + timedelta(days=1), DAY + timedelta(days=20)
        p.deliver(late, [*events_on(late, 2), *events_on(silent, 1, prefix="late")])
        p.load(late)
        assert p.count(REFINED, silent) == len(sparse)
        if sparse:
            assert p.ledger.slices(REFINED, [PROJECT], [silent])[Slice(silent, PROJECT)].is_final
