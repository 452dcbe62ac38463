"""Publish all tables of a run in one commit of a REST catalog, inside the ledger's transaction, which ends right after it."""

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
"""Other writers move a table's metadata whenever they stage a branch; each time the request is prepared again."""


class TablesTogether:
    """The publisher of a deployment whose REST catalog commits several tables at once; the ledger has its own database."""

    def __init__(self, lakehouse: Lakehouse, ledger: Ledger) -> None:
        """Publish to this lakehouse and record in this ledger."""
        self._lakehouse, self._ledger = lakehouse, ledger

    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """Publish all tables or none; returns table -> what main shows since.

        Raises PublishConflictError, with nothing changed, where another writer changed what the request rests on. If the
        process dies after the catalog's commit, the next run finds that commit in the tables and records it.
        """
        failpoint(Failpoint.BEFORE_PUBLISH)
        for is_last in tries(_TRIES, _FIRST_PAUSE_SECONDS):
            try:
                published = self._published(request)
            except (SliceConflictError, TakenOverError):
                # The load has to build lost slices again; another run goes on with what it took over.
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
        states = [changes.next_state(change, request.run_id) for change in request.together.tables]
        published = {state.table.key: state.published for state in states}
        for change in request.tables:
            changes.require_restorable(change)
        with self._ledger.transaction() as connection:
            # The ledger comes first: what it refuses must not become visible, and its lock keeps other runs out.
            record_publish(connection, request, published)
            failpoint(Failpoint.IN_TRANSACTION)
            changes.commit_together(states)
            failpoint(Failpoint.AFTER_COMMIT)
        return published
