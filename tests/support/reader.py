"""A process that takes cuts in a loop beside a publisher, and counts contradictions."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.support.cuts import Cut, Cuts, cuts_of
from tests.support.hands import Hand

_PAUSE_SECONDS = 0.01
_KEPT = 12


@dataclass
class Seen:
    cuts: int = 0
    changed: int = 0
    """Cuts that differ from the one before; without any, the reader met no publish."""
    aggregates: int = 0
    """Cuts in which refined and its aggregates disagreed; equal consecutive ones count once."""
    ledger: int = 0
    """Cuts in which the ledger and a table disagreed, likewise."""
    moments: int = 0
    """How often refined and its aggregates began to disagree."""
    seconds_apart: float = 0.0
    """Total duration of these disagreements."""
    findings: list[str] = field(default_factory=list)
    """The first ones, in words."""


class Reader:
    def __init__(self, cuts: Cuts) -> None:
        self._cuts = cuts
        self._last: Cut | None = None
        self._state: object = None
        self._apart_since: float | None = None
        self.seen = Seen()

    def look(self) -> bool:
        """Take a cut and read its news; False where there is none."""
        seen, taken = self.seen, time.monotonic()
        cut = self._cuts.take()
        seen.cuts += 1
        if cut == self._last:
            return False
        self._last, before = cut, self._state
        found = self._cuts.findings(cut)
        self._state = (found.heads, cut.rows_on_record)
        if self._state == before:
            return True
        seen.changed += before is not None
        seen.aggregates += bool(found.aggregates)
        seen.ledger += bool(found.ledger)
        told = [f"cut {seen.changed}: {text}" for text in (*found.aggregates, *found.ledger)]
        seen.findings += told[: max(0, _KEPT - len(seen.findings))]
        if found.aggregates and self._apart_since is None:
            self._apart_since = taken
            seen.moments += 1
        elif not found.aggregates and self._apart_since is not None:
            seen.seconds_apart += taken - self._apart_since
            self._apart_since = None
        return True


@contextmanager
def a_reader(settings: Mapping[str, Any]) -> Iterator[Callable[[], Seen]]:
    """A process that reads these settings' lake in a loop; gives the request of one more cut and the account until then."""
    place = {name: settings.get(name) for name in ("catalog_url", "ledger_url", "catalog_name")}
    environment = {**os.environ, "PYICEBERG_MAX_WORKERS": "1", "OMP_NUM_THREADS": "1"}
    with closing(Hand(__name__, json.dumps(place), environment=environment)) as hand:

        def ask() -> Seen:
            return Seen(**hand.ask("a cut"))

        ask()
        yield ask


def main() -> None:
    """Read until standard input ends; each line requests one more cut and the account."""
    with cuts_of(**json.loads(sys.argv[1])) as cuts:
        reader = Reader(cuts)
        while True:
            if select.select([sys.stdin], [], [], 0)[0]:
                if not sys.stdin.readline():
                    return
                reader.look()
                sys.stdout.write(json.dumps(asdict(reader.seen)) + "\n")
                sys.stdout.flush()
            elif not reader.look():
                time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
