"""A prepared change of one table, whose snapshot and metadata are written, and the SQL catalog's pointers that then show it.

tests/spark/test_iceberg_api.py pins the API that applies a change without a commit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, make_url

from pipeline_assets.domain.errors import PublishConflictError
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


_TABLES = sa.table(
    "iceberg_tables",
    *map(
        sa.column,
        ("catalog_name", "table_namespace", "table_name", "metadata_location", "previous_metadata_location"),
    ),
)
"""As Iceberg's JdbcCatalog creates it (JdbcUtil, schema versions V0 and V1); PyIceberg's SqlCatalog has the same columns."""


def lock_pointers(connection: Connection, catalog: str, tables: Collection[Table]) -> dict[str, str]:
    """Return table -> metadata file of its pointer; no other process changes these rows until the transaction ends.

    A writing transaction of SQLite locks the whole database. PostgreSQL locks the rows, always in the same order.
    """
    if not tables:
        return {}
    keys = {_name(table): table.key for table in tables}
    columns = (_TABLES.c.table_namespace, _TABLES.c.table_name, _TABLES.c.metadata_location)
    query = sa.select(*columns).where(
        _TABLES.c.catalog_name == catalog,
        sa.tuple_(_TABLES.c.table_namespace, _TABLES.c.table_name).in_(sorted(keys)),
    )
    if connection.dialect.name == "postgresql":
        query = query.with_for_update()
    rows = connection.execute(query.order_by(_TABLES.c.table_namespace, _TABLES.c.table_name))
    return {keys[namespace, name]: str(location) for namespace, name, location in rows}


def swap_pointers(connection: Connection, catalog: str, prepared: Sequence[Prepared]) -> None:
    """Point each table at its prepared metadata; raises PublishConflictError where a pointer has moved since."""
    for one in prepared:
        if not one.is_written:
            continue
        namespace, name = _name(one.table)
        statement = (
            sa.update(_TABLES)
            .where(
                _TABLES.c.catalog_name == catalog,
                _TABLES.c.table_namespace == namespace,
                _TABLES.c.table_name == name,
                _TABLES.c.metadata_location == one.before,
            )
            .values(metadata_location=one.after, previous_metadata_location=one.before)
        )
        if connection.execute(statement).rowcount != 1:
            raise PublishConflictError(
                one.table.key, "another writer moved its pointer meanwhile", "Nothing was published; load again"
            )


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


def _name(table: Table) -> tuple[str, str]:
    namespace, _, name = table.identifier.rpartition(".")
    return namespace, name
