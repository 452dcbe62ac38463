"""Open the ledger's database, create its tables, and begin transactions on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine, RowMapping, make_url

from pipeline_assets.domain.errors import NEWER_TIDEMARK, LedgerError, LedgerUnavailableError, tries
from pipeline_assets.domain.machine import lock_holders
from pipeline_assets.domain.masking import masked, scrubbed
from resources.ledger.schema import METADATA, SCHEMA, SCHEMA_VERSION

_TRIES, _FIRST_PAUSE_SECONDS = 7, 0.1
"""These retries bridge about six seconds."""

_CLIENT = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Options of libpq that detect a vanished server within a minute; in seconds, the last one in milliseconds."""
_LOCK_SECONDS = 300
"""Ten times our longest transaction: a process that holds a lock longer hangs."""
_IDLE_SECONDS = 120
"""The server ends a transaction that is idle this long."""
_SERVER = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}
_LOCKED, _FILE_LOCKED = "lock timeout", "database is locked"
_FILE_LOCK_SECONDS = 30
_LOCK = 5_411_827_360
_EARLIER_LEDGER = "Set TIDEMARK_LEDGER_URL to an empty database and measure the tables for it: tidemark attach --ledger"
OUT_OF_REACH = "the ledger is out of reach"
_AWAY = ("Connection refused", "the database system is", "terminating connection", _FILE_LOCKED, "server closed the",
         "Connection reset", "timed out", "timeout expired", "name resolution", _LOCKED)  # fmt: skip
"""Signs of a transient outage; any other failure to open the database needs an operator."""


