"""What becomes of some slices of one table, as a row delta that fails where another writer was there (law 2).

Contains: the exact file diff, the checks for other writers, who won.
Add here: another condition under which a publish must not succeed.
Does not contain: making it visible (prepared.py, table_commit.py), what is in the files (lakehouse.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import SliceConflictError
from pipeline_assets.domain.slices import Slice
from resources.iceberg.errors import again, failure, is_conflict
from resources.iceberg.metadata import RUN_PROPERTY, JavaTables, SliceFiles, by_slice

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

PUBLISH_PROPERTY = "tidemark.publish-id"


@dataclass(frozen=True)
class SliceChange:
    """Slices of one table, and the files that they consist of afterwards."""

    table: Table
    base_id: int
    """Main's head when it was read."""
    slices: frozenset[Slice]
    files: Mapping[str, Any]
    """Path -> Java DataFile."""
    branches: tuple[str, ...] = ()
    """Where they were staged; these go when main shows them."""
    is_restored: bool = False
    """Whether the files were live once and not since: somebody may have removed one, so each is looked for."""

    @property
    def files_by_slice(self) -> dict[Slice, SliceFiles]:
        """The files of every slice, as they are after it."""
        return by_slice(self.files, self.slices)

    @property
    def subject(self) -> str:
        """For messages: the table and the first of its slices."""
        return f"{self.table.key} {', '.join(sorted(map(str, self.slices))[:3])}"


@dataclass(frozen=True)
class Published:
    """What main of one table shows since a publish."""

    snapshot_id: int
    parent_id: int
    files: Mapping[Slice, SliceFiles]
    """The live files of every published slice."""
    is_empty: bool = False
    """True where the files were live already and main stayed what it was."""


def files_of_base(tables: JavaTables, java: Any, change: SliceChange) -> dict[str, Any]:
    """What the slices consist of before: path -> Java DataFile.

    Raises SliceConflictError where the base has expired: others moved main on since, and nothing tells any more what they did.
    """
    if java.snapshot(change.base_id) is None:
        lost = {(change.table.key, key) for key in change.slices}
        raise SliceConflictError(
            change.subject, "the snapshot it was read at has expired", "It is looked at again", lost
        )
    return tables.files(java, change.base_id, change.slices)


def row_delta(tables: JavaTables, java: Any, change: SliceChange, old: Mapping[str, Any], run_id: str) -> Any:
    """The operation, neither applied nor committed; it refuses where main changed in one of the slices since the base."""
    new = change.files
    # A row delta, unlike an overwrite, is able to insist on files that it leaves where they are.
    operation = java.newRowDelta()
    for path in sorted(old.keys() - new.keys()):
        operation.removeRows(old[path])
    for path in sorted(new.keys() - old.keys()):
        operation.addRows(new[path])
    kept = tables.java_class("java.util.ArrayList")()
    for path in sorted(old.keys() & new.keys()):
        kept.add(path)
    operation.validateFromSnapshot(change.base_id)
    operation.conflictDetectionFilter(tables.expression(change.table.day_column, change.slices))
    operation.validateDataFilesExist(kept).validateDeletedFiles()
    operation.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()
    # Files that a failed commit would clean up stay for maintenance: one that succeeded while its answer was lost is tried
    # again inside of Iceberg, conflicts with itself, and would delete the manifests of a live snapshot.
    operation.deleteWith(tables.java_class("java.util.stream.Stream").builder())
    operation.set(RUN_PROPERTY, run_id)
    return operation


def nothing_to_swap(
    tables: JavaTables, java: Any, change: SliceChange, old: Mapping[str, Any], head_id: int
) -> Published | None:
    """The result where the slices stay what they were at the base; None where they do not.

    `head_id`: of main, or of the branch that is to change. Raises SliceConflictError where they are something else there by now.
    """
    if old.keys() != change.files.keys():
        return None
    if head_id != change.base_id and tables.files(java, head_id, change.slices).keys() != old.keys():
        lost = {(change.table.key, key) for key in change.slices}
        raise SliceConflictError(
            change.subject, "another writer changed it since it was read", "It is looked at again", lost
        )
    return Published(head_id, head_id, change.files_by_slice, is_empty=True)


def require_base_files(tables: JavaTables, change: SliceChange, parent_id: int, old: Mapping[str, Any]) -> None:
    """Raise where the change's own slices lost files between base and parent: their files are not what was staged.

    Iceberg refuses files that others added there, and the removal of files that it deletes itself; that others joined or
    removed files beside those it adds, it lets pass. The rows are right then, the account of them is not.
    """
    if parent_id == change.base_id:
        return
    before = tables.files(load(tables, change.table), parent_id, change.slices)
    if before.keys() != old.keys():
        reason = "another process compacted or removed its files during the publish"
        lost = {(change.table.key, key) for key in change.slices}
        raise SliceConflictError(change.table.key, reason, "It is looked at again", lost)


def refusal(tables: JavaTables, change: SliceChange, error: Exception) -> Exception:
    """What Iceberg's refusal means: who won, and which slices; any other failure as ours or as it is."""
    if not is_conflict(error):
        return failure(change.subject, error) or error
    key = change.table.key
    commits = [
        commit for commit in tables.commits(load(tables, change.table), change.base_id) if commit.slices & change.slices
    ]
    winners = {commit.run_id or f"snapshot {commit.snapshot_id}, not written by Tidemark" for commit in commits}
    lost = frozenset().union(*(commit.slices & change.slices for commit in commits)) or change.slices
    who = f"run {', '.join(sorted(winners))}" if winners else "another writer"
    subject = f"{key} {', '.join(sorted(map(str, lost))[:3])}"
    reason = f"{who} changed it since it was read"
    slices = {(key, one) for one in lost}
    return SliceConflictError(subject, reason, "Nothing was published; it is built from fresh inputs", slices)


def load(tables: JavaTables, table: Table) -> Any:
    """The table as it is now, also where the catalog is away for a moment."""
    return again(lambda: tables.load(table))
