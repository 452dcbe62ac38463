"""Publish all tables of a run and everything that is recorded of it in one transaction (ARCHITECTURE, laws 2 and 10).

Contains: prepare, lock, compare, swap the pointers; a commit whose answer was lost.
Add here: another look at the catalog inside of the transaction.
Does not contain: what is prepared (resources/iceberg/prepared.py), what the ledger is told and asked (recording.py),
deployments whose catalog is elsewhere (tables_together.py, table_by_table.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

from pipeline_assets.domain.errors import (
    LakehouseError,
    LakehouseUnavailableError,
    LedgerUnavailableError,
    PublishConflictError,
)
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import FAILURES
from resources.iceberg.pointers import lock_pointers, swap_pointers
from resources.iceberg.prepared import Prepared
from resources.iceberg.slice_change import Published
from resources.publishing.recording import record_publish
from resources.publishing.request import PublishRequest

if TYPE_CHECKING:
    from resources.iceberg.lakehouse import Lakehouse
    from resources.ledger.store import Ledger


class OneTransaction:
    """For a ledger that lies in the database of Iceberg's SQL catalog."""

    def __init__(self, lakehouse: Lakehouse, ledger: Ledger) -> None:
        """Of this lake and its ledger."""
        self._lakehouse, self._ledger = lakehouse, ledger

    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """All of it or nothing; raises PublishConflictError, with nothing changed, where another writer was there."""
        failpoint(Failpoint.BEFORE_PUBLISH)
        prepared: dict[str, Prepared] = {}
        try:
            for change in request.tables:
                prepared[change.table.key] = self._lakehouse.changes.prepare(change, request.run_id)
            for change in request.tables:
                # Thousands of requests, perhaps: others wait for the transaction.
                self._lakehouse.changes.require_restorable(change)
            with self._ledger.transaction() as connection:
                self._follow_present_heads(connection, request, prepared)
                published = {key: one.published for key, one in prepared.items()}
                record_publish(connection, request, published)
                swap_pointers(connection, self._lakehouse.catalog_name, list(prepared.values()))
                failpoint(Failpoint.IN_TRANSACTION)
        except LedgerUnavailableError:
            # The answer to the commit may be what was lost.
            if not self._is_committed(prepared):
                self._discard(prepared)
                raise
        except (PublishConflictError, LakehouseError, LakehouseUnavailableError, *FAILURES):
            # All raised before the commit.
            self._discard(prepared)
            raise
        failpoint(Failpoint.AFTER_PUBLISH)
        return published

    def _discard(self, prepared: Mapping[str, Prepared]) -> None:
        """Nobody reads what was prepared; newest of its table, it would be taken for its state where a catalog is lost."""
        for one in prepared.values():
            self._lakehouse.changes.discard(one)

    def _follow_present_heads(
        self, connection: Connection, request: PublishRequest, prepared: dict[str, Prepared]
    ) -> None:
        """Apply anew where a pointer moved since: nobody moves one any more until the transaction ends."""
        locations = lock_pointers(connection, self._lakehouse.catalog_name, [change.table for change in request.tables])
        for change in request.tables:
            former = prepared[change.table.key]
            if locations.get(change.table.key) != former.before:
                prepared[change.table.key] = self._lakehouse.changes.prepare(change, request.run_id)
                self._lakehouse.changes.discard(former)

    def _is_committed(self, prepared: Mapping[str, Prepared]) -> bool:
        """Looked up beside no other transaction: one whose connection is gone may still be at work in the server."""
        with self._ledger.transaction():
            return any(self._lakehouse.changes.was_named(one) for one in prepared.values())
