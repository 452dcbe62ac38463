"""Data files that somebody removed: found by the next load, only their slices stop, and `--read-again` brings them back."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import Slice, Source
from tests.support.builders import PROJECT, an_event, events_on

pytestmark = pytest.mark.slow
DAY, NEXT, LATER = date(2026, 2, 2), date(2026, 2, 3), date(2026, 2, 9)
RAW, REFINED, COUNTS, QUARANTINE = "raw/regular_events", "refined/events", "aggregates/event_counts", "raw/quarantine"
MINE = Slice(DAY, PROJECT)


def _lose(p: Any, key: str, day: date = DAY) -> list[str]:
    """Remove the live files of a slice; return their names."""
    paths = [Path(unquote(urlparse(path).path)) for path in sorted(p.files(key, day))]
    assert paths
    for path in paths:
        path.unlink()
    return [path.name for path in paths]


def test_lost_slices_stop_alone_and_are_read_again_with_the_same_content(pipeline: Any) -> None:
    """Scenario: the files of a day of raw, refined and an aggregate vanish; late rows of that day come with the next day's arrivals,
    and another day is delivered. Outcome: the load names each file and publishes the other day; nothing else changes, also by a
    second load, an exclusion, and heal; `--read-again` brings all back, with the late rows, as if nothing had been lost."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 30))
    p.deliver(NEXT, events_on(NEXT, 20))
    assert p.load(DAY, NEXT).success
    before = p.digests()
    lost = {key: _lose(p, key) for key in (RAW, REFINED, COUNTS)}
    p.deliver(LATER, events_on(LATER, 10))

    run = p.load(DAY, LATER)

    assert not run.success
    for names in lost.values():
        assert any(name in run.failure() for name in names), run.failure()
    assert "--read-again" in run.failure()
    assert p.verdict(REFINED, LATER) == "published"
    assert {key: p.verdict(key, DAY) for key in lost} == dict.fromkeys(lost, "refused")
    assert p.verdict(REFINED, NEXT) in ("published", "unchanged")

    run = p.load(DAY, LATER, read_again=True)

    assert run.success, run.failure()
    after = p.digests()
    assert {key: {one: d for one, d in of.items() if one.event_date != LATER} for key, of in after.items()} == before
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (30, 30)
    told = [one for one in p.ledger.publications() if one.cause.text == "data files were gone"]
    assert {(one.table, one.key) for one in told} == {(key, MINE) for key in lost}
    assert all(one.digest_before == one.digest_after for one in told)
