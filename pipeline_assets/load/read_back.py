"""Decisions that the warehouse keeps and the ledger lacks: read back before anything is decided or thrown away.

Contains: when that is done, and what is said of it.
Add here: another record that is kept in both places.
Does not contain: keeping and applying them (resources/ledger/decision_objects.py,
resources/ledger/acts.py).
"""

from __future__ import annotations

from collections.abc import Callable

from resources.ledger.acts import ActKind
from resources.ledger.store import Ledger

_WORDS = {
    ActKind.EXCLUDE: "exclusions",
    ActKind.LIFT: "lifts",
    ActKind.HOLD: "holds",
    ActKind.RELEASE: "releases",
}


def read_back(ledger: Ledger, log: Callable[[str], None]) -> None:
    """Make the ledger know every decision that the warehouse holds, and the other way round; one that does already is left alone.

    Raises LakehouseError or LakehouseUnavailableError where the warehouse does not tell.
    """
    found = ledger.interventions.read_back()
    said = [f"{found[kind]} {_WORDS[kind]}" for kind in ActKind if found[kind]]
    if said:
        listed = " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))
        log(f"{listed} were read back from the warehouse: the ledger had lost them")
