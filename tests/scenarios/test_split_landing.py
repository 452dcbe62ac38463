"""A landing with recoveries among regular exports is split during loads; its tables equal a separate landing's."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import Source
from pipeline_assets.operations.split_landing import find, relocate
from pipeline_assets.tables.registry import DERIVED
from resources import failpoints
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, events_on
from tests.support.points import OF_MOVES
from tests.support.reference import measured_digests, require_known

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT, THIRD = (DAY + timedelta(days=shift) for shift in (1, 2))
SOON = datetime(2026, 2, 20, tzinfo=UTC)
"""Past the deadline, inside the redelivery horizon."""
REFINED = "refined/events"


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
    p = pipeline()
    p.now = SOON
    recovered = _deliver(p, Source.REGULAR)
    assert p.run(DAY, THIRD).success
    published = p.digests()[REFINED]
    history = p.history()

    def load(source: Source) -> None:
        run = p.run(DAY, THIRD, source=source)
        assert run.success, run.failure()
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
    failpoints.watch(meet)
    try:
        relocations = list(relocate(selection.recovered, PROJECT, landing, p.grammar, (), lambda _: False))
    finally:
        failpoints.watch()
    assert [refusal for _, refusal in relocations] == [None, None, None]
    assert meanwhile == {}
    load(Source.BACKFILL)
    load(Source.REGULAR)

    separate = pipeline()
    separate.now = SOON
    _deliver(separate, Source.BACKFILL)
    for day, hour in ((DAY, 9), (NEXT, 3), (THIRD, 6)):
        marker = separate.grammar.format_marker(BatchKey(Source.BACKFILL, PROJECT, day), hour)
        (separate.landing / marker).touch()
    assert _tree(p) == _tree(separate)
    assert separate.load(DAY, THIRD).success
    # Closed days grow by so much that the growth needs an acceptance.
    grown = {f"{table.key}:{day}": "recovered" for table in DERIVED for day in (DAY, NEXT, THIRD)}
    late = separate.load(DAY, THIRD, source=Source.BACKFILL, accept=grown)
    assert late.success, late.failure()
    assert p.digests() == separate.digests()
    assert measured_digests(p.lakehouse) == measured_digests(separate.lakehouse)
    assert _standing(p) == _standing(separate)
    require_known(p)
    derived = [table for table in history if not table.startswith("raw/")]
    assert {table: p.history()[table] for table in derived} == {table: history[table] for table in derived}
