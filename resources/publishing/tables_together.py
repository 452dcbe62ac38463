"""Publish all tables of a run in one commit of the catalog, from inside of the ledger's transaction, which ends after it.

Contains: what is asked and written first, the commit, applying anew what others moved meanwhile.
Add here: another look at the catalog before its commit.
Does not contain: the commit of several tables (resources/iceberg/catalog_commit.py), what the ledger is told and asked
(recording.py), what a run left that died between both commits (pipeline_assets/load/ledger_sync.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import PublishConflictError, SliceConflictError, TakenOverError
from pipeline_assets.domain.retry import tries
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.slice_change import Published
from resources.publishing.recording import record_publish
from resources.publishing.request import PublishRequest

if TYPE_CHECKING:
    from resources.iceberg.lakehouse import Lakehouse
    from resources.ledger.store import Ledger

_TRIES, _FIRST_PAUSE_SECONDS = 8, 0.1
"""Others that stage branches move a table's metadata as well: each time what is published is applied anew."""


class TablesTogether:
    """For a REST catalog that commits several tables at once, and a ledger in a database of its own."""

    def __init__(self, lakehouse: Lakehouse, ledger: Ledger) -> None:
        """Of this lake and its ledger."""
        self._lakehouse, self._ledger = lakehouse, ledger

    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """All tables or none; raises PublishConflictError, with nothing changed, where another writer was there.

        Where the process dies after the catalog's commit, the ledger lacks it until the next run looks at the tables.
        """
        failpoint(Failpoint.BEFORE_PUBLISH)
        for is_last in tries(_TRIES, _FIRST_PAUSE_SECONDS):
            try:
                published = self._published(request)
            except (SliceConflictError, TakenOverError):
                # Slices were lost, and are built again; or another run goes on with all of it.
                raise
            except PublishConflictError:
                if is_last:
                    raise
            else:
                failpoint(Failpoint.AFTER_PUBLISH)
                return published
        raise AssertionError

    def _published(self, request: PublishRequest) -> Mapping[str, Published]:
        changes = self._lakehouse.changes
        states = [changes.next_state(change, request.run_id) for change in request.tables]
        published = {state.table.key: state.published for state in states}
        with self._ledger.transaction() as connection:
            # Written first: what the ledger refuses must not be visible, and its locks keep other runs from between.
            record_publish(connection, request, published)
            for change in request.tables:
                changes.require_restorable(change)
            failpoint(Failpoint.IN_TRANSACTION)
            changes.commit_together(states)
            failpoint(Failpoint.AFTER_COMMIT)
        return published
