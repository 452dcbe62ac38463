"""Rows of runs, as a publish writes them.

Contains: writing one.
Add here: another row that only a publish writes.
Does not contain: histories of many days (recorded_history.py).
"""

from __future__ import annotations

from typing import Any

from resources.ledger.store import Ledger
from resources.ledger.writing import LedgerWriting


def record_run(ledger: Ledger, run_id: str, **values: Any) -> None:
    """Write or complete the row of a run."""
    with ledger.transaction() as connection:
        LedgerWriting(connection).record_run(run_id, values)
