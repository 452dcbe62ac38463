"""`make faults`: a real load meets each fault of the outside world; the table tells what became of it."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline_assets.domain.plain_text import few
from pipeline_assets.drill.sandbox import VictimError
from tests.support.fault_lake import FIRST, SECOND, Lake, Loaded, State, Story, a_lake
from tests.support.outside_faults import FAULTS, OutsideFault, Promise

_HEADINGS = ("fault", "where", "outcome", "old state intact", "next run converges")
_AGAIN = ("", "; the load begun again once", "; the load begun again twice")
"""Text by number of restarts."""
_RULE = "|---" * len(_HEADINGS) + "|"


@dataclass(frozen=True)
class Row:
    fault: OutsideFault
    loaded: Loaded | None
    """None where it was not run."""
    struck: int
    """Requests and connections that failed."""
    unmet: Sequence[str] = field(default=(), kw_only=True)
    """Requests that were to fail and were never made."""
    is_intact: bool
    """After a failed load readers see the state before."""
    is_converged: bool
    """This load, or the next after a failure, gave the result of a load without faults."""
    differing: Sequence[str] = ()
    next_said: Sequence[str] = ()

    @property
    def broken(self) -> tuple[str, ...]:
        if self.loaded is None:
            return ()
        fault, said = self.fault, self.loaded.said
        is_success = fault.promise is Promise.SUCCESS
        meant = 0 if is_success else 1
        wrong = {
            f"exit code {self.loaded.code} instead of {meant}": self.loaded.code != meant,
            f"{len(said)} lines instead of one sentence": len(said) != meant,
            f"does not say {fault.says!r}": not is_success and not any(fault.says in line for line in said),
            "the fault never struck": is_success and not self.struck and not fault.point,
            f"never struck: {few(self.unmet, 6)}": bool(self.unmet),
            f"what readers see changed: {few(self.differing, 6)}": not self.is_intact,
            f"differs from a load without faults: {few([*self.differing, *self.next_said], 6)}": not self.is_converged,
        }
        return tuple(text for text, is_so in wrong.items() if is_so)

    @property
    def cells(self) -> tuple[str, ...]:
        fault, loaded = self.fault, self.loaded
        if loaded is None:
            return (fault.name, fault.where, f"not run: {fault.lacks()}", "-", "-")
        if loaded.code == 0:
            failed = f"; {self.struck} failed on the way" if self.struck else ""
            outcome = f"success{failed}{_AGAIN[loaded.tried_again]}"
            intact = "new state"
        else:
            outcome = f"exit {loaded.code}: {' '.join(loaded.said)}"
            intact = "yes" if self.is_intact else "NO"
        return (fault.name, fault.where, outcome, intact, "digests equal" if self.is_converged else "NO")


def run_all(faults: Mapping[str, OutsideFault], folder: Path) -> Iterator[tuple[str, Row]]:
    """Run each fault on the same state; yields name and row."""
    with a_lake(folder) as lake:
        begun: dict[Story, tuple[State, Mapping[str, str], Mapping[str, str]]] = {}
        for name, fault in faults.items():
            if fault.lacks():
                yield name, Row(fault, None, 0, is_intact=True, is_converged=True)
                continue
            if fault.story not in begun:
                begun[fault.story] = _begin(lake, fault.story)
            state, before, undisturbed = begun[fault.story]
            lake.restore(state)
            yield name, _run(lake, fault, before, undisturbed)


def _begin(lake: Lake, story: Story) -> tuple[State, Mapping[str, str], Mapping[str, str]]:
    """The faults' first state, its digests, and those after a load without faults."""
    state = lake.begin(story)
    before = lake.digests()
    done = lake.load_calmly()
    undisturbed = lake.digests()
    if done.code or undisturbed == before:
        raise AssertionError(f"a load without faults ended with {done.code}: {done.said}")
    return state, before, undisturbed


def _run(lake: Lake, fault: OutsideFault, before: Mapping[str, str], undisturbed: Mapping[str, str]) -> Row:
    fault.spoil(lake)
    with lake.loading(FIRST, SECOND, fault.point) as victim:
        unmet = []
        if fault.point:
            try:
                victim.wait_until_paused()
                fault.at_point(lake)
                victim.go_on()
            except VictimError:
                unmet = [f"the load ended before {fault.point}"]
        loaded = lake.ended(victim)
    unmet += lake.unmet()
    struck = lake.heal()
    after = lake.digests()
    if loaded.code == 0:
        return Row(fault, loaded, struck, True, after == undisturbed, _differing(after, undisturbed), unmet=unmet)
    later = lake.load_calmly()
    converged = lake.digests()
    is_intact, is_converged = after == before, converged == undisturbed and later.code == 0
    differing = _differing(after, before) if not is_intact else _differing(converged, undisturbed)
    return Row(fault, loaded, struck, is_intact, is_converged, differing, later.said, unmet=unmet)


def _differing(found: Mapping[str, str], meant: Mapping[str, str]) -> list[str]:
    places = sorted(found.keys() | meant.keys())
    return [
        f"{place}: {found.get(place)}, not {meant.get(place)}"
        for place in places
        if found.get(place) != meant.get(place)
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(words: Sequence[str]) -> int:
    """Exits 1 where a fault did not end as promised, and where none could run."""
    # The store's server in this process logs each request.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}")
    chosen = parser.parse_args(words).names or list(FAULTS)
    unknown = [name for name in chosen if name not in FAULTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such fault; there are {', '.join(FAULTS)}")
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    rows: list[Row] = []
    try:
        # Grouped by story: each begins with its own loads.
        faults = {name: fault for name, fault in FAULTS.items() if name in chosen}
        print(_line(_HEADINGS), _RULE, sep="\n", flush=True)
        for name, row in run_all(faults, folder):
            rows.append(row)
            print(_line(row.cells), flush=True)
            for text in row.broken:
                print(f"NOT AS PROMISED: {name}: {text}", file=sys.stderr, flush=True)
                for line in row.loaded.said if row.loaded else ():
                    print(f"  {line}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    broken = sum(bool(row.broken) for row in rows)
    skipped = sum(row.loaded is None for row in rows)
    print(f"\n{len(rows)} faults, {skipped} not run, {broken} not as promised")
    return 1 if broken or skipped == len(rows) else 0


if __name__ == "__main__":
    started = time.monotonic()
    code = main(sys.argv[1:])
    print(f"{time.monotonic() - started:.0f} s")
    raise SystemExit(code)
