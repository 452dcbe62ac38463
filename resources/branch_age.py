"""How long a staged branch has been there, by the table's own metadata: its name and its snapshot alone do not tell.

Lives here: that question. Put here: another sign of age. Keep out: whose branches may go (lakehouse.py,
pipeline_assets/live_runs.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from resources.iceberg import JavaTables
from resources.lakehouse_errors import FAILURES


def was_there(tables: JavaTables, java: Any, branch: str, before: datetime) -> bool:
    """Whether the branch was there at that time already; False where nothing that is kept tells."""
    limit = int(before.timestamp() * 1000)
    snapshot = java.snapshot(branch)
    is_staged = snapshot.snapshotId() not in {found for found, _ in tables.ancestry(java)}
    if is_staged and snapshot.timestampMillis() <= limit:
        return True
    # A branch at a snapshot of main may be young however old that is: nothing is staged on it yet.
    present = java.operations().current()
    if present.lastUpdatedMillis() <= limit:
        return True
    older = [entry for entry in present.previousFiles() if entry.timestampMillis() <= limit]
    if not older:
        return False
    parser = tables.java_class("org.apache.iceberg.TableMetadataParser")
    try:
        return bool(parser.read(java.io(), older[-1].file()).refs().containsKey(branch))
    except FAILURES:
        return False
