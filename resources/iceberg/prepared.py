"""A prepared change of one table, whose snapshot and metadata are written, and the SQL catalog's pointers that then show it.

tests/spark/test_iceberg_api.py pins the API that applies a change without a commit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, make_url

from pipeline_assets.domain.errors import PublishConflictError
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.catalog_at_rest import TABLES, are_of
from resources.iceberg.errors import FAILURES, again
from resources.iceberg.metadata import JavaTables
from resources.iceberg.slice_change import (
    Published,
    SliceChange,
    nothing_to_swap,
    refusal,
    require_base_files,
    row_delta,
)

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table


@dataclass(frozen=True)
class NextState:
    """A table after a change: its snapshot's manifests are written, its metadata only in memory, as a catalog writes the file."""

    table: Table
    published: Published
    """What main shows once the catalog has this state."""
    base: Any
    """Java TableMetadata before the change."""
    metadata: Any
    """Java TableMetadata after the change."""


@dataclass(frozen=True)
class Prepared:
    """A table after a change: its metadata file is written, though nothing points at it yet."""

    table: Table
    published: Published
    """What main shows once the catalog points at this state."""
    before: str
    """The metadata file before the change; the swap is refused unless the catalog still points at it."""
    after: str
    """The metadata file after the change; equal to `before` where there is nothing to change."""

    @property
    def is_written(self) -> bool:
        """Whether the change wrote a metadata file."""
        return self.after != self.before


class Preparing:
    """Applies changes of slices to the heads of one catalog's tables; readers see no difference."""

    def __init__(self, tables: JavaTables) -> None:
        """Change slices of these tables."""
        self._tables = tables

    def next_state(self, change: SliceChange, run_id: str) -> NextState:
        """Apply a change to main's current head; raises SliceConflictError where main changed in a slice since its base."""
        try:
            return again(lambda: self._applied(self._tables.current(change.table), change, run_id))
        except FAILURES as error:
            raise refusal(self._tables, change, error) from error

    def prepare(self, change: SliceChange, run_id: str) -> Prepared:
        """Apply a change as `next_state` does, and write its metadata file."""
        try:
            return again(lambda: self._prepared(change, run_id))
        except FAILURES as error:
            raise refusal(self._tables, change, error) from error

    def discard(self, prepared: Prepared) -> None:
        """Remove the metadata file of a change that will never be published; maintenance removes its manifests."""
        if prepared.is_written:
            # Maintenance removes the file later, as it does after a killed process.
            with suppress(*FAILURES):
                self._tables.current(prepared.table).io().deleteFile(prepared.after)

    def was_named(self, prepared: Prepared) -> bool:
        """Whether the catalog points at the prepared metadata file, or did before others moved the pointer on."""
        metadata = self._tables.current(prepared.table).operations().current()
        named = [str(metadata.metadataFileLocation()), *(str(entry.file()) for entry in metadata.previousFiles())]
        return prepared.is_written and prepared.after in named

    def _prepared(self, change: SliceChange, run_id: str) -> Prepared:
        java = self._tables.current(change.table)
        state, operations = self._applied(java, change, run_id), java.operations()
        before = after = str(state.base.metadataFileLocation())
        if not state.metadata.changes().isEmpty():
            after = str(operations.metadataFileLocation(_next_name(before)))
            parser = self._tables.java_class("org.apache.iceberg.TableMetadataParser")
            parser.write(state.metadata, operations.io().newOutputFile(after))
            failpoint(Failpoint.AFTER_APPLY, change.table.key)
        return Prepared(change.table, state.published, before, after)

    def _applied(self, java: Any, change: SliceChange, run_id: str) -> NextState:
        operations, builder = java.operations(), self._tables.java_class("org.apache.iceberg.TableMetadata")
        published = nothing_to_swap(self._tables, java, change, int(java.currentSnapshot().snapshotId()))
        if published is None:
            snapshot = row_delta(self._tables, java, change, run_id).apply()
            # `apply` refreshed from the catalog and nothing has since, so this is the metadata it was applied to.
            base = operations.current()
            published = Published(int(snapshot.snapshotId()), int(snapshot.parentId()), change.files_by_slice)
            require_base_files(self._tables, change, published.parent_id)
            metadata = builder.buildFrom(base).setBranchSnapshot(snapshot, "main")
        else:
            base = operations.current()
            metadata = builder.buildFrom(base)
        refs = base.refs()
        for branch in filter(refs.containsKey, change.branches):
            metadata = metadata.removeRef(branch)
        return NextState(change.table, published, base, metadata.build())


def _next_name(location: str) -> str:
    """Number the file as Iceberg numbers its own, so that a folder's listing is in order."""
    number = re.match(r"(\d+)-", location.rpartition("/")[2])
    return f"{int(number[1]) + 1 if number else 0:05d}-{uuid.uuid4()}.metadata.json"


def lock_pointers(connection: Connection, catalog: str, tables: Collection[Table]) -> dict[str, str]:
    """Return table -> metadata file of its pointer; no other process changes these rows until the transaction ends.

    A writing transaction of SQLite locks the whole database. PostgreSQL locks the rows, always in the same order.
    """
    if not tables:
        return {}
    keys = {table.identifier: table.key for table in tables}
    columns = (TABLES.c.table_namespace, TABLES.c.table_name, TABLES.c.metadata_location)
    query = sa.select(*columns).where(are_of(catalog, tables))
    if connection.dialect.name == "postgresql":
        query = query.with_for_update()
    rows = connection.execute(query.order_by(TABLES.c.table_namespace, TABLES.c.table_name))
    return {keys[f"{namespace}.{name}"]: str(location) for namespace, name, location in rows}


def swap_pointers(connection: Connection, catalog: str, prepared: Sequence[Prepared]) -> None:
    """Point each table at its prepared metadata; raises PublishConflictError where a pointer has moved since."""
    for one in prepared:
        if not one.is_written:
            continue
        statement = sa.update(TABLES).where(are_of(catalog, [one.table]), TABLES.c.metadata_location == one.before)
        new = {"metadata_location": one.after, "previous_metadata_location": one.before}
        if connection.execute(statement.values(new)).rowcount != 1:
            reason = "another writer moved its pointer meanwhile"
            raise PublishConflictError(one.table.key, reason, "Nothing was published; load again")


def share_a_database(ledger: str, catalog: str) -> bool:
    """Whether a connection to the ledger sees the catalog's tables, so that one transaction may write to both."""
    first, second = make_url(ledger), make_url(catalog)
    if first.get_backend_name() != second.get_backend_name():
        return False
    if first.get_backend_name() == "sqlite":
        names = [url.database for url in (first, second)]
        # Each connection has an in-memory database of its own.
        is_file = all(name and name != ":memory:" for name in names)
        return is_file and len({Path(str(name)).resolve() for name in names}) == 1
    # Another user may see other schemas, and may lack the right to write to both.
    places = {(url.host or "localhost", url.port or 5432, url.database, url.username) for url in (first, second)}
    return len(places) == 1 and schema_of(first) == schema_of(second)


def schema_of(url: URL) -> str:
    """Return the schema in which a connection creates its tables and looks for them first."""
    path = re.search(r"search_path\s*=\s*([^\s,]+)", str(url.query.get("options", "")))
    return path[1] if path else "public"
