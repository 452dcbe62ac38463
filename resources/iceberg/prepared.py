"""A prepared change of one table: its snapshot and metadata are written, and no catalog points at them yet.

tests/spark/test_iceberg_api.py pins the API that applies a change without a commit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.slices import Slice
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import FAILURES, again
from resources.iceberg.metadata import JavaTables, SliceFiles
from resources.iceberg.slice_change import (
    Published,
    SliceChange,
    load,
    nothing_to_swap,
    refusal,
    require_base_files,
    row_delta,
)

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

MAIN = "main"


@dataclass(frozen=True)
class Applied:
    """One table after a change; the manifests of its snapshot are written."""

    table: Table
    snapshot_id: int
    parent_id: int
    """Main's head that the snapshot follows."""
    files: Mapping[Slice, SliceFiles]
    """The live files of every slice that the change covers."""

    @property
    def is_empty(self) -> bool:
        """Whether main keeps its snapshot."""
        return self.snapshot_id == self.parent_id

    @property
    def published(self) -> Published:
        """What main shows once a catalog points at this state."""
        return Published(self.snapshot_id, self.parent_id, self.files, is_empty=self.is_empty)


@dataclass(frozen=True)
class NextState(Applied):
    """A state whose metadata is only in memory: the catalog writes the file."""

    base: Any
    """Java TableMetadata before the change."""
    metadata: Any
    """Java TableMetadata after the change."""


@dataclass(frozen=True)
class Prepared(Applied):
    """A state whose metadata file is written, though nothing points at it yet."""

    before: str
    """The metadata file before the change; the swap is refused unless the catalog still points at it."""
    after: str
    """The metadata file after the change; equal to `before` where there is nothing to change."""

    @property
    def is_written(self) -> bool:
        """Whether the change wrote a metadata file."""
        return self.after != self.before


def next_state(tables: JavaTables, change: SliceChange, run_id: str) -> NextState:
    """Apply a change to main's current head; readers see no difference.

    Raises SliceConflictError where main changed in one of the slices since the change's base.
    """
    try:
        return again(lambda: _applied(tables, load(tables, change.table), change, run_id))
    except FAILURES as error:
        raise refusal(tables, change, error) from error


def prepare(tables: JavaTables, change: SliceChange, run_id: str) -> Prepared:
    """Apply a change to main's current head as `next_state` does, and write its metadata file."""
    try:
        return again(lambda: _prepared(tables, change, run_id))
    except FAILURES as error:
        raise refusal(tables, change, error) from error


def discard(tables: JavaTables, prepared: Prepared) -> None:
    """Remove the metadata file of a change that will never be published; maintenance removes its manifests."""
    if not prepared.is_written:
        return
    # Maintenance removes the file later, as it does after a killed process.
    with suppress(*FAILURES):
        load(tables, prepared.table).io().deleteFile(prepared.after)


def was_named(tables: JavaTables, prepared: Prepared) -> bool:
    """Whether the catalog points at the prepared metadata file, or did before others moved the pointer on."""
    metadata = load(tables, prepared.table).operations().current()
    named = [str(metadata.metadataFileLocation()), *(str(entry.file()) for entry in metadata.previousFiles())]
    return prepared.is_written and prepared.after in named


def _prepared(tables: JavaTables, change: SliceChange, run_id: str) -> Prepared:
    java = load(tables, change.table)
    state = _applied(tables, java, change, run_id)
    operations = java.operations()
    before = str(state.base.metadataFileLocation())
    if state.metadata.changes().isEmpty():
        return Prepared(change.table, state.snapshot_id, state.parent_id, state.files, before, before)
    after = str(operations.metadataFileLocation(_next_name(before)))
    parser = tables.java_class("org.apache.iceberg.TableMetadataParser")
    parser.write(state.metadata, operations.io().newOutputFile(after))
    failpoint(Failpoint.AFTER_APPLY, change.table.key)
    return Prepared(change.table, state.snapshot_id, state.parent_id, state.files, before, after)


def _applied(tables: JavaTables, java: Any, change: SliceChange, run_id: str) -> NextState:
    operations = java.operations()
    standing = nothing_to_swap(tables, java, change, int(java.currentSnapshot().snapshotId()))
    if standing is None:
        snapshot = row_delta(tables, java, change, run_id).apply()
        # `apply` refreshed from the catalog and nothing has since, so this is the metadata it was applied to.
        base = operations.current()
        parent_id = int(snapshot.parentId())
        require_base_files(tables, change, parent_id)
        metadata = _builder(tables, base).setBranchSnapshot(snapshot, MAIN)
        snapshot_id = int(snapshot.snapshotId())
    else:
        base = operations.current()
        metadata = _builder(tables, base)
        snapshot_id = parent_id = standing.snapshot_id
    refs = base.refs()
    for branch in change.branches:
        if refs.containsKey(branch):
            metadata = metadata.removeRef(branch)
    return NextState(change.table, snapshot_id, parent_id, change.files_by_slice, base, metadata.build())


def _builder(tables: JavaTables, base: Any) -> Any:
    return tables.java_class("org.apache.iceberg.TableMetadata").buildFrom(base)


def _next_name(location: str) -> str:
    """Number the file as Iceberg numbers its own, so that a folder's listing is in order."""
    number = re.match(r"(\d+)-", location.rpartition("/")[2])
    return f"{int(number[1]) + 1 if number else 0:05d}-{uuid.uuid4()}.metadata.json"
