"""Restores operators' decisions that the warehouse keeps and the ledger lacks, before anything is decided or deleted."""

from __future__ import annotations

from collections.abc import Callable

from resources.ledger.interventions import ActKind
from resources.ledger.store import Ledger

_WORDS = {
    ActKind.EXCLUDE: "exclusions",
    ActKind.LIFT: "lifts",
    ActKind.HOLD: "holds",
    ActKind.RELEASE: "releases",
}


def read_back(ledger: Ledger, log: Callable[[str], None]) -> None:
    """Copy decisions in both directions, so that the ledger and the warehouse hold the same ones; no effect if they do.

    Raises LakehouseError or LakehouseUnavailableError if the warehouse cannot be read.
    """
    counts = ledger.interventions.read_back()
    parts = [f"{counts[kind]} {_WORDS[kind]}" for kind in ActKind if counts[kind]]
    if parts:
        listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        log(f"{listed} were read back from the warehouse: the ledger had lost them")
