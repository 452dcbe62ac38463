"""Read and swap the pointers of Iceberg's SQL catalog, each to a metadata file, inside a transaction of ours."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, make_url

from pipeline_assets.domain.errors import PublishConflictError
from resources.iceberg.prepared import Prepared

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

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
