"""The ledger's database: opened, brought to the present schema, and how a transaction begins on each kind.

Lives here: what differs between SQLite and PostgreSQL when connecting. Put here: another database. Keep out: queries
(ledger.py) and what older schemas become (ledger_migrations.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from pipeline_assets.domain.errors import LedgerError
from sqlalchemy.engine import Connection, Engine, make_url

from resources.ledger_migrations import prepare, version_of
from resources.ledger_schema import SCHEMA_VERSION


def _begin_sqlite(connection: Connection) -> None:
    """The driver left to itself commits each change of a schema; a write that starts as a read fails beside another one."""
    is_writing = connection.get_execution_options().get("is_writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that is written in from its start."""
    with engine.execution_options(is_writing=True).begin() as connection:
        yield connection


def open_engine(url: str) -> Engine:
    """Connect and migrate; raises LedgerError."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg2")
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    engine = sa.create_engine(parsed, connect_args={"timeout": 30, "isolation_level": None} if is_sqlite else {})
    if is_sqlite:
        sa.event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA journal_mode=WAL"))
        sa.event.listen(engine, "begin", _begin_sqlite)
    try:
        with engine.connect() as connection:
            version = version_of(connection)
        if version is None or version < SCHEMA_VERSION:
            with writing(engine) as connection:
                version = prepare(connection)
    except sa.exc.SQLAlchemyError as error:
        engine.dispose()
        reason = f"cannot be opened ({getattr(error, 'orig', error)})"
        raise LedgerError(
            parsed.render_as_string(), reason, "Check TIDEMARK_LEDGER_URL and TIDEMARK_CATALOG_URL"
        ) from error
    if version > SCHEMA_VERSION:
        engine.dispose()
        raise LedgerError(parsed.render_as_string(), f"has schema version {version}", "Install a newer Tidemark")
    return engine
