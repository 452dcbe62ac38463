"""PostgreSQL for the catalog, the ledger and Dagster's storage."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import sql

from local_stack.environment import HOST, inherited
from local_stack.folder import StackFolder, write_for_owner
from local_stack.options import Options
from local_stack.processes import as_user
from local_stack.server import Server, StackError
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import PROJECT_ROOT

_PORT = "STACK_PORT_POSTGRES"
_SUPERUSER = _SYSTEM_USER = "postgres"
_POLICIES = PROJECT_ROOT / "deploy" / "policies"
_DATABASES = {"tidemark": ("postgresql.sql",), "dagster": ("postgresql-dagster.sql",)}
"""Database, which is also the name of its role -> scripts that create the role."""
_DEBIAN = Path("/usr/lib/postgresql")


def postgres(folder: StackFolder, options: Options) -> Server:
    """Return the server; raises UsageError where PostgreSQL is not installed, or root has no user to run it as."""
    tools = _tools()
    user = _user(folder)
    environment = {**inherited(folder), "LC_ALL": "C"}
    port = options.port(_PORT)
    return Server(
        name="postgres",
        # No socket file: every client needs a password, also on this machine.
        command=(
            str(tools / "postgres"),
            *("-D", str(folder.postgres), "-p", str(port)),
            *("-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="),
        ),
        environment=environment,
        folder=folder.root,
        ports={_PORT: port},
        is_well=lambda: _answers(folder, port),
        prepare=lambda: _make_cluster(tools, folder, user, environment),
        complete=lambda: _make_databases(folder, port),
        # SIGINT closes all connections and stops; SIGTERM would wait for every client.
        stop_signal=signal.SIGINT,
        user=user,
    )


def _tools() -> Path:
    """The program folder of Debian's newest PostgreSQL, else of the one on PATH."""
    versions = sorted(
        _DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]) if path.parts[-3].isdecimal() else 0
    )
    found = str(versions[-1]) if versions else shutil.which("initdb")
    if found is None:
        raise UsageError("PostgreSQL", "is not installed", "Install it, on Debian: apt-get install postgresql")
    return Path(found).resolve().parent


def _user(folder: StackFolder) -> str | None:
    """The user to run as: None for the caller; PostgreSQL refuses root, so root uses the package's user."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        hint = "Make that user, or run `make up` as an ordinary one"
        raise UsageError("PostgreSQL", f"refuses to run as root, and there is no user {_SYSTEM_USER}", hint) from None
    # The program itself enters the folder: `cwd` is entered before root is given up.
    entered = subprocess.run(
        ["/bin/sh", "-c", 'cd -- "$0"', str(folder.root)],
        cwd="/",
        stderr=subprocess.DEVNULL,
        check=False,
        **as_user(_SYSTEM_USER),
    )
    if entered.returncode != 0:
        reason = f"cannot be reached by the user {_SYSTEM_USER}, as whom PostgreSQL runs in place of root"
        raise UsageError(str(folder.root), reason, "Run `make up` as an ordinary user, or move the clone")
    return _SYSTEM_USER


def _make_cluster(tools: Path, folder: StackFolder, user: str | None, environment: dict[str, str]) -> None:
    """Create the cluster unless it exists; it is renamed to its final name when complete."""
    if folder.postgres.exists():
        return
    half, password = folder.root / "postgres.new", folder.root / "postgres.password"
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(mode=0o700)
    write_for_owner(password, folder.secrets()["postgres"])
    try:
        if user is not None:
            for path in (half, password):
                shutil.chown(path, user, group=user)
        words = [
            "-D",
            str(half),
            "-U",
            _SUPERUSER,
            "-A",
            "scram-sha-256",
            f"--pwfile={password}",
            "-E",
            "UTF8",
            "--no-locale",
        ]
        done = subprocess.run(
            [str(tools / "initdb"), *words],
            cwd=half,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            **as_user(user),
        )
    finally:
        password.unlink(missing_ok=True)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()[-40:])
        raise StackError("initdb", f"could not make {folder.postgres}: {said}", "Correct what it names, then: make up")
    half.replace(folder.postgres)


def _make_databases(folder: StackFolder, port: int) -> None:
    """Create missing databases and roles with the policies of a deployment."""
    for name, scripts in _DATABASES.items():
        with closing(_connection(folder, port)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is None:
                cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        # Use one transaction, so that an existing role always has its rights and password.
        with closing(_connection(folder, port, name)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
            if cursor.fetchone() is None:
                for script in scripts:
                    cursor.execute((_POLICIES / script).read_text("utf-8"))
                change = sql.SQL("ALTER ROLE {} PASSWORD {}")
                cursor.execute(change.format(sql.Identifier(name), sql.Literal(folder.secrets()[name])))


def _answers(folder: StackFolder, port: int) -> bool:
    with suppress(psycopg2.Error), closing(_connection(folder, port)):
        return True
    return False


def _connection(folder: StackFolder, port: int, database: str = "postgres") -> Any:
    return psycopg2.connect(
        host=HOST,
        port=port,
        user=_SUPERUSER,
        password=folder.secrets()["postgres"],
        dbname=database,
        connect_timeout=3,
    )
