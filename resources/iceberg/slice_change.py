"""A change of some slices of one table, as a row delta that fails where another writer changed them (law 2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError, SliceConflictError
from pipeline_assets.domain.slices import Slice
from resources.iceberg.errors import failure, is_conflict
from resources.iceberg.metadata import RUN_PROPERTY, JavaTables, LiveFiles, SliceFiles, by_slice

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

PUBLISH_PROPERTY, PUBLISHED_WITH = "tidemark.publish-id", "tidemark.published-with"
"""Entries of a snapshot's summary: its publish, and the tables that get a snapshot of it, all of them or none."""


@dataclass(frozen=True)
class SliceChange:
    """Slices of one table, and the files that they consist of after the change."""

    table: Table
    base_id: int
    """Main's head when the change was computed."""
    slices: frozenset[Slice]
    files: LiveFiles
    former: LiveFiles
    """The files that the slices consist of at the base."""
    branches: tuple[str, ...] = ()
    """Branches on which the files were staged; they are removed once main shows the files."""
    is_restored: bool = False
    """Whether the change restores files of an earlier snapshot: somebody may have removed one, so each is checked."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """Further entries of its snapshot's summary."""

    @property
    def is_empty(self) -> bool:
        """Whether the files are those of the base already, so that there is nothing to commit."""
        return self.files.names == self.former.names

    @property
    def files_by_slice(self) -> dict[Slice, SliceFiles]:
        """The files of every slice after the change."""
        return by_slice(self.files, self.slices)

    @property
    def subject(self) -> str:
        """The table and its first three slices, for messages."""
        return _named(self.table, self.slices)

    def lost(
        self, reason: str, hint: str = "It is looked at again", slices: Collection[Slice] = ()
    ) -> SliceConflictError:
        """Return the error for slices that another writer changed; all of the change's where none are given."""
        lost = slices or self.slices
        return SliceConflictError(_named(self.table, lost), reason, hint, {(self.table.key, key) for key in lost})


def _named(table: Table, slices: Collection[Slice]) -> str:
    return f"{table.key} {', '.join(sorted(map(str, slices))[:3])}"


@dataclass(frozen=True)
class Published:
    """What main of one table shows after a publish."""

    snapshot_id: int
    parent_id: int
    files: Mapping[Slice, SliceFiles]
    """The live files of every published slice."""
    is_empty: bool = False
    """True where the files were live already, so that main did not change."""


def row_delta(tables: JavaTables, java: Any, change: SliceChange, run_id: str) -> Any:
    """Return the operation, neither applied nor committed; it fails where main changed in one of the slices since the base."""
    old, new = change.former, change.files
    # Unlike an overwrite, a row delta can require that the files it does not touch still exist.
    operation = java.newRowDelta()
    for path in sorted(old.keys() - new.keys()):
        operation.removeRows(old[path])
    for path in sorted(new.keys() - old.keys()):
        operation.addRows(new[path])
    if change.files.names - change.files.keys() - old.names:
        reason = "was staged with delete files: another program set its table to merge-on-read meanwhile"
        raise LakehouseError(change.subject, reason, "Load again, which resets that")
    for delete in _released(tables, java, change):
        operation.removeDeletes(delete)
    kept = tables.java_list(sorted(old.keys() & new.keys()))
    operation.validateFromSnapshot(change.base_id)
    operation.conflictDetectionFilter(tables.expression(change.table.day_column, change.slices))
    operation.validateDataFilesExist(kept).validateDeletedFiles()
    operation.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()
    # Leave the files of a failed commit to maintenance. A commit may succeed while its answer is lost: Iceberg then retries
    # it, it conflicts with itself, and its clean-up would delete the manifests of a live snapshot.
    operation.deleteWith(tables.java_class("java.util.stream.Stream").builder())
    for name, value in {**change.summary, RUN_PROPERTY: run_id}.items():
        operation.set(name, value)
    return operation


def _released(tables: JavaTables, java: Any, change: SliceChange) -> list[Any]:
    """The delete files of the base that apply to no slice after the change."""
    former, kept = change.former.deletes, set(change.files.names)
    gone = {name: delete for own in former.values() for name, delete in own.items() if name not in kept}
    if gone:
        # A delete file without a partition applies to other slices as well, which keep it.
        everywhere = tables.files(java, change.base_id, None).deletes
        kept.update(*(everywhere[path] for path in everywhere.keys() - former.keys()))
    return [delete for name, delete in gone.items() if name not in kept]


def nothing_to_swap(tables: JavaTables, java: Any, change: SliceChange, head_id: int) -> Published | None:
    """Return the result of a change that leaves the slices as they were at the base; None for any other change.

    `head_id` is the head of main or of the branch to change. Raises SliceConflictError where the slices differ there by now.
    """
    if not change.is_empty:
        return None
    if head_id != change.base_id and tables.files(java, head_id, change.slices).names != change.files.names:
        raise change.lost("another writer changed it since it was read")
    return Published(head_id, head_id, change.files_by_slice, is_empty=True)


def require_base_files(tables: JavaTables, change: SliceChange, parent_id: int) -> None:
    """Raise SliceConflictError where files of the change's slices were replaced between base and parent.

    Iceberg detects files that others added, and others' removal of files that this change deletes. It does not detect that
    others compacted or removed further files. The rows are right then, but the recorded list of files is not.
    """
    if parent_id == change.base_id:
        return
    before = tables.files(tables.current(change.table), parent_id, change.slices)
    if before.names != change.former.names:
        raise change.lost("another process compacted or removed its files during the publish")


def refusal(tables: JavaTables, change: SliceChange, error: Exception) -> Exception:
    """Return the error to raise: a conflict that names the winner and the slices, or any other failure, ours where known."""
    if not is_conflict(error):
        return failure(change.subject, error) or error
    since = tables.commits(tables.current(change.table), change.base_id)
    commits = [commit for commit in since if commit.slices & change.slices]
    winners = {commit.run_id or f"snapshot {commit.snapshot_id}, not written by Tidemark" for commit in commits}
    lost = frozenset().union(*(commit.slices & change.slices for commit in commits))
    who = f"run {', '.join(sorted(winners))}" if winners else "another writer"
    hint = "Nothing was published; it is built from fresh inputs"
    return change.lost(f"{who} changed it since it was read", hint, lost)
