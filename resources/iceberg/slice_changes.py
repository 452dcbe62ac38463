"""Change slices of a catalog's tables: publish a staged snapshot to main, or restore an earlier state; one table or several."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import LakehouseError, LakehouseUnavailableError, PublishConflictError, TidemarkError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.retry import tries
from pipeline_assets.domain.slices import Slice
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.catalog_at_rest import gone_files
from resources.iceberg.errors import FAILURES, failure, first_line, is_unanswered
from resources.iceberg.metadata import LiveFiles, slice_of, walk
from resources.iceberg.prepared import NextState, Preparing
from resources.iceberg.slice_change import (
    PUBLISH_PROPERTY,
    Published,
    SliceChange,
    nothing_to_swap,
    refusal,
    require_base_files,
    row_delta,
)

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table


_SUBJECT = "catalog"
_NOT_SERVED = "Server does not support endpoint"
_TRIES, _FIRST_PAUSE_SECONDS = 6, 0.2
"""After a lost answer the server may still be committing; the tables are checked for about six seconds."""
_SETTING = "Set catalog_transactions = false (TIDEMARK_CATALOG_TRANSACTIONS)"


class SliceChanges(Preparing):
    """Creates changes of slices, and commits them where they are not prepared for a transaction of the catalog's database."""

    def of(
        self, table: Table, base_id: int, snapshot_id: int, slices: Collection[Slice], branches: Sequence[str] = ()
    ) -> SliceChange:
        """Return the change that gives main's slices, read at `base_id`, the files of a staged snapshot."""
        wanted = frozenset(slices)
        files = self._tables.files(self._tables.knowing(table, snapshot_id), snapshot_id, wanted)
        return self._since(SliceChange(table, base_id, wanted, files, LiveFiles(), tuple(branches)))

    def restoring(self, table: Table, base_id: int, snapshots: Mapping[Slice, int | None]) -> SliceChange:
        """Return the change that restores each slice to its snapshot (None: empty) without writing data.

        Raises LakehouseError where one of the files is gone. Callers keep the snapshots from expiring (`branches.keeping`); the
        publish checks once more that nobody removed a file.
        """
        files = self.require_files(table, snapshots)
        return self._since(SliceChange(table, base_id, frozenset(snapshots), files, LiveFiles(), is_restored=True))

    def _since(self, change: SliceChange) -> SliceChange:
        java = self._tables.current(change.table)
        if java.snapshot(change.base_id) is None:
            # Others moved main on since, and what they did is no longer known.
            raise change.lost("the snapshot it was read at has expired")
        return replace(change, former=self._tables.files(java, change.base_id, change.slices))

    def without_deletes(self, table: Table, base_id: int, slices: Collection[Slice]) -> SliceChange:
        """Return the change that keeps the data files of these slices and removes the delete files that apply to them.

        Leaves out a slice of which a data file is gone, and one with a delete file that also applies to a slice left out.
        """
        java = self._tables.current(table)
        live = self._tables.files(java, base_id, None)
        key_of = {path: slice_of(file) for path, file in live.items()}
        gone = gone_files([path for path, key in key_of.items() if key in slices])
        wanted = set(slices) - {key_of[path] for path in gone}
        tied = wanted
        while tied:
            stay = {name for path, own in live.deletes.items() if key_of[path] not in wanted for name in own}
            tied = {key_of[path] for path, own in live.deletes.items() if not stay.isdisjoint(own)} & wanted
            wanted = wanted - tied
        files = LiveFiles({path: file for path, file in live.items() if key_of[path] in wanted})
        return self._since(SliceChange(table, base_id, frozenset(wanted), files, LiveFiles()))

    def require_restorable(self, change: SliceChange) -> None:
        """Raise LakehouseError where a file that a change restores is gone."""
        if change.is_restored:
            self._require_there(change.files)

    def require_files(self, table: Table, snapshots: Mapping[Slice, int | None]) -> LiveFiles:
        """Return the files of these slices in these snapshots; raises LakehouseError for a file that is gone."""
        java = self._tables.current(table)
        files = LiveFiles()
        for snapshot_id in {known for known in snapshots.values() if known is not None}:
            chosen = {key for key, known in snapshots.items() if known == snapshot_id}
            found = self._tables.files(java, snapshot_id, chosen)
            if found.deletes:
                reason = "had rows deleted by another program then"
                raise LakehouseError(min(found.deletes), reason, "Choose another state")
            files |= found
        self._require_there(files)
        return files

    def _require_there(self, paths: Collection[str]) -> None:
        if gone := gone_files(paths):
            raise LakehouseError(min(gone), "is gone, so its rows cannot be restored", "Choose a later state")

    def commit(self, change: SliceChange, name: str, run_id: str, *, branch: str | None = None) -> Published:
        """Commit a change to main or to an existing branch; `name` distinguishes this commit from others of the run.

        Raises SliceConflictError, with nothing committed, when main changed in one of the slices since its base.
        """
        tables, java = self._tables, self._tables.current(change.table)
        head = java.currentSnapshot() if branch is None else java.snapshot(branch)
        standing = nothing_to_swap(tables, java, change, int(head.snapshotId()))
        if standing is not None:
            return standing
        operation = row_delta(tables, java, change, run_id)
        slices = repr(sorted(map(str, change.slices)))
        publish_id = f"{name}-{hashlib.sha256(slices.encode()).hexdigest()[:12]}"
        operation.set(PUBLISH_PROPERTY, publish_id)
        if branch is not None:
            operation.toBranch(branch)
        else:
            failpoint(Failpoint.BEFORE_COMMIT, change.table.key)
        try:
            operation.commit()
        except FAILURES as error:
            # Iceberg retries a commit whose answer was lost, and the retry conflicts with the first try: history decides.
            committed = self._committed(change, publish_id, branch)
            if committed is None:
                raise refusal(tables, change, error) from error
        else:
            if branch is None:
                failpoint(Failpoint.AFTER_COMMIT, change.table.key)
            committed = self._committed(change, publish_id, branch)
        if committed is None:
            reason = "main was set back over what was just published"
            raise PublishConflictError(change.table.key, reason, "The load looks at the table again")
        require_base_files(tables, change, committed.parent_id)
        return committed

    def _committed(self, change: SliceChange, publish_id: str, branch: str | None) -> Published | None:
        """The commit; None where the history since the change's base does not contain it."""
        java = self._tables.current(change.table)
        head = java.currentSnapshot() if branch is None else java.snapshot(branch)
        for snapshot in takewhile(lambda one: one.snapshotId() != change.base_id, walk(java, head)):
            if snapshot.summary().get(PUBLISH_PROPERTY) == publish_id:
                return Published(int(snapshot.snapshotId()), int(snapshot.parentId()), change.files_by_slice)
        return None

    def commit_together(self, states: Sequence[NextState]) -> None:
        """Commit states of several tables in one transaction of a REST catalog.

        Raises PublishConflictError, with nothing committed, where a table has moved on from the base of its state.
        """
        commit = self._tables.java_class("org.apache.iceberg.catalog.TableCommit")
        name = self._tables.java_class("org.apache.iceberg.catalog.TableIdentifier")
        changed = [state for state in states if not state.metadata.changes().isEmpty()]
        commits = [commit.create(name.parse(one.table.identifier), one.base, one.metadata) for one in changed]
        if not commits:
            return
        try:
            self._tables.catalog().commitTransaction(self._tables.java_list(commits))
        except FAILURES as error:
            if not self._are_committed(states, may_be_at_work=is_unanswered(error)):
                raise self._refusal(states, error) from error

    def _are_committed(self, states: Sequence[NextState], *, may_be_at_work: bool) -> bool:
        """Whether the tables' histories contain the commit; raises LakehouseError where only some of the tables have it."""
        moved = [state for state in states if not state.published.is_empty]
        for _ in tries(_TRIES if may_be_at_work else 1, _FIRST_PAUSE_SECONDS):
            snapshots = [self._tables.current(one.table).snapshot(one.published.snapshot_id) for one in moved]
            shown = [one.table.key for one, snapshot in zip(moved, snapshots, strict=True) if snapshot is not None]
            left = [one.table.key for one in moved if one.table.key not in shown]
            if shown and left:
                reason = (
                    f"committed {few(shown)} of one transaction and left {few(left)}: it does not keep transactions"
                )
                raise LakehouseError(_SUBJECT, reason, f"{_SETTING}, then load again")
            if shown:
                return True
        return False

    def _refusal(self, states: Sequence[NextState], error: Exception) -> TidemarkError | Exception:
        if _NOT_SERVED in str(error):
            reason = "does not commit several tables at once (POST /v1/{prefix}/transactions/commit)"
            return LakehouseError(_SUBJECT, reason, f"{_SETTING}, then load again")
        if is_unanswered(error):
            # The next run reads from the tables whether the commit succeeded.
            reason = f"the answer to a commit was lost, and the tables show nothing of it: {first_line(error)}"
            return LakehouseUnavailableError(_SUBJECT, reason, "Load again; what was committed is found then")
        others = [
            one.table.key
            for one in states
            if self._tables.current(one.table).operations().current().metadataFileLocation()
            != one.base.metadataFileLocation()
        ]
        if others:
            reason = "another writer changed it meanwhile"
            return PublishConflictError(few(others), reason, "Nothing was published; it is applied anew")
        return failure(_SUBJECT, error) or error
