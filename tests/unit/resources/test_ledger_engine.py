"""Opening the ledger's database: transient failures differ from those for an operator."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain import machine
from pipeline_assets.domain.errors import LedgerError, LedgerUnavailableError
from resources.ledger import engine
from resources.ledger.engine import ledger_failures, open_engine, writing
from resources.ledger.schema import METADATA, SCHEMA_VERSION
from resources.ledger.store import Ledger


@pytest.fixture
def hangs_up() -> Iterator[int]:
    """Port of a server that cuts every connection, as a proxy does before a restarting database."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=accept)
    thread.start()
    yield listener.getsockname()[1]
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_database_that_hangs_up_may_come_back(hangs_up: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a connection is cut. Outcome: a failure that a run retries, without the password."""
    monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 0.0)
    with pytest.raises(LedgerUnavailableError, match="the ledger is out of reach") as failed:
        open_engine(f"postgresql://tidemark:geheim@127.0.0.1:{hangs_up}/lake")
    assert "geheim" not in str(failed.value)


def test_a_connection_that_ends_without_a_kind_may_come_back() -> None:
    """Outcome: a connection's end without a kind is retried; another error passes unchanged."""
    cut = Exception("SSL SYSCALL error: EOF detected")
    ended = sa.exc.DatabaseError("COMMIT", {}, cut, connection_invalidated=True)
    with pytest.raises(LedgerUnavailableError, match="EOF detected"), ledger_failures("postgresql://db/lake"):
        raise ended
    with pytest.raises(sa.exc.DataError), ledger_failures("postgresql://db/lake"):
        raise sa.exc.DataError("INSERT", {}, Exception("too long"))


def test_a_session_that_hangs_holds_nobody_for_ever(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: a waiting writer gives up after the bound and says why; both ends probe each connection by default."""
    monkeypatch.setattr(engine, "_LOCK_SECONDS", 1)
    hanging, waiting = open_engine(postgres), open_engine(f"{postgres}?connect_timeout=77")
    with writing(hanging) as held:
        bounds = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "lock_timeout")
        assert [held.execute(sa.text(f"SHOW {name}")).scalar() for name in bounds] == ["30", "10", "3", "1s"]
        told = held.connection.dbapi_connection.get_dsn_parameters()  # type: ignore[union-attr]
        assert told.items() >= {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "60000"}.items()
        expected = "another process has held its lock for 1 s"
        with pytest.raises(LedgerUnavailableError, match=expected), ledger_failures(postgres), writing(waiting):
            pass
    with closing(waiting.raw_connection()) as free:
        assert free.dbapi_connection.get_dsn_parameters()["connect_timeout"] == "77"  # type: ignore[union-attr]
    for one in (hanging, waiting):
        one.dispose()


_FILE_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE of_another (n INT)")
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("mode", ["PRAGMA journal_mode=WAL", "PRAGMA locking_mode=EXCLUSIVE"])
@pytest.mark.parametrize("is_known", [True, False], ids=["the system tells it", "it tells none"])
def test_a_file_that_another_process_locks_is_told_with_that_process(
    mode: str, is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: the locking process is named by number where the system knows it, with the file and the cure."""
    file = tmp_path / "ledger.db"
    url = f"sqlite:///{file}"
    open_engine(url).dispose()
    monkeypatch.setattr(engine, "_FILE_LOCK_SECONDS", 0.1)
    monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 0.0)
    if not is_known:
        monkeypatch.setattr(machine, "_LOCKS", tmp_path / "none")
    command = [sys.executable, "-c", _FILE_HOLDER, str(file), mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        with pytest.raises(LedgerUnavailableError) as failed, ledger_failures(url), writing(open_engine(url)):
            pass
        holder.kill()
    who = rf"process {holder.pid} \(python[0-9.]*\)" if is_known else "another process"
    assert re.search(rf"the ledger is out of reach: {who} holds the lock of {file}\. ", str(failed.value))
    assert "end that process" in str(failed.value)


_HOLDER = """
import sys
import sqlalchemy as sa
from resources.ledger import engine
engine._IDLE_SECONDS = 1
url = sys.argv[1]
with engine.ledger_failures(url), engine.writing(engine.open_engine(url)) as connection:
    connection.execute(sa.text("CREATE TABLE half_a_publish (n INT)"))
    print("holds", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_stands_still_in_its_transaction_holds_it_for_a_while_and_writes_nothing(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a process is paused inside a write transaction; another wants to write.
    Outcome: the server ends it after our limit (or its own, the role's, the URL's), and the paused one reports its loss."""
    command = [sys.executable, "-c", _HOLDER, postgres]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    monkeypatch.setattr(engine, "_LOCK_SECONDS", 20)
    others = open_engine(f"{postgres}?options=-cidle_in_transaction_session_timeout%3D77s")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        holder.send_signal(signal.SIGSTOP)
        with writing(others) as connection:
            assert connection.execute(sa.text("SHOW idle_in_transaction_session_timeout")).scalar() == "77s"
        holder.send_signal(signal.SIGCONT)
        _, told = holder.communicate("", timeout=60)
    finally:
        holder.kill()
    assert "LedgerUnavailableError" in told
    assert "What was published stays; do the same again" in told
    assert not sa.inspect(others).has_table("half_a_publish")
    others.dispose()


Rows = dict[str, list[str]]
"""Table -> its rows as text, in any order."""


@pytest.fixture
def url(any_ledger: Ledger) -> str:
    return any_ledger.url.replace("postgresql:", "postgresql+psycopg2:")


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    """A transaction beside the ledger's own."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def rows_of(url: str) -> Rows:
    with connected(url) as connection:
        names = sa.inspect(connection).get_table_names()
        found = {name: connection.exec_driver_sql(f"SELECT * FROM {name}").mappings().all() for name in names}
    return {name: sorted(repr(sorted(row.items())) for row in rows) for name, rows in found.items()}


def open_ledger(url: str) -> None:
    """Open it as the first question does."""
    with closing(Ledger(url)) as ledger:
        assert ledger.engine


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_before_write(number: int) -> Iterator[None]:
    """The process ends before its k-th writing statement."""
    left = number

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal left
        if statement.lstrip().startswith(("CREATE", "INSERT")):
            left -= 1
            if left < 0:
                raise Killed

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)


def test_a_ledger_whose_creation_is_killed_is_created_by_the_next_process(url: str) -> None:
    """Outcome: a death before the k-th statement leaves nothing, and the next process makes all of it."""
    for number in (0, 1, 5, len(METADATA.sorted_tables)):
        with pytest.raises(Killed), killed_before_write(number):
            open_ledger(url)
        assert rows_of(url) == {}
    open_ledger(url)
    assert rows_of(url).keys() == METADATA.tables.keys()
    with connected(url) as connection:
        assert connection.exec_driver_sql("SELECT version FROM tidemark_schema").all() == [(SCHEMA_VERSION,)]


@pytest.mark.parametrize(
    ("step", "age", "remedy"),
    [(1, "a newer", "pip install --upgrade tidemark-pipeline"), (-1, "an earlier", "tidemark attach --ledger")],
)
def test_a_ledger_of_another_schema_is_refused_and_left_alone(url: str, step: int, age: str, remedy: str) -> None:
    open_ledger(url)
    with connected(url) as connection:
        connection.exec_driver_sql(f"UPDATE tidemark_schema SET version = {SCHEMA_VERSION + step}")
        connection.exec_driver_sql("DROP TABLE tidemark_holds")
    before = rows_of(url)
    with pytest.raises(LedgerError) as refusal:
        open_ledger(url)
    assert refusal.value.subject == sa.make_url(url).render_as_string(hide_password=True)
    versions = f"(schema {SCHEMA_VERSION + step}; this one knows {SCHEMA_VERSION})"
    assert refusal.value.reason == f"was written by {age} Tidemark {versions}, and nothing was touched"
    assert remedy in refusal.value.hint
    assert rows_of(url) == before
