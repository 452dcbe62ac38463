"""The one commit that changes what main says of slices (ARCHITECTURE, laws 2 and 6).

Contains: the exact file diff, the checks for other writers, what a commit whose answer was lost did.
Add here: another condition under which a commit must not succeed.
Does not contain: what is swapped in (lakehouse.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import PublishConflictError
from pipeline_assets.domain.slices import Slice
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import FAILURES, again, failure, is_conflict
from resources.iceberg.metadata import RUN_PROPERTY, JavaTables, SliceFiles, by_slice

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

PUBLISH_PROPERTY = "tidemark.publish-id"


@dataclass(frozen=True)
class Publication:
    """One commit to main."""

    snapshot_id: int
    parent_id: int
    files: Mapping[Slice, SliceFiles]
    """The live files of every published slice after the commit."""
    is_empty: bool = False
    """True where the staged files were live already and nothing was committed."""


def swap(
    tables: JavaTables, table: Table, base_id: int, wanted: set[Slice], new: Mapping[str, Any], name: str, run_id: str
) -> Publication:
    """One commit that makes `new` (path -> Java DataFile) the files of these slices; `name` tells it from others of the run.

    Raises PublishConflictError, with nothing published, when main changed in one of the slices since `base_id`.
    """
    java = _load(tables, table)
    old = tables.files(java, base_id, wanted)
    files = by_slice(new, wanted)
    if old.keys() == new.keys():
        return Publication(base_id, base_id, files, is_empty=True)
    publish_id = f"{name}-{hashlib.sha256(repr(sorted(map(str, wanted))).encode()).hexdigest()[:12]}"
    # A row delta, unlike an overwrite, is able to insist on files that it leaves where they are.
    operation = java.newRowDelta()
    for path in sorted(old.keys() - new.keys()):
        operation.removeRows(old[path])
    for path in sorted(new.keys() - old.keys()):
        operation.addRows(new[path])
    kept = tables.java_class("java.util.ArrayList")()
    for path in sorted(old.keys() & new.keys()):
        kept.add(path)
    operation.validateFromSnapshot(base_id)
    operation.conflictDetectionFilter(tables.expression(table.day_column, wanted))
    operation.validateDataFilesExist(kept).validateDeletedFiles()
    operation.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()
    # Files that a failed commit would clean up stay for maintenance: one that succeeded while its answer was lost is tried
    # again inside of Iceberg, conflicts with itself, and would delete the manifests of a live snapshot.
    operation.deleteWith(tables.java_class("java.util.stream.Stream").builder())
    operation.set(RUN_PROPERTY, run_id)
    operation.set(PUBLISH_PROPERTY, publish_id)
    failpoint(Failpoint.BEFORE_COMMIT, table.key)
    try:
        operation.commit()
    except FAILURES as error:
        # A commit whose answer was lost is retried, and then conflicts with itself: history tells.
        committed = _committed(tables, table, base_id, publish_id)
        if committed is None:
            raise _refusal(tables, table, base_id, wanted, error) from error
    else:
        failpoint(Failpoint.AFTER_COMMIT, table.key)
        committed = _committed(tables, table, base_id, publish_id)
    if committed is None:
        reason = "main was set back over what was just published"
        raise PublishConflictError(table.key, reason, "The load looks at the table again")
    snapshot_id, parent_id = committed
    _require_base_files(tables, table, base_id, wanted, parent_id, old)
    return Publication(snapshot_id, parent_id, files)


def _require_base_files(
    tables: JavaTables, table: Table, base_id: int, wanted: Collection[Slice], parent_id: int, old: Mapping[str, Any]
) -> None:
    """Raise where the commit's own slices lost files between base and parent: their files are not what was staged.

    Iceberg refuses files that others added there, and the removal of files that it deletes itself; that others joined or
    removed files beside those it adds, it lets pass. The rows are right then, the account of them is not.
    """
    if parent_id == base_id:
        return
    before = tables.files(_load(tables, table), parent_id, wanted)
    if before.keys() != old.keys():
        reason = "another process compacted or removed its files during the publish"
        raise PublishConflictError(table.key, reason, "The load looks at the table again")


def _refusal(tables: JavaTables, table: Table, base_id: int, wanted: Collection[Slice], error: Exception) -> Exception:
    subject = f"{table.key} {', '.join(sorted(map(str, wanted))[:3])}"
    if not is_conflict(error):
        return failure(subject, error) or error
    winners = {
        commit.run_id or f"snapshot {commit.snapshot_id}, not written by Tidemark"
        for commit in tables.commits(_load(tables, table), base_id)
        if commit.slices & set(wanted)
    }
    who = f"run {', '.join(sorted(winners))}" if winners else "another writer"
    return PublishConflictError(
        subject,
        f"{who} changed it since it was read",
        "Nothing was published; the load rebuilds it from fresh inputs",
    )


def _committed(tables: JavaTables, table: Table, base_id: int, publish_id: str) -> tuple[int, int] | None:
    """Snapshot and parent of a publish, None where main's history since its base does not hold it."""
    java = _load(tables, table)
    snapshot = java.currentSnapshot()
    while snapshot is not None and snapshot.snapshotId() != base_id:
        parent = snapshot.parentId()
        if snapshot.summary().get(PUBLISH_PROPERTY) == publish_id:
            return int(snapshot.snapshotId()), int(parent)
        snapshot = java.snapshot(parent) if parent is not None else None
    return None


def _load(tables: JavaTables, table: Table) -> Any:
    return again(lambda: tables.load(table))
