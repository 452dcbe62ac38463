"""Ledgers for tests: rows that only a publish writes."""

from __future__ import annotations

from typing import Any

from resources.ledger.store import Ledger
from resources.ledger.writing import LedgerWriting


def record_run(ledger: Ledger, run_id: str, **values: Any) -> None:
    """The row of a run, as its publish writes it."""
    with ledger.transaction() as connection:
        LedgerWriting(connection).record_run(run_id, values)
