"""A rebuild of sample data that is killed and started again, in a drill's tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import date
from pathlib import Path

from pipeline_assets.domain.slices import Slice
from pipeline_assets.drill.process import a_victim
from pipeline_assets.drill.sandbox import Scratch
from pipeline_assets.drill.scenarios import IN_SWAP
from resources.failpoints import Failpoint
from resources.ledger.store import Ledger
from resources.publishing.promise import Promise, promise_of

REVENUE, COUNTS = "aggregates/daily_revenue", "aggregates/event_counts"
OF_SWAPS = frozenset({Failpoint.BEFORE_SWAP, Failpoint.AFTER_SWAPS, *IN_SWAP.values()})
_LONGEST_SECONDS = 300

Digests = Mapping[str, Mapping[Slice, str]]


def rebuild_faults(
    place: Scratch, day: date, point: Failpoint, armed: str, measured: Callable[[], Digests]
) -> list[str]:
    """Kill a rebuild of a published day at a point, start it again, swap it in and undo it; returns the broken invariants.

    `measured`: returns table -> slice -> digest of the rows in main. Raises VictimError where the rebuild does not pause.
    """
    # Changed settings stand in for changed code: revenue is read from a property that nobody delivers.
    environment = place.environment(TIDEMARK_REVENUE_PROPERTIES="of_a_drill", TIDEMARK_PRICE_PROPERTIES="of_a_drill")
    tables = ["--table", REVENUE, "--table", COUNTS]
    start = _words("start", "--from", str(day), "--to", str(day), *tables, "--reason", "drill")
    before, faults = measured(), list[str]()

    def carry_out(words: Sequence[str]) -> None:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, timeout=_LONGEST_SECONDS
        )
        if done.returncode:
            faults.append(f"{' '.join(words[1:4])} failed: {done.stderr[-500:]}")

    if point not in OF_SWAPS:
        with a_victim([*start, "--verbose"], environment, armed, place.home) as victim:
            victim.wait_until_paused()
        faults += _differences(before, measured(), "a rebuild that was killed changed main")
    carry_out(start)
    if faults:
        return faults
    with closing(Ledger(place.settings.ledger_database_url)) as ledger:
        number = str(ledger.rebuilds.all()[-1].number)
        rebuilt = {
            name: {key: str(one.record.digest) for key, one in of_table.items() if one.record.digest.rows}
            for name, of_table in ledger.rebuilds.slices(ledger.rebuilds.all()[-1]).items()
        }
        wanted = {
            name: {key: digest for key, digest in of_table.items() if key.event_date != day} | rebuilt.get(name, {})
            if name in rebuilt
            else of_table
            for name, of_table in before.items()
        }
    faults += _differences(before, measured(), "a rebuild changed main before its swap")
    if before == wanted:
        faults.append("the rebuild would change nothing, so nothing is proven")
    if point in OF_SWAPS:
        with a_victim([*_words("swap", number), "--verbose"], environment, armed, place.home) as victim:
            victim.wait_until_paused()
        half = measured()
        is_one = promise_of(place.settings) is Promise.ONE_TRANSACTION
        if is_one and half not in (before, wanted):
            faults.append("main shows a part of a swap")
        for name in before:
            if half[name] not in (before[name], wanted[name]):
                faults.append(f"{name}: main shows half of a swap")
    carry_out(_words("swap", number))
    faults += _differences(wanted, measured(), "main does not show what was rebuilt")
    carry_out(_words("undo", number))
    faults += _differences(before, measured(), "main is not what it was before the swap")
    with closing(Ledger(place.settings.ledger_database_url)) as ledger:
        # Later trials must not find the slices that the undo holds.
        held = {name: list(ledger.interventions.holds(name, place.settings.projects)) for name in before}
        ledger.interventions.release(held, "the drill goes on", "drill")
    return faults


def _words(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("tidemark")), "rebuild", *words]


def _differences(expected: Digests, found: Digests, what: str) -> list[str]:
    return [
        f"{what}: {name} {key}: {found[name].get(key)} instead of {expected[name].get(key)}"
        for name in expected
        for key in sorted(expected[name].keys() | found[name].keys())
        if expected[name].get(key) != found[name].get(key)
    ]
