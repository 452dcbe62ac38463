"""Writers at once: a short form of `make two-writers`, and the meetings that it found to be dangerous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import pytest
from rich.console import Console

from resources import failpoints
from resources.failpoints import Failpoint
from tests.support.builders import events_on
from tests.support.reference import require_known
from tests.two_writers import Hand, all_hands, page_of, run_rounds

pytestmark = pytest.mark.slow
ROUNDS = {"sqlite": 3, "postgresql": 2}
DAY = date(2026, 2, 2)
REFINED = "refined/events"


@pytest.fixture(scope="module")
def hands() -> Iterator[Sequence[Hand]]:
    """Processes for both catalogs: what differs between these is told with each order."""
    with all_hands() as started:
        yield started


@pytest.mark.parametrize("catalog", ["sqlite", "postgresql"])
def test_nothing_is_lost_doubled_or_stale(hands: Sequence[Hand], catalog: str) -> None:
    """Scenario: writers with a process each meet on the same tables, with random pauses between their steps, beside
    compaction and a rollback behind their backs. Outcome: no row is lost or doubled, no stale slice is called current."""
    account = run_rounds(hands, catalog, ROUNDS[catalog], seed=7)
    Console(width=160).print(page_of([account]))
    assert account.findings == []
    assert (account.lost, account.doubled, account.stale) == (0, 0, 0)
    assert account.rounds.total() == ROUNDS[catalog]
    assert account.checks > 0


def test_the_loser_builds_again_from_fresh_inputs(pipeline: Any) -> None:
    """Scenario: while a load is about to commit refined, another one loads a further object of the day and publishes it.
    Outcome: the first is refused, pins again and succeeds; every row is there once, and every change is on record once."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 10))
    passed: list[str] = []

    def other_run_first(point: Failpoint, table: str) -> None:
        if (point, table) == (Failpoint.AFTER_PIN, REFINED):
            passed.append(table)
        if point is Failpoint.BEFORE_PUBLISH and len(passed) == 1:
            failpoints.watch()
            p.deliver(DAY, events_on(DAY, 5, prefix="more"), hour=11)
            p.reports(DAY)
            failpoints.watch(other_run_first)

    failpoints.watch(other_run_first)
    try:
        run = p.load(DAY)
    finally:
        failpoints.watch()

    assert run.success, run.failure()
    assert passed == [REFINED, REFINED]
    assert p.count("raw/regular_events") == p.count(REFINED) == 15
    require_known(p)
    assert len(p.ledger.publications(REFINED)) == 1
