"""Concurrent writers: a short form of `make two-writers`, and the dangerous interleavings that it found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline_assets.tables.events import REFINED_EVENTS
from resources import failpoints
from resources.failpoints import Failpoint
from tests.support.attached import gateway_variables
from tests.support.builders import PROJECT, events_on
from tests.support.hands import Hand
from tests.support.reference import require_known
from tests.two_writers import all_hands, page_of, run_rounds

pytestmark = pytest.mark.slow
ROUNDS = {"sqlite": 3, "postgresql": 2}
DAY = date(2026, 2, 2)
REFINED = "refined/events"


@pytest.fixture(scope="module")
def hands(spark: Any) -> Iterator[Sequence[Hand]]:
    """Processes for both catalogs; each order carries the catalogs' differences."""
    with all_hands(**gateway_variables()) as started:
        yield started


@pytest.mark.parametrize("catalog", ["sqlite", "postgresql"])
def test_nothing_is_lost_doubled_or_stale(hands: Sequence[Hand], catalog: str) -> None:
    """Scenario: random pauses, beside compaction and a rollback. Outcome: no row is lost, doubled or wrongly current."""
    account = run_rounds(hands, catalog, ROUNDS[catalog], seed=7)
    Console(width=160).print(page_of([account]))
    assert account.findings == []
    assert (account.lost, account.doubled, account.stale) == (0, 0, 0)
    assert account.rounds.total() == ROUNDS[catalog]
    assert account.checks > 0


def test_the_loser_builds_again_what_it_lost(pipeline: Any) -> None:
    """Scenario: a load of two distant days is overtaken on the second day.
    Outcome: it builds that day from fresh inputs and publishes the other as staged; each row and change exists once."""
    p = pipeline(reprocessing_window_days=1, dedupe_window_days=1, sparse_projects=(PROJECT,))
    far = DAY + timedelta(days=9)
    p.deliver(DAY, events_on(DAY, 8))
    p.deliver(far, events_on(far, 10))
    warehouse = Path(p.settings.warehouse_url)
    walks: list[set[str]] = []

    def other_run_first(point: Failpoint, _: str) -> None:
        if point is not Failpoint.BEFORE_PUBLISH:
            return
        walks.append({str(path) for path in (warehouse / REFINED).rglob("*.parquet")})
        if len(walks) == 1:
            failpoints.watch()
            p.deliver(far, events_on(far, 5, prefix="more"), hour=11)
            p.reports(far)
            failpoints.watch(other_run_first)

    failpoints.watch(other_run_first)
    try:
        run = p.run(DAY, far)
    finally:
        failpoints.watch()

    assert run.success, run.failure()
    assert len(walks) == 2
    live = {day: {path.removeprefix("file:") for path in p.files(REFINED, day)} for day in (DAY, far)}
    assert live[DAY] <= walks[0]
    assert not live[far] & walks[0]
    assert p.count("raw/regular_events") == p.count(REFINED) == 23
    require_known(p)
    assert [
        len({record.run_id for record in p.ledger.publications(REFINED) if record.key.event_date == day})
        for day in live
    ] == [1, 1]
    assert len(p.ledger.publications(REFINED)) == 2
    name = p.lakehouse.identifier(REFINED_EVENTS)
    assert [row["name"] for row in p.spark.table(f"{name}.refs").collect()] == ["main"]
