"""A landing with recoveries among regular exports is split during loads; its tables equal a separate landing's."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import Source
from pipeline_assets.operations.split_landing import find, relocate
from pipeline_assets.tables.registry import table_by_key
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, RAW_AND_REFINED, events_on
from tests.support.points import OF_MOVES, watching
from tests.support.reference import measured_digests, require_known
from tests.support.world import SOON

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT, THIRD = (DAY + timedelta(days=shift) for shift in (1, 2))
REFINED = "refined/events"
TABLES = [table_by_key(key) for key in RAW_AND_REFINED]


def _deliver(p: Any, recoveries: Source) -> list[str]:
    """One hour is whole, one was cut and recovered, one and a third day only recovered; returns the recovered keys."""
    cut = events_on(DAY, 150, prefix="cut")
    late = events_on(DAY, 130, prefix="late")
    p.deliver(DAY, events_on(DAY, 40, prefix="whole"), hour=8)
    p.deliver(DAY, cut[:30], hour=9)
    p.deliver(NEXT, events_on(NEXT, 40, prefix="whole"), hour=4)
    p.mark(DAY)
    p.mark(NEXT)
    return [
        p.deliver(DAY, cut, hour=9, shard=7, source=recoveries),
        p.deliver(NEXT, [*events_on(NEXT, 140, prefix="lost"), *late], hour=3, shard=5, source=recoveries),
        p.deliver(THIRD, events_on(THIRD, 120, prefix="lost"), hour=6, source=recoveries),
    ]


def _tree(p: Any) -> dict[str, bytes]:
    return {
        str(path.relative_to(p.landing)): path.read_bytes() for path in Path(p.landing).rglob("*") if path.is_file()
    }


def _standing(p: Any) -> Any:
    records = p.ledger.batches([PROJECT], DAY, THIRD)
    return {
        key: (record.verdict, record.reason, record.deliveries, record.hours, record.is_closed)
        for key, record in records.items()
    }


def test_a_mixed_landing_is_split_while_loads_go_on(pipeline: Any) -> None:
    """Scenario: a loaded mixed landing is split; loads of both sources meet the half-done move, then come again.
    Outcome: no run fails, nothing is published anew; raw equals that of a separate landing, batch by batch."""
    p = pipeline(only=RAW_AND_REFINED)
    p.now = SOON
    recovered = _deliver(p, Source.REGULAR)
    p.must_run(DAY, THIRD)
    published = p.digests()[REFINED]
    history = p.history()

    def load(source: Source) -> None:
        run = p.must_run(DAY, THIRD, source=source)
        assert not run.failed_checks()
        assert p.digests()[REFINED] == published

    # Between a copy and its delete; then with two sources deleted, of which one copy is loaded.
    meanwhile = {(Failpoint.AFTER_MARKER, 0): Source.BACKFILL, (Failpoint.AFTER_DELETE, 1): Source.REGULAR}
    seen: list[Failpoint] = []

    def meet(point: Failpoint, _: str) -> None:
        if point in OF_MOVES:
            source = meanwhile.pop((point, seen.count(point)), None)
            seen.append(point)
            if source is not None:
                load(source)

    landing = LandingStore.from_settings(p.settings)
    selection = find(PROJECT, landing, p.settings, lambda _: None, keys=recovered)
    with watching(meet):
        relocations = list(relocate(selection.recovered, PROJECT, landing, p.grammar, (), lambda _: False))
    assert [refusal for _, refusal in relocations] == [None, None, None]
    assert meanwhile == {}
    load(Source.BACKFILL)
    load(Source.REGULAR)

    separate = pipeline(only=RAW_AND_REFINED)
    separate.now = SOON
    _deliver(separate, Source.BACKFILL)
    for day, hour in ((DAY, 9), (NEXT, 3), (THIRD, 6)):
        marker = separate.grammar.format_marker(BatchKey(Source.BACKFILL, PROJECT, day), hour)
        (separate.landing / marker).touch()
    assert _tree(p) == _tree(separate)
    separate.must_load(DAY, THIRD)
    # Closed days grow by so much that the growth needs an acceptance.
    grown = {f"{REFINED}:{day}": "recovered" for day in (DAY, NEXT, THIRD)}
    separate.must_load(DAY, THIRD, source=Source.BACKFILL, accept=grown)
    assert p.digests() == separate.digests()
    assert measured_digests(p.lakehouse, TABLES) == measured_digests(separate.lakehouse, TABLES)
    assert _standing(p) == _standing(separate)
    require_known(p)
    assert p.history()[REFINED] == history[REFINED]
