"""A private PostgreSQL cluster for tests, run by an ordinary user because `initdb` refuses root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import a_free_port

PASSWORD = "t/de:m@rk %1"
"""Awkward in a URL."""


@dataclass(frozen=True)
class Server:
    """A running cluster; fast rather than crash-safe."""

    folder: Path
    tools: Path
    port: int
    as_user: Sequence[str]
    superuser: str = "tidemark"

    @property
    def url(self) -> str:
        return self._url("postgres")

    def database(self, name: str) -> str:
        """URL of a new, empty database."""
        self._run("createdb", "-h", str(self.folder), "-p", str(self.port), "-U", self.superuser, name)
        return self._url(name)

    def copy_database(self, name: str, copy: str) -> None:
        """A new database with another one's content; cuts connections to that one."""
        words = ("-h", str(self.folder), "-p", str(self.port), "-U", self.superuser)
        cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        self._run("psql", *words, "-d", "postgres", "-c", cut)
        self._run("createdb", *words, "-T", name, copy)

    def drop_database(self, name: str) -> None:
        """Remove a database, if it exists, with all connections."""
        words = ("--force", "--if-exists", name)
        self._run("dropdb", "-h", str(self.folder), "-p", str(self.port), "-U", self.superuser, *words)

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-w", "-D", f"{self.folder}/db", "-o", options, "-l", f"{self.folder}/log", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-w", "-D", f"{self.folder}/db", "-m", "fast", "stop")

    def start_again(self) -> None:
        asked = [*self.as_user, str(self.tools / "pg_ctl"), "-D", f"{self.folder}/db", "status"]
        if subprocess.run(asked, check=False, capture_output=True, cwd="/").returncode:
            self.start()

    def _url(self, database: str) -> str:
        return f"postgresql://{self.superuser}:{urllib.parse.quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/{database}"

    def _run(self, tool: str, *words: str) -> None:
        subprocess.run([*self.as_user, str(self.tools / tool), *words], check=True, capture_output=True, cwd="/")


@contextmanager
def a_postgres(superuser: str = "tidemark") -> Iterator[Server]:
    """A cluster below /tmp, which its user can reach; skips with the cure where PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed: on Debian, apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="tidemark-pg-", dir="/tmp"))
    password = folder / "password"
    password.write_text(PASSWORD)
    as_user: Sequence[str] = ()
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
        shutil.chown(password, "postgres")
        as_user = ("runuser", "-u", "postgres", "--")
    port = a_free_port()
    server = Server(folder, found[-1].parent, port, as_user, superuser)
    ways_in = ("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={password}")
    server._run("initdb", "-D", f"{folder}/db", "-U", superuser, *ways_in, "-E", "UTF8")
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
