"""Publish all tables of a run, and the ledger rows of the run, in one SQL transaction (ARCHITECTURE, laws 2 and 10)."""

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
    """The publisher of a deployment whose ledger lies in the database of Iceberg's SQL catalog."""

    def __init__(self, lakehouse: Lakehouse, ledger: Ledger) -> None:
        """Publish to this lakehouse and record in this ledger."""
        self._lakehouse, self._ledger = lakehouse, ledger

    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """Publish the whole request or nothing; returns table -> what main shows since.

        Raises PublishConflictError, with nothing changed, where another writer changed what the request rests on.
        """
        failpoint(Failpoint.BEFORE_PUBLISH)
        request = request.together
        prepared: dict[str, Prepared] = {}
        try:
            for change in request.tables:
                prepared[change.table.key] = self._lakehouse.changes.prepare(change, request.run_id)
            for change in request.tables:
                # Before the transaction: this may take thousands of requests, and other writers would wait for them.
                self._lakehouse.changes.require_restorable(change)
            with self._ledger.transaction() as connection:
                self._follow_present_heads(connection, request, prepared)
                published = {key: one.published for key, one in prepared.items()}
                record_publish(connection, request, published)
                swap_pointers(connection, self._lakehouse.catalog_name, list(prepared.values()))
                failpoint(Failpoint.IN_TRANSACTION)
        except LedgerUnavailableError:
            # The commit may have succeeded, and only its answer was lost.
            if not self._is_committed(prepared):
                self._discard(prepared)
                raise
        except (PublishConflictError, LakehouseError, LakehouseUnavailableError, *FAILURES):
            # All of these are raised before the commit.
            self._discard(prepared)
            raise
        failpoint(Failpoint.AFTER_PUBLISH)
        return published

    def _discard(self, prepared: Mapping[str, Prepared]) -> None:
        """Remove metadata files that no catalog names: `tidemark attach` would take the newest of them for the table's state."""
        for one in prepared.values():
            self._lakehouse.changes.discard(one)

    def _follow_present_heads(
        self, connection: Connection, request: PublishRequest, prepared: dict[str, Prepared]
    ) -> None:
        """Prepare a table again where its pointer moved since; the lock keeps all pointers in place from here on."""
        locations = lock_pointers(connection, self._lakehouse.catalog_name, [change.table for change in request.tables])
        for change in request.tables:
            former = prepared[change.table.key]
            if locations.get(change.table.key) != former.before:
                prepared[change.table.key] = self._lakehouse.changes.prepare(change, request.run_id)
                self._lakehouse.changes.discard(former)

    def _is_committed(self, prepared: Mapping[str, Prepared]) -> bool:
        """Whether the catalog names what was prepared.

        Asked under the ledger's lock: a transaction whose connection is gone may still be at work in the server.
        """
        with self._ledger.transaction():
            return any(self._lakehouse.changes.was_named(one) for one in prepared.values())
