"""Migrate a ledger's SQL schema to the current version.

Contains: the migration of each version to the next.
Add here: the step that a change of schema.py needs.
Does not contain: the schema itself (schema.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from resources.ledger.schema import DELIVERIES, EXCLUSIONS, HOLDS, METADATA, PUBLICATIONS, SCHEMA, SCHEMA_VERSION

_LOCK = 5_411_827_360
"""The key of our advisory lock; an arbitrary number that other users of the database are unlikely to use."""


def lock(connection: Connection) -> None:
    """Keep our other processes from writing until the transaction ends; SQLite's write transactions do so by themselves."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


def prepare(connection: Connection) -> int:
    """Create missing tables and migrate older ones; returns the resulting version, which is higher for a newer ledger.

    Expects a write transaction. SQLite's excludes other writers; on PostgreSQL this takes our advisory lock.
    """
    lock(connection)
    version = version_of(connection)
    if version is not None and version > SCHEMA_VERSION:
        return version
    for step in range(version or SCHEMA_VERSION, SCHEMA_VERSION):
        _STEPS[step](connection)
    METADATA.create_all(connection)
    if version is None:
        connection.execute(SCHEMA.insert(), {"version": SCHEMA_VERSION})
    elif version < SCHEMA_VERSION:
        connection.execute(SCHEMA.update().values(version=SCHEMA_VERSION))
    return SCHEMA_VERSION


def version_of(connection: Connection) -> int | None:
    """Return the recorded version; None for a database without a ledger."""
    if not sa.inspect(connection).has_table(SCHEMA.name):
        return None
    version = connection.execute(sa.select(SCHEMA.c.version)).scalar()
    return None if version is None else int(version)


def _refused_beside_accepted(connection: Connection) -> None:
    """Add `is_accepted` to the key of `deliveries`, so that a refused version no longer hides the accepted one."""
    # Copy the rows, because no single statement changes a primary key in both SQLite and PostgreSQL.
    rows = [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {DELIVERIES.name}")).mappings()]
    connection.execute(sa.text(f"DROP TABLE {DELIVERIES.name}"))
    DELIVERIES.create(connection)
    if rows:
        statement = sa.text(
            f"INSERT INTO {DELIVERIES.name} ({', '.join(rows[0])}) VALUES ({', '.join(f':{name}' for name in rows[0])})"
        )
        connection.execute(statement, rows)
    connection.execute(sa.text("ALTER TABLE tidemark_batch_days ADD COLUMN lineage VARCHAR"))


def _publications_by_parent(connection: Connection) -> None:
    """Add the parent to the key of `publications`: setting main back to a snapshot publishes its slices again."""
    old = f"{PUBLICATIONS.name}_2"
    connection.execute(sa.text(f"ALTER TABLE {PUBLICATIONS.name} RENAME TO {old}"))
    PUBLICATIONS.create(connection)
    kept = {column["name"] for column in sa.inspect(connection).get_columns(old)}
    columns = ", ".join(column.name for column in PUBLICATIONS.columns if column.name in kept)
    connection.execute(sa.text(f"INSERT INTO {PUBLICATIONS.name} ({columns}) SELECT {columns} FROM {old}"))
    connection.execute(sa.text(f"DROP TABLE {old}"))
    if connection.dialect.name == "postgresql":
        # Inserting explicit ids does not advance the sequence.
        sequence = sa.func.pg_get_serial_sequence(PUBLICATIONS.name, "id")
        last = sa.select(sa.func.coalesce(sa.func.max(PUBLICATIONS.c.id), 0) + 1).scalar_subquery()
        connection.execute(sa.select(sa.func.setval(sequence, last, False)))


def _decisions_on_record(connection: Connection) -> None:
    """Recreate `exclusions`, which nothing wrote before, with batch and bytes, and `holds`, which now keeps released holds."""
    connection.execute(sa.text(f"DROP TABLE IF EXISTS {EXCLUSIONS.name}"))
    rows = [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {HOLDS.name}")).mappings()]
    connection.execute(sa.text(f"DROP TABLE {HOLDS.name}"))
    HOLDS.create(connection)
    if rows:
        names, values = ", ".join(rows[0]), ", ".join(f":{name}" for name in rows[0])
        connection.execute(sa.text(f"INSERT INTO {HOLDS.name} ({names}) VALUES ({values})"), rows)
    if "figures" not in {column["name"] for column in sa.inspect(connection).get_columns(PUBLICATIONS.name)}:
        connection.execute(sa.text(f"ALTER TABLE {PUBLICATIONS.name} ADD COLUMN figures JSON"))


def _missing_columns(connection: Connection) -> None:
    """Add missing nullable columns to existing tables; missing tables are created with the others."""
    inspector = sa.inspect(connection)
    for table in METADATA.sorted_tables:
        if not inspector.has_table(table.name):
            continue
        present = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in present:
                kind = column.type.compile(connection.dialect)
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))


def _missing_indexes(connection: Connection) -> None:
    """Add missing indexes to existing tables."""
    inspector = sa.inspect(connection)
    for table in METADATA.sorted_tables:
        if inspector.has_table(table.name):
            for index in table.indexes:
                index.create(connection, checkfirst=True)


_STEPS: Mapping[int, Callable[[Connection], None]] = {
    1: _refused_beside_accepted,
    2: _publications_by_parent,
    3: _decisions_on_record,
    4: _missing_columns,
    5: _missing_columns,
    6: _missing_columns,
    7: _missing_columns,
    8: _missing_columns,
    9: _missing_indexes,
    10: _missing_columns,
    11: _missing_columns,
}
