"""Bind a ledger to its lake: the ledger carries the lake's identity, the lake's mark carries the ledger's."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.errors import LedgerError
from pipeline_assets.domain.masking import masked
from resources.ledger.schema import LAKE

if TYPE_CHECKING:
    from resources.iceberg.lake_mark import Mark

_Connect = Callable[[], AbstractContextManager[Connection]]
_LAKE, _OWN = 1, 2
"""Numbers of the rows with the lake's identity and the ledger's own."""


class LakeOfLedger:
    """The lake that a ledger belongs to; the first run that may write records it."""

    def __init__(self, read: _Connect, write: _Connect, url: str) -> None:
        """Take `read` and `write`, which open a connection, the latter in a transaction."""
        self._read, self._write, self.url = read, write, url

    def lake(self) -> str | None:
        """Return the identity of the recorded lake; None for a ledger without one."""
        with self._read() as connection:
            return self._found(connection, _LAKE)

    def require(self, lake: str | None, mark: Mark | None = None) -> bool:
        """Raise LedgerError for the ledger of another lake, and for another ledger than the mark names; else whether it is bound.

        `lake` is None before the first load; a ledger that is already bound to a lake is refused then as well.
        """
        with self._read() as connection:
            recorded, own = self._found(connection, _LAKE), self._found(connection, _OWN)
        if recorded is not None:
            self._require_same(recorded, lake)
        if mark is not None and mark.ledger not in (None, own):
            raise self.stranger(f"which has the identity {mark.ledger} and is {mark.ledger_url}")
        return recorded is not None

    def identity(self) -> str:
        """Return the ledger's own identity, made on first use."""
        with self._write() as connection:
            return self._kept(connection, _OWN, str(uuid.uuid4()))

    def bind(self, lake: str) -> None:
        """Record the lake; raises LedgerError where another one is recorded."""
        with self._write() as connection:
            self._require_same(self._kept(connection, _LAKE, lake), lake)

    def stranger(self, whose: str) -> LedgerError:
        """Return the error for a ledger that the lake does not name."""
        return LedgerError(
            masked(self.url),
            f"is not the ledger of this lake, {whose}, and nothing was touched",
            "Set TIDEMARK_LEDGER_URL to that one; only where it is lost, let the tables be measured for this one: "
            "tidemark attach --ledger",
        )

    def _require_same(self, recorded: str, lake: str | None) -> None:
        if recorded != lake:
            raise LedgerError(
                masked(self.url),
                f"is the ledger of another lake ({recorded}) than this one ({lake or 'not begun yet'}), and nothing was touched",
                "Check TIDEMARK_LEDGER_URL and TIDEMARK_WAREHOUSE_URL; each lake needs a ledger of its own",
            )

    def _kept(self, connection: Connection, number: int, identity: str) -> str:
        found = self._found(connection, number)
        if found is None:
            connection.execute(LAKE.insert(), {"number": number, "id": identity})
        return found or identity

    def _found(self, connection: Connection, number: int) -> str | None:
        found = connection.execute(sa.select(LAKE.c.id).where(LAKE.c.number == number)).scalar()
        return None if found is None else str(found)