def _begin_sqlite(connection: Connection) -> None:
    """The driver alone commits each DDL statement, and a read that turns into a write fails beside another."""
    is_writing = connection.get_execution_options().get("is_writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def _bound_session(raw: Any, _: Any) -> None:
    """Set the limits by statements, because a connection pooler rejects connection options."""
    with raw.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        for name, seconds in _SERVER.items():
            cursor.execute(f"SET {name} = {seconds}")
        limit = "idle_in_transaction_session_timeout"
        unset = f"WHERE current_setting('{limit}') = '0'"
        cursor.execute(f"SELECT set_config('{limit}', '{_IDLE_SECONDS}s', false) {unset}")
    raw.commit()


_T = TypeVar("_T")
_VALUES_PER_STATEMENT = 500
"""SQLite accepts 32,766 values per statement (999 before 3.32), PostgreSQL 65,535."""


def in_parts(values: Sequence[_T], width: int = 1) -> Iterator[Sequence[_T]]:
    """Yield a condition's values in parts that fit into one statement of every database; `width`: parameters per value."""
    size = _VALUES_PER_STATEMENT // width
    for start in range(0, len(values), size):
        yield values[start : start + size]


def insert_into(connection: Connection, table: sa.Table) -> Any:
    """Return an insert that supports `on_conflict_…` on the connection's database."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def upsert(connection: Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows with the same columns, replacing these columns of existing keys."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    insert = insert_into(connection, table)
    updates = {name: insert.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=updates), rows)


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """Open a connection; waits for a server that is away briefly, for example during a restart."""
    for is_last in tries(_TRIES, _FIRST_PAUSE_SECONDS):
        try:
            connection = engine.connect()
        except sa.exc.OperationalError:
            if is_last:
                raise
        else:
            break
    with connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a write transaction that excludes other writers from its start, so its reads stay valid."""
    with connected(engine.execution_options(is_writing=True)) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        yield connection


@contextmanager
def ledger_failures(url: str) -> Iterator[None]:
    """Turn transient failures into LedgerUnavailableError."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)) or error.connection_invalidated:
            raise _unavailable(url, error) from error
        raise


def _unavailable(url: str, error: sa.exc.DBAPIError) -> LedgerUnavailableError:
    said = str(error.orig)
    reason, hint = (
        scrubbed(" ".join(said.split()))[:300].rstrip(".?"),
        "What was published stays; do the same again once it is there",
    )
    if _LOCKED in said:
        reason = f"another process has held its lock for {_LOCK_SECONDS} s"
        hint = "Look for a hanging session in pg_stat_activity and end it; then do the same again"
    elif _FILE_LOCKED in said:
        file = make_url(url).database or ""
        holders = ", ".join(lock_holders(Path(file)))
        reason = f"{f'process {holders}' if holders else 'another process'} holds the lock of {file}"
        hint = "What was published stays; end that process, or wait until it ends; then do the same again"
    return LedgerUnavailableError(masked(url), f"{OUT_OF_REACH}: {reason}", hint)


def open_engine(url: str) -> Engine:
    """Return the engine, with its tables created in an empty database; raises LedgerError, also for another schema."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg2")
    is_sqlite = parsed.get_backend_name() == "sqlite"
    if is_sqlite and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    options = {"timeout": _FILE_LOCK_SECONDS, "isolation_level": None} if is_sqlite else _CLIENT
    # Options of the URL win. Errors show no parameters, which hold names and operators' reasons. A pooled connection is
    # checked before use: a restart of the server may have cut it.
    given = {name: value for name, value in options.items() if name not in parsed.query}
    engine = sa.create_engine(parsed, hide_parameters=True, pool_pre_ping=not is_sqlite, connect_args=given)
    if is_sqlite:
        sa.event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA journal_mode=WAL"))
        sa.event.listen(engine, "begin", _begin_sqlite)
    else:
        sa.event.listen(engine, "connect", _bound_session)
    try:
        with connected(engine) as connection:
            version = _version(connection)
        if version is None:
            with writing(engine) as connection:
                version = _version(connection)
                if version is None:
                    METADATA.create_all(connection)
                    version = SCHEMA_VERSION
                    connection.execute(SCHEMA.insert(), {"version": version})
    except sa.exc.SQLAlchemyError as error:
        engine.dispose()
        if isinstance(error, sa.exc.DBAPIError) and any(sign in str(error) for sign in _AWAY):
            raise _unavailable(url, error) from error
        reason = f"cannot be opened ({' '.join(str(getattr(error, 'orig', error)).split())})"
        raise LedgerError(masked(url), reason, "Check TIDEMARK_LEDGER_URL and TIDEMARK_CATALOG_URL") from error
    if version != SCHEMA_VERSION:
        engine.dispose()
        age, remedy = ("a newer", NEWER_TIDEMARK) if version > SCHEMA_VERSION else ("an earlier", _EARLIER_LEDGER)
        reason = f"was written by {age} Tidemark (schema {version}; this one knows {SCHEMA_VERSION}), and nothing was touched"
        raise LedgerError(masked(url), reason, remedy)
    return engine


def _version(connection: Connection) -> int | None:
    is_there = sa.inspect(connection).has_table(SCHEMA.name)
    return connection.execute(sa.select(SCHEMA.c.version)).scalar() if is_there else None


class Database:
    """The ledger's database, opened and created on first use; methods raise LedgerError."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The open engine."""
        if self._engine is None:
            self._engine = open_engine(self.url)
        return self._engine

    def close(self) -> None:
        """Release all connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection to read."""
        with ledger_failures(self.url), connected(self.engine) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open an exclusive write transaction; raises LedgerUnavailableError also where its commit's outcome is unknown."""
        with ledger_failures(self.url), writing(self.engine) as connection:
            yield connection


class Part:
    """A part of the ledger: reads and writes of one kind of record; each write is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database, self.url = database, database.url
        self._read, self._write = database.read, database.write

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with self._read() as connection:
            return connection.execute(query).all()

    def _maps(self, query: sa.Select[Any]) -> Iterator[RowMapping]:
        with self._read() as connection:
            yield from connection.execute(query).mappings()

    def _value(self, query: sa.Select[Any]) -> Any:
        with self._read() as connection:
            return connection.execute(query).scalar()

    def _do(self, statement: sa.Executable) -> int:
        with self._write() as connection:
            return int(connection.execute(statement).rowcount)
