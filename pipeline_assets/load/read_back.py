"""Decisions that the warehouse keeps and the ledger lacks: read back before anything is decided or thrown away.

Contains: when that is done, and what is logged of it.
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
    counts = ledger.interventions.read_back()
    parts = [f"{counts[kind]} {_WORDS[kind]}" for kind in ActKind if counts[kind]]
    if parts:
        listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        log(f"{listed} were read back from the warehouse: the ledger had lost them")
