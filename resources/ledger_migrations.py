"""Bring a ledger's SQL schema to the present version.

Lives here: one function per step between versions. Put here: the step a change of ledger_records.py needs. Keep out: the
schema itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from resources.ledger_schema import DELIVERIES, METADATA, SCHEMA, SCHEMA_VERSION

_LOCK = 5_411_827_360
"""Any number that other users of the database do not take for an advisory lock."""


def prepare(connection: Connection) -> int:
    """Create what is missing, migrate what is older; returns the version found, the present one for a new ledger.

    Expects a transaction that no other process can write beside: SQLite's is, PostgreSQL is asked for a lock of ours.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
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
    found = connection.execute(sa.select(SCHEMA.c.version)).scalar()
    return None if found is None else int(found)


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


_STEPS: Mapping[int, Callable[[Connection], None]] = {1: _refused_beside_accepted}
