"""Bring a ledger's SQL schema to the present version.

Contains: one function per step between versions.
Add here: the step a change of schema.py needs.
Does not contain: the schema itself (schema.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from resources.ledger.schema import DELIVERIES, EXCLUSIONS, HOLDS, METADATA, PUBLICATIONS, SCHEMA, SCHEMA_VERSION

_LOCK = 5_411_827_360
"""Any number that other users of the database do not take for an advisory lock."""


def lock(connection: Connection) -> None:
    """Let no other process of ours write until the transaction ends; SQLite's transactions that write do so by themselves."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


def prepare(connection: Connection) -> int:
    """Create what is missing, migrate what is older; returns the version found, the present one for a new ledger.

    Expects a transaction that no other process can write beside: SQLite's is, PostgreSQL is asked for a lock of ours.
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
    """The recorded version; None for a database without a ledger."""
    if not sa.inspect(connection).has_table(SCHEMA.name):
        return None
    version = connection.execute(sa.select(SCHEMA.c.version)).scalar()
    return None if version is None else int(version)


def _refused_beside_accepted(connection: Connection) -> None:
    """A refused version no longer hides the accepted one, so `is_accepted` joins the key of `deliveries`."""
    # Read and written back, because no one statement changes a primary key in both SQLite and PostgreSQL.
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
    """A snapshot that main is set back to is another publication of its slices, so the parent joins their key."""
    old = f"{PUBLICATIONS.name}_2"
    connection.execute(sa.text(f"ALTER TABLE {PUBLICATIONS.name} RENAME TO {old}"))
    PUBLICATIONS.create(connection)
    kept = {column["name"] for column in sa.inspect(connection).get_columns(old)}
    columns = ", ".join(column.name for column in PUBLICATIONS.columns if column.name in kept)
    connection.execute(sa.text(f"INSERT INTO {PUBLICATIONS.name} ({columns}) SELECT {columns} FROM {old}"))
    connection.execute(sa.text(f"DROP TABLE {old}"))
    if connection.dialect.name == "postgresql":
        # Numbers that were written do not move the sequence that new ones are drawn from.
        sequence = sa.func.pg_get_serial_sequence(PUBLICATIONS.name, "id")
        last = sa.select(sa.func.coalesce(sa.func.max(PUBLICATIONS.c.id), 0) + 1).scalar_subquery()
        connection.execute(sa.select(sa.func.setval(sequence, last, False)))


def _decisions_on_record(connection: Connection) -> None:
    """An exclusion names its batch and bytes (nothing had written any before); a hold stays on record when it is released."""
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
    """Columns that may be null are added to the tables that lack them; whole tables are created with the others."""
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
    """Indexes are added to the tables that lack them."""
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
}
