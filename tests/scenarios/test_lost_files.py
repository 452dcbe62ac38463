"""Removed data files: the next load finds them, only their slices stop, and `--read-again` brings them back."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from tests.support.builders import PROJECT, events_on

pytestmark = pytest.mark.slow
DAY, NEXT, FAR = date(2026, 2, 2), date(2026, 2, 3), date(2026, 2, 9)
RAW, REFINED, COUNTS, QUARANTINE = "raw/regular_events", "refined/events", "aggregates/event_counts", "raw/quarantine"
TABLES = (RAW, REFINED, COUNTS)


def _lose(p: Any, key: str, day: date = DAY) -> list[str]:
    paths = [Path(unquote(urlparse(path).path)) for path in sorted(p.files(key, day))]
    assert paths
    for path in paths:
        path.unlink()
    return [path.name for path in paths]


def _batch(p: Any, day: date) -> Any:
    return p.ledger.batches([PROJECT], day, day)[BatchKey(Source.REGULAR, PROJECT, day)]


def test_lost_slices_stop_alone_and_come_back_with_the_same_content(pipeline: Any) -> None:
    """Scenario: a day's files of four tables vanish; late rows of it and a far day arrive.
    Outcome: the far day is published; `--read-again` restores all else; a day that landing lost too stays and is named."""
    p = pipeline()
    p.deliver(DAY, [*events_on(DAY, 300), b"{broken"])
    p.deliver(NEXT, events_on(NEXT, 20))
    assert p.load(DAY, NEXT).success
    before, refused_lines = p.digests(), p.rows(QUARANTINE)
    assert len(refused_lines) == 1
    lost = {key: _lose(p, key) for key in (*TABLES, QUARANTINE)}
    late = p.deliver(NEXT, events_on(DAY, 3, prefix="late"), hour=12)
    p.deliver(FAR, events_on(FAR, 10))

    run = p.load(DAY, FAR)

    assert not run.success
    told = run.failure()
    assert all(any(name in told for name in lost[key]) for key in TABLES), told
    assert f"tidemark load --source regular --from {DAY} --to {DAY} --project {PROJECT} --read-again" in told
    assert {key: (p.verdict(key, DAY), p.verdict(key, FAR)) for key in TABLES} == dict.fromkeys(
        TABLES, ("refused", "published")
    )
    assert _batch(p, NEXT).verdict is BatchVerdict.WAITING
    assert any(name in (_batch(p, NEXT).reason or "") for name in lost[RAW])
    assert {
        key: {one: d for one, d in of.items() if one.event_date != FAR} for key, of in p.digests().items()
    } == before

    p.remove(late)
    run = p.load(DAY, FAR, read_again=True)

    assert run.success, run.failure()
    assert {
        key: {one: d for one, d in of.items() if one.event_date != FAR} for key, of in p.digests().items()
    } == before
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (300, 300)
    assert [row["line_number"] for row in p.rows(QUARANTINE)] == [row["line_number"] for row in refused_lines]
    found = [one for one in p.ledger.publications() if one.cause.text == "data files were gone"]
    assert {(one.table, one.key) for one in found} == {(key, Slice(DAY, PROJECT)) for key in TABLES}
    assert all(one.digest_before == one.digest_after for one in found)
    p.deliver(NEXT, events_on(DAY, 3, prefix="late"), hour=12)
    assert p.load(NEXT).success
    assert p.count(REFINED, DAY) == 303

    (name,), files = _lose(p, RAW, NEXT), p.files(RAW, NEXT)
    p.remove(p.grammar.format_delivery(BatchKey(Source.REGULAR, PROJECT, NEXT), 10, 1))
    run = p.load(NEXT, read_again=True)
    assert not run.success
    assert name in run.failure()
    assert "deliveries missing from landing: 1" in (_batch(p, NEXT).reason or "")
    assert (p.files(RAW, NEXT), p.verdict(RAW, NEXT)) == (files, "refused")

    # No day in the next load's reach is lost, but one of its rows is of a lost day.
    names, beyond = _lose(p, RAW, DAY), FAR + timedelta(days=11)
    p.deliver(beyond, [*events_on(beyond, 5), *events_on(DAY, 2, prefix="far")])
    p.deliver(beyond + timedelta(days=1), events_on(beyond + timedelta(days=1), 7))
    run = p.load(beyond, beyond + timedelta(days=1))
    assert not run.success
    assert any(name in run.failure() for name in names), run.failure()
    assert (_batch(p, beyond).verdict, p.count(REFINED, beyond + timedelta(days=1))) == (BatchVerdict.WAITING, 7)

    p.deliver(NEXT, events_on(NEXT, 20))
    run = p.load(DAY, NEXT, read_again=True)
    assert run.success, run.failure()
    assert (_batch(p, beyond).verdict, p.count(REFINED, DAY)) == (BatchVerdict.ACCEPTED, 305)
