"""Change slices of a catalog's tables: publish a staged snapshot to main, or restore an earlier state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import Slice
from resources.iceberg.catalog_commit import commit_together
from resources.iceberg.lost_files import gone_files
from resources.iceberg.metadata import JavaTables, LiveFiles, slice_of
from resources.iceberg.prepared import NextState, Prepared, discard, next_state, prepare, was_named
from resources.iceberg.slice_change import Published, SliceChange, files_of_base, load
from resources.iceberg.table_commit import commit_change

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table


class SliceChanges:
    """Creates changes of slices and hands them to Iceberg."""

    def __init__(self, tables: JavaTables) -> None:
        """Change slices of the tables of one catalog."""
        self._tables = tables

    def of(
        self, table: Table, base_id: int, snapshot_id: int, slices: Collection[Slice], branches: Sequence[str] = ()
    ) -> SliceChange:
        """Return the change that gives main's slices, read at `base_id`, the files of a staged snapshot."""
        wanted = frozenset(slices)
        files = self._tables.files(load(self._tables, table), snapshot_id, wanted)
        return self._since(SliceChange(table, base_id, wanted, files, LiveFiles(), tuple(branches)))

    def restoring(self, table: Table, base_id: int, snapshots: Mapping[Slice, int | None]) -> SliceChange:
        """Return the change that restores each slice to its snapshot (None: empty) without writing data.

        Raises LakehouseError where one of the files is gone. Callers keep the snapshots from expiring (`branches.keeping`); the
        publish checks once more that nobody removed a file.
        """
        files = self.require_files(table, snapshots)
        return self._since(SliceChange(table, base_id, frozenset(snapshots), files, LiveFiles(), is_restored=True))

    def _since(self, change: SliceChange) -> SliceChange:
        return replace(change, former=files_of_base(self._tables, load(self._tables, change.table), change))

    def without_deletes(self, table: Table, base_id: int, slices: Collection[Slice]) -> SliceChange:
        """Return the change that keeps the data files of these slices and removes the delete files that apply to them.

        Leaves out a slice of which a data file is gone, and one with a delete file that also applies to a slice left out.
        """
        java = load(self._tables, table)
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

    def prepare(self, change: SliceChange, run_id: str) -> Prepared:
        """Apply a change to main's head without making it visible; raises SliceConflictError (resources/iceberg/prepared.py)."""
        return prepare(self._tables, change, run_id)

    def discard(self, prepared: Prepared) -> None:
        """Discard a prepared change that was not and will not be published."""
        discard(self._tables, prepared)

    def was_named(self, prepared: Prepared) -> bool:
        """Whether the catalog shows a prepared change, or did before others committed."""
        return was_named(self._tables, prepared)

    def next_state(self, change: SliceChange, run_id: str) -> NextState:
        """Apply a change as `prepare` does, for a catalog that writes metadata itself."""
        return next_state(self._tables, change, run_id)

    def commit_together(self, states: Sequence[NextState]) -> None:
        """Commit states of several tables in one commit of a REST catalog; raises PublishConflictError (catalog_commit.py)."""
        commit_together(self._tables, states)

    def commit(self, change: SliceChange, name: str, run_id: str, *, branch: str | None = None) -> Published:
        """Commit a change to main or to a branch; `name` distinguishes this commit from others of the run.

        Raises SliceConflictError, with nothing committed, when main changed in one of the slices since its base.
        """
        return commit_change(self._tables, change, name, run_id, branch=branch)

    def require_restorable(self, change: SliceChange) -> None:
        """Raise LakehouseError where a file that a change restores is gone."""
        if change.is_restored:
            self._require_there(change.files)

    def require_files(self, table: Table, snapshots: Mapping[Slice, int | None]) -> LiveFiles:
        """Return the files of these slices in these snapshots; raises LakehouseError for a file that is gone."""
        java = load(self._tables, table)
        files = LiveFiles()
        for snapshot_id in {known for known in snapshots.values() if known is not None}:
            chosen = {key for key, known in snapshots.items() if known == snapshot_id}
            found = self._tables.files(java, snapshot_id, chosen)
            if found.deletes:
                raise LakehouseError(
                    min(found.deletes), "had rows deleted by another program then", "Choose another state"
                )
            files |= found
        self._require_there(files)
        return files

    def _require_there(self, paths: Collection[str]) -> None:
        if gone := gone_files(paths):
            raise LakehouseError(min(gone), "is gone, so its rows cannot be restored", "Choose a later state")
