"""Bind a ledger to its lake: the ledger carries the identity of the lake that it describes.

Contains: comparing the identity, and recording it on first use.
Add here: another check that ledger and lake belong together.
Does not contain: the identity itself (iceberg/lake_identity.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.errors import LedgerError
from pipeline_assets.domain.masking import masked
from resources.ledger.schema import LAKE

_Connect = Callable[[], AbstractContextManager[Connection]]
_NUMBER = 1


class LakeOfLedger:
    """The lake that a ledger belongs to; the first run that may write records it."""

    def __init__(self, read: _Connect, write: _Connect, url: str) -> None:
        """Take `read` and `write`, which open a connection, the latter in a transaction."""
        self._read, self._write, self._url = read, write, url

    def require(self, lake: str | None, *, may_take: bool) -> None:
        """Raise LedgerError for the ledger of another lake; with `may_take` a ledger without a lake is bound to this one.

        `lake` is None before the first load; a ledger that is already bound to a lake is refused then as well.
        """
        with self._read() as connection:
            recorded = self._found(connection)
        if recorded is None and lake is not None and may_take:
            with self._write() as connection:
                recorded = self._found(connection)
                if recorded is None:
                    connection.execute(LAKE.insert(), {"number": _NUMBER, "id": lake})
                    recorded = lake
        if recorded is not None and recorded != lake:
            raise LedgerError(
                masked(self._url),
                f"is the ledger of another lake ({recorded}) than this one ({lake or 'not begun yet'}), and nothing was touched",
                "Check TIDEMARK_LEDGER_URL and TIDEMARK_WAREHOUSE_URL; each lake needs a ledger of its own",
            )

    def _found(self, connection: Connection) -> str | None:
        found = connection.execute(sa.select(LAKE.c.id)).scalar()
        return None if found is None else str(found)
