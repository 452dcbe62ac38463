"""A rebuild of sample data that is killed and started again, in a drill's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import date

from pipeline_assets.domain.slices import Slice
from pipeline_assets.drill.process import failure, kill_at, tidemark
from pipeline_assets.drill.sandbox import Scratch
from pipeline_assets.drill.scenarios import IN_SWAP, Trial, differing
from resources.failpoints import Failpoint
from resources.ledger.store import Ledger
from resources.publishing.promise import Promise, promise_of

REVENUE, COUNTS = "aggregates/daily_revenue", "aggregates/event_counts"
_OF_SWAPS = frozenset({Failpoint.BEFORE_SWAP, Failpoint.AFTER_SWAPS, *IN_SWAP.values()})

Digests = Mapping[str, Mapping[Slice, str]]


def rebuild_faults(place: Scratch, day: date, trial: Trial, measured: Callable[[], Digests]) -> Iterator[str]:
    """Kill a rebuild of a published day at a point, start it again, swap it in and undo it; yields the broken invariants.

    `measured`: returns table -> slice -> digest of the rows in main. Raises VictimError where the rebuild does not pause.
    """
    # Changed settings stand in for changed code: revenue is read from a property that nobody delivers.
    environment = place.environment(TIDEMARK_REVENUE_PROPERTIES="of_a_drill", TIDEMARK_PRICE_PROPERTIES="of_a_drill")
    span = ("--from", str(day), "--to", str(day), "--table", REVENUE, "--table", COUNTS)
    before = measured()

    def carry_out(step: str, *words: str) -> Iterator[str]:
        if (said := failure(tidemark("rebuild", step, *words), environment)) is not None:
            yield f"rebuild {step} {words[0]} failed: {said}"

    def changed(expected: Digests, what: str) -> Iterator[str]:
        now = measured()
        for name in expected:
            for key, wanted, found in differing(expected[name], now[name]):
                yield f"{what}: {name} {key}: {found} instead of {wanted}"

    start = (*span, "--reason", "drill")
    faults: list[str] = []
    if trial.point not in _OF_SWAPS:
        kill_at(tidemark("rebuild", "start", *start), environment, trial.armed, place.home)
        faults += changed(before, "a rebuild that was killed changed main")
    faults += carry_out("start", *start)
    yield from faults
    if faults:
        return
    with closing(Ledger(place.settings.ledger_database_url)) as ledger:
        rebuild = ledger.rebuilds.all()[-1]
        number, wanted = str(rebuild.number), dict(before)
        for name, slices in ledger.rebuilds.slices(rebuild).items():
            rebuilt = {key: str(one.record.digest) for key, one in slices.items() if one.record.digest.rows}
            wanted[name] = {key: one for key, one in before[name].items() if key.event_date != day} | rebuilt
    yield from changed(before, "a rebuild changed main before its swap")
    if before == wanted:
        yield "the rebuild would change nothing, so nothing is proven"
    if trial.point in _OF_SWAPS:
        kill_at(tidemark("rebuild", "swap", number), environment, trial.armed, place.home)
        half = measured()
        if promise_of(place.settings) is Promise.ONE_TRANSACTION and half not in (before, wanted):
            yield "main shows a part of a swap"
        for name in before:
            if half[name] not in (before[name], wanted[name]):
                yield f"{name}: main shows half of a swap"
    yield from carry_out("swap", number)
    yield from changed(wanted, "main does not show what was rebuilt")
    yield from carry_out("undo", number)
    yield from changed(before, "main is not what it was before the swap")
    with closing(Ledger(place.settings.ledger_database_url)) as ledger:
        # Later trials must not find the slices that the undo holds.
        held = {name: list(ledger.interventions.holds(name, place.settings.projects)) for name in before}
        ledger.interventions.release(held, "the drill goes on", "drill")
