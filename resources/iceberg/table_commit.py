"""One commit that changes slices of one table, for catalogs without a transaction over several tables."""

from __future__ import annotations

import hashlib

from pipeline_assets.domain.errors import PublishConflictError
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import FAILURES
from resources.iceberg.metadata import JavaTables
from resources.iceberg.slice_change import (
    PUBLISH_PROPERTY,
    Published,
    SliceChange,
    load,
    nothing_to_swap,
    refusal,
    require_base_files,
    row_delta,
)


def commit_change(
    tables: JavaTables, change: SliceChange, name: str, run_id: str, *, branch: str | None = None
) -> Published:
    """Commit a change to main or to an existing branch; `name` distinguishes it from other commits of the run.

    Raises SliceConflictError, with nothing published, when main changed in one of the slices since the base.
    """
    java = load(tables, change.table)
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
        committed = _committed(tables, change, publish_id, branch)
        if committed is None:
            raise refusal(tables, change, error) from error
    else:
        if branch is None:
            failpoint(Failpoint.AFTER_COMMIT, change.table.key)
        committed = _committed(tables, change, publish_id, branch)
    if committed is None:
        reason = "main was set back over what was just published"
        raise PublishConflictError(change.table.key, reason, "The load looks at the table again")
    snapshot_id, parent_id = committed
    require_base_files(tables, change, parent_id)
    return Published(snapshot_id, parent_id, change.files_by_slice)


def _committed(tables: JavaTables, change: SliceChange, publish_id: str, branch: str | None) -> tuple[int, int] | None:
    """Snapshot and parent of a commit; None where the history since its base does not contain it."""
    java = load(tables, change.table)
    snapshot = java.currentSnapshot() if branch is None else java.snapshot(branch)
    while snapshot is not None and snapshot.snapshotId() != change.base_id:
        parent = snapshot.parentId()
        if snapshot.summary().get(PUBLISH_PROPERTY) == publish_id:
            return int(snapshot.snapshotId()), int(parent)
        snapshot = java.snapshot(parent) if parent is not None else None
    return None
