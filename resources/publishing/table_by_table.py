"""Publish the tables of a run one after another, each followed by its ledger rows, where no transaction spans them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import LakehouseError, SliceConflictError
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.slice_change import Published, SliceChange
from resources.ledger.writing import LedgerWriting
from resources.publishing.recording import require_publishable
from resources.publishing.request import PartlyPublishedError, PublishRequest, naming_published

if TYPE_CHECKING:
    from resources.iceberg.lakehouse import Lakehouse
    from resources.ledger.store import Ledger


class TableByTable:
    """The publisher of a deployment whose ledger lies elsewhere and whose catalog commits one table at a time."""

    def __init__(self, lakehouse: Lakehouse, ledger: Ledger) -> None:
        """Publish to this lakehouse and record in this ledger."""
        self._lakehouse, self._ledger = lakehouse, ledger

    def publish(self, request: PublishRequest) -> Mapping[str, Published]:
        """Publish each table in one commit, then one ledger transaction; returns table -> what main shows since.

        Raises PublishConflictError where another writer was faster; the tables after that one stay as they were.
        """
        with self._ledger.transaction() as connection:
            require_publishable(connection, request)
        changes = {change.table.key: change for change in request.tables}
        published: dict[str, Published] = {}
        recorded = [table for table, _ in request.steps]
        for key in [key for key in changes if key not in recorded]:
            published[key] = self._commit(request, changes[key])
        for number, (table, step) in enumerate(request.steps):
            try:
                if table in changes and table not in published:
                    self._require_as_decided(request, changes[table])
                    published[table] = self._commit(request, changes[table])
                failpoint(Failpoint.BEFORE_LEDGER, table)
                self._ledger.record(naming_published(step, table, published, request.stand_ins), request.run_id)
            except SliceConflictError as conflict:
                raise PartlyPublishedError(conflict, published, number) from conflict
        with self._ledger.transaction() as connection:
            writing = LedgerWriting(connection)
            snapshots = writing.record_cut(request.run_id, {table: one.snapshot_id for table, one in published.items()})
            if request.run is not None:
                writing.record_run(request.run_id, {**request.run, "snapshots": snapshots})
            if request.alongside is not None:
                request.alongside.write(connection)
        return published

    def _commit(self, request: PublishRequest, change: SliceChange) -> Published:
        published = self._lakehouse.changes.commit(change, request.name, request.run_id)
        try:
            if not published.is_empty:
                self._lakehouse.changes.require_restorable(change)
        except LakehouseError as gone:
            # Put the former files back: a table must not name files that are gone.
            before = self._lakehouse.changes.of(change.table, published.snapshot_id, change.base_id, change.slices)
            self._lakehouse.changes.commit(before, f"{request.name}_undone", request.run_id)
            reason = "vanished during the rollback; its slice is unchanged"
            raise LakehouseError(gone.subject, reason, gone.hint) from gone
        self._lakehouse.branches.drop(change.table, change.branches)
        return published

    def _require_as_decided(self, request: PublishRequest, change: SliceChange) -> None:
        """What persons decided since does not speak against this table; a moment later it may."""
        with self._ledger.transaction() as connection:
            writing = LedgerWriting(connection)
            if request.minds_holds:
                writing.require_not_held({(change.table.key, key) for key in change.slices})
            for step in (step for table, step in request.steps if table == change.table.key):
                writing.require_decisions(step)
