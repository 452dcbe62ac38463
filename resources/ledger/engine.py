"""Open the ledger's database, create its tables, and begin transactions on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine, make_url

from pipeline_assets.domain.errors import NEWER_TIDEMARK, LedgerError, LedgerUnavailableError
from pipeline_assets.domain.machine import lock_holders
from pipeline_assets.domain.masking import masked, scrubbed
from pipeline_assets.domain.retry import tries
from resources.ledger.schema import METADATA, SCHEMA, SCHEMA_VERSION

Connect = Callable[[], AbstractContextManager[Connection]]
"""Opens a connection to the ledger: to read, or in a transaction."""


class Reads:
    """A part of the ledger that is only read."""

    def __init__(self, read: Connect) -> None:
        """Take `read`, which opens a connection."""
        self._read = read


class Writes:
    """A part of the ledger that is also written."""

    def __init__(self, read: Connect, write: Connect) -> None:
        """Take `read` and `write`, which open a connection, the latter in a transaction."""
        self._read, self._write = read, write


_TRIES, _FIRST_PAUSE_SECONDS = 7, 0.1
"""These retries bridge an outage of about six seconds."""

_CLIENT = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Options of libpq that detect a silently vanished server within a minute. In seconds, the last one in milliseconds."""
_LOCK_SECONDS = 300
"""Our transactions take less than a tenth of this; a process that holds a lock for longer hangs."""
_IDLE_SECONDS = 120
"""The server ends a transaction whose process stands still for this long: others, who wait for `_LOCK_SECONDS`, then go on.
Between two statements ours prepare at most the tables whose pointers moved, which takes seconds."""
_SERVER = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}
"""Session settings, in seconds: the server detects a vanished client, and ends its transaction and locks."""
_LOCKED, _FILE_LOCKED = "lock timeout", "database is locked"
_FILE_LOCK_SECONDS = 30
"""SQLite's own wait for a file that another process locks."""
_LOCK = 5_411_827_360
"""The key of our advisory lock; an arbitrary number that other users of the database are unlikely to use."""
_EARLIER_LEDGER = "Set TIDEMARK_LEDGER_URL to an empty database and measure the tables for it: tidemark attach --ledger"
OUT_OF_REACH = "the ledger is out of reach"
_AWAY = ("Connection refused", "the database system is", "terminating connection", _FILE_LOCKED, "server closed the",
         "Connection reset", "timed out", "timeout expired", "name resolution", _LOCKED)  # fmt: skip
"""Signs of a transient outage; any other failure to open the database needs an operator."""


def _begin_sqlite(connection: Connection) -> None:
    """Begin explicitly: the driver alone commits each DDL statement, and a read that turns into a write fails beside another."""
    is_writing = connection.get_execution_options().get("is_writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def _bound_session(raw: Any, _: Any) -> None:
    """Set the limits by statements, because a connection pooler in front of the server rejects connection options."""
    with raw.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        for name, seconds in _SERVER.items():
            cursor.execute(f"SET {name} = {seconds}")
        # A limit that the server, the role or the URL has stays.
        limit = "idle_in_transaction_session_timeout"
        unset = f"WHERE current_setting('{limit}') = '0'"
        cursor.execute(f"SELECT set_config('{limit}', '{_IDLE_SECONDS}s', false) {unset}")
    raw.commit()


_T = TypeVar("_T")
_VALUES_PER_STATEMENT = 500
"""SQLite accepts 32,766 values per statement (999 before 3.32), PostgreSQL 65,535; history may exceed both."""


def in_parts(values: Sequence[_T], width: int = 1) -> Iterator[Sequence[_T]]:
    """Yield a condition's values in parts that fit into one statement of every database.

    `width` is the number of statement parameters per value.
    """
    size = _VALUES_PER_STATEMENT // width
    for start in range(0, len(values), size):
        yield values[start : start + size]


def insert_into(connection: Connection, table: sa.Table) -> Any:
    """Return an insert that supports `on_conflict_…` on the connection's database."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def upsert(connection: Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows with the same columns; a row whose key is there already replaces these columns."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    insert = insert_into(connection, table)
    updates = {name: insert.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=updates), rows)


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """Open a connection; waits for a server that is away for a moment, for example during a restart."""
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


def _lock(connection: Connection) -> None:
    """Keep our other processes from writing until the transaction ends; SQLite's write transactions do so by themselves."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a write transaction that excludes other writers from its start, so what it reads stays valid."""
    with connected(engine.execution_options(is_writing=True)) as connection, connection.begin():
        _lock(connection)
        yield connection


@contextmanager
def ledger_failures(url: str) -> Iterator[None]:
    """Turn transient failures into LedgerUnavailableError."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        # Some lost connections raise only the base error.
        if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)) or error.connection_invalidated:
            raise _unavailable(url, error) from error
        raise


def _unavailable(url: str, error: sa.exc.DBAPIError) -> LedgerUnavailableError:
    if _LOCKED in str(error.orig):
        reason = f"{OUT_OF_REACH}: another process has held its lock for {_LOCK_SECONDS} s"
        hint = "Look for a hanging session in pg_stat_activity and end it; then do the same again"
        return LedgerUnavailableError(masked(url), reason, hint)
    if _FILE_LOCKED in str(error.orig):
        file = make_url(url).database or ""
        holders = ", ".join(lock_holders(Path(file)))
        reason = f"{OUT_OF_REACH}: {f'process {holders}' if holders else 'another process'} holds the lock of {file}"
        hint = "What was published stays; end that process, or wait until it ends; then do the same again"
        return LedgerUnavailableError(masked(url), reason, hint)
    reason = f"{OUT_OF_REACH}: {scrubbed(' '.join(str(error.orig).split()))[:300].rstrip('.?')}"
    return LedgerUnavailableError(masked(url), reason, "What was published stays; do the same again once it is there")


def open_engine(url: str) -> Engine:
    """Connect, and create what an empty database lacks; returns the engine; raises LedgerError, also for another schema."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg2")
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    # Check a pooled connection before use: a restart of the server may have cut it. Options of the URL win.
    told = {name: value for name, value in _CLIENT.items() if name not in parsed.query}
    options: dict[str, Any] = (
        {"connect_args": {"timeout": _FILE_LOCK_SECONDS, "isolation_level": None}}
        if is_sqlite
        else {"pool_pre_ping": True, "connect_args": told}
    )
    # Keep parameters out of error messages: they hold names and reasons that people wrote.
    engine = sa.create_engine(parsed, hide_parameters=True, **options)
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
                version = _created(connection)
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
    """Return the recorded version of the schema; None for a database without a ledger."""
    if not sa.inspect(connection).has_table(SCHEMA.name):
        return None
    version = connection.execute(sa.select(SCHEMA.c.version)).scalar()
    return None if version is None else int(version)


def _created(connection: Connection) -> int:
    """Create the tables unless another process has meanwhile; returns the version of the schema that is there."""
    version = _version(connection)
    if version is None:
        METADATA.create_all(connection)
        connection.execute(SCHEMA.insert(), {"version": SCHEMA_VERSION})
    return version or SCHEMA_VERSION
