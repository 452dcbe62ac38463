"""The ledger's database: opened, brought to the present schema, and how a transaction begins on each kind.

Contains: what differs between SQLite and PostgreSQL when connecting.
Add here: another database.
Does not contain: queries (store.py) and what older schemas become (migrations.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine, make_url

from pipeline_assets.domain.commands import NEWER_TIDEMARK
from pipeline_assets.domain.errors import LedgerError, LedgerUnavailableError
from pipeline_assets.domain.masking import masked, scrubbed
from pipeline_assets.domain.retry import tries
from resources.ledger.migrations import lock, prepare, version_of
from resources.ledger.schema import SCHEMA_VERSION

_TRIES, _FIRST_PAUSE_SECONDS = 7, 0.1
"""A server may be away for about six seconds."""

_CLIENT = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""For libpq: a server that vanished without a word is noticed within a minute. Seconds, the last one milliseconds."""
_LOCK_SECONDS = 300
"""No transaction of ours takes a tenth of that; whoever holds a lock for longer hangs."""
_SERVER = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}
"""For the session: so does the server of a client, and ends its transaction with its locks. Seconds."""
_LOCKED = "lock timeout"
OUT_OF_REACH = "the ledger is out of reach"
_AWAY = ("Connection refused", "the database system is", "terminating connection", "database is locked", "server closed the",
         "Connection reset", "timed out", "timeout expired", "name resolution", _LOCKED)  # fmt: skip
"""Signs of a database that time may bring back; any other failure to open one is for a person."""


def _begin_sqlite(connection: Connection) -> None:
    """The driver left to itself commits each change of a schema; a write that starts as a read fails beside another one."""
    is_writing = connection.get_execution_options().get("is_writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def _bound_session(raw: Any, _: Any) -> None:
    """Statements, because a pooler before the server takes no options with a connection."""
    with raw.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        for name, seconds in _SERVER.items():
            cursor.execute(f"SET {name} = {seconds}")
    raw.commit()


_T = TypeVar("_T")
_VALUES_PER_STATEMENT = 500
"""SQLite takes 32,766 values in one statement (999 before 3.32), PostgreSQL's protocol 65,535; history has no such bound."""


def in_parts(values: Sequence[_T], width: int = 1) -> Iterator[Sequence[_T]]:
    """Values of a condition whose number grows with history, in parts that every database takes in one statement.

    `width`: how many values of the statement each of these is.
    """
    size = _VALUES_PER_STATEMENT // width
    for start in range(0, len(values), size):
        yield values[start : start + size]


def insert_into(connection: Connection, table: sa.Table) -> Any:
    """An insert that can say what happens where the row is there already (`on_conflict_…`)."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """A connection; a server that is away for a moment, for a restart, is waited for."""
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
    """One transaction that is written in from its start, beside no other one: what it reads it may rely on."""
    with connected(engine.execution_options(is_writing=True)) as connection, connection.begin():
        lock(connection)
        yield connection


@contextmanager
def ledger_failures(url: str) -> Iterator[None]:
    """Turn failures that time may heal into ours."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        # The end of some connections is told as an error of no kind.
        if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)) or error.connection_invalidated:
            raise _unavailable(url, error) from error
        raise


def _unavailable(url: str, error: sa.exc.DBAPIError) -> LedgerUnavailableError:
    if _LOCKED in str(error.orig):
        reason = f"{OUT_OF_REACH}: another process has held its lock for {_LOCK_SECONDS} s"
        hint = "Look for a hanging session in pg_stat_activity and end it; then do the same again"
        return LedgerUnavailableError(masked(url), reason, hint)
    reason = f"{OUT_OF_REACH}: {scrubbed(' '.join(str(error.orig).split()))[:300].rstrip('.?')}"
    return LedgerUnavailableError(masked(url), reason, "What was published stays; do the same again once it is there")


def open_engine(url: str) -> Engine:
    """Connect and migrate; raises LedgerError."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg2")
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    # A pooled connection that a server's restart has cut is found out before it is used. What the URL says wins.
    told = {name: value for name, value in _CLIENT.items() if name not in parsed.query}
    options: dict[str, Any] = (
        {"connect_args": {"timeout": 30, "isolation_level": None}}
        if is_sqlite
        else {"pool_pre_ping": True, "connect_args": told}
    )
    # Parameters hold names and reasons that others wrote: an error that repeats the statement repeats none of them.
    engine = sa.create_engine(parsed, hide_parameters=True, **options)
    if is_sqlite:
        sa.event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA journal_mode=WAL"))
        sa.event.listen(engine, "begin", _begin_sqlite)
    else:
        sa.event.listen(engine, "connect", _bound_session)
    try:
        with connected(engine) as connection:
            version = version_of(connection)
        if version is None or version < SCHEMA_VERSION:
            with writing(engine) as connection:
                version = prepare(connection)
    except sa.exc.SQLAlchemyError as error:
        engine.dispose()
        if isinstance(error, sa.exc.DBAPIError) and any(sign in str(error) for sign in _AWAY):
            raise _unavailable(url, error) from error
        reason = f"cannot be opened ({' '.join(str(getattr(error, 'orig', error)).split())})"
        raise LedgerError(masked(url), reason, "Check TIDEMARK_LEDGER_URL and TIDEMARK_CATALOG_URL") from error
    if version > SCHEMA_VERSION:
        engine.dispose()
        reason = f"was written by a newer Tidemark (schema {version}; this one knows {SCHEMA_VERSION}), and nothing was touched"
        raise LedgerError(masked(url), reason, NEWER_TIDEMARK)
    return engine
