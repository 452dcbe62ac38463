"""The servers of `make up`: access, kept data, shutdown; with `--full`, a load on all of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from local_stack.__main__ import main
from local_stack.asking import ask_json
from local_stack.demo import _deliver, _digests, _listed, _store
from local_stack.environment import deployment, read_environment
from local_stack.folder import StackFolder
from local_stack.options import Options, read_options
from local_stack.processes import bearers, on_record
from local_stack.stack import stages_of
from local_stack.supervisor import Supervisor
from sample_export.objects import write_export
from sample_export.spec import ExportSpec
from tests.support.listening import heard_from_elsewhere, listening
from tests.support.ports import a_free_port

pytestmark = pytest.mark.slow

OF_ANOTHER_DEPLOYMENT = {"AWS_PROFILE": "nobody", "AWS_ENDPOINT_URL_S3": "http://192.0.2.1", "PGSSLMODE": "require"}
"""An operator's shell may hold these."""


@dataclass
class Set:
    """Servers on free ports; PostgreSQL's user can reach the folder, whose name has a blank."""

    folder: StackFolder
    ports: dict[str, str]

    @property
    def options(self) -> Options:
        return read_options(self.ports)

    def port(self, name: str) -> int:
        return self.options.port(f"STACK_PORT_{name}")

    @property
    def secrets(self) -> set[str]:
        return set(self.folder.secrets().values())

    def require_private(self) -> None:
        """All listen to this machine alone, and no command line shows a secret."""
        for started in on_record(self.folder):
            assert heard_from_elsewhere(started.identity.pid) == set(), started.name
            heard = {port for _, _, port in listening(started.identity.pid)}
            assert set(started.ports.values()) <= heard, started.name
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_text("utf-8", "replace")
                assert not [secret for secret in self.secrets if secret in words]

    def require_gone(self) -> None:
        assert list(bearers(self.folder.id)) == []
        for port in self.options.ports.values():
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        left = {path.name for path in self.folder.root.iterdir()}
        data = {"postgres", "objects", "dagster_home", "logs", "demo"}
        assert left <= {".tidemark-stack", "secrets.json", "tidemark.toml", *data}
        assert not (self.folder.postgres / "postmaster.pid").exists()


@pytest.fixture
def a_set() -> Iterator[Set]:
    if not sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and shutil.which("initdb") is None:
        pytest.skip("PostgreSQL is not installed: on Debian, apt-get install postgresql")
    place = Path(tempfile.mkdtemp(prefix="tidemark-stack-", dir="/tmp"))
    place.chmod(0o711)
    made = Set(StackFolder(place / "a stack"), dict(zip(read_options({}).ports, map(str, free_ports()), strict=False)))
    try:
        yield made
    finally:
        assert main(["down", "--wipe"], made.folder) == 0
        place.rmdir()


def free_ports() -> list[int]:
    ports: set[int] = set()
    while len(ports) < len(read_options({}).ports):
        ports.add(a_free_port())
    return list(ports)


def test_the_servers_keep_their_data_and_let_nobody_in(a_set: Set, capsys: pytest.CaptureFixture[str]) -> None:
    """Scenario: database, store, master and workers come up, are written to, stop and come up again.
    Outcome: wrong keys are refused; the loading role creates no database; an object is created once; data alone stays."""
    import psycopg2
    from botocore.exceptions import ClientError

    a_set.folder.make()
    variables = deployment(a_set.folder, a_set.options)
    stages = stages_of(a_set.folder, a_set.options, variables)[:2]
    supervisor = Supervisor(a_set.folder, lambda _: None)
    database = variables["TIDEMARK_CATALOG_URL"]
    assert supervisor.up(stages) == 5
    a_set.require_private()
    with pytest.raises(psycopg2.OperationalError, match="password"):
        psycopg2.connect(database.replace(a_set.folder.secrets()["tidemark"], "wrong")).close()
    connection = psycopg2.connect(database)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept AS SELECT 7 AS n")
        connection.commit()
        with pytest.raises(psycopg2.Error, match="permission denied"):
            cursor.execute("CREATE SCHEMA other")
    connection.close()
    with pytest.raises(ClientError, match=r"403|AccessDenied|SignatureDoesNotMatch"):
        _listed(_store(variables | {"AWS_SECRET_ACCESS_KEY": "wrong"}))
    store = _store(variables)
    store.put_object(Bucket="landing", Key="10001/a_17#0.json.gz", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="Precondition"):
        store.put_object(Bucket="landing", Key="10001/a_17#0.json.gz", Body=b"second", IfNoneMatch="*")
    cluster = ask_json(a_set.port("SPARK_PAGE"), "/json/") or {}
    assert (cluster["aliveworkers"], cluster["cores"]) == (2, 2 * a_set.options.worker_cores)
    assert supervisor.down() == 5
    a_set.require_gone()
    assert supervisor.up([stages[0][:2]]) == 2
    connection = psycopg2.connect(database)
    with connection.cursor() as cursor:
        cursor.execute("SELECT n FROM kept")
        assert cursor.fetchall() == [(7,)]
    connection.close()
    assert list(_listed(_store(variables))) == ["10001/a_17#0.json.gz"]


def test_a_load_on_the_whole_set(
    a_set: Set,
    is_full: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_secrets_in: Callable[[Path, set[str]], list[str]],
) -> None:
    """Scenario: `tidemark load` runs on the cluster by the environment file. Outcome: another deployment's variables
    change nothing; Spark and Dagster show the run; no log holds a secret; data alone stays."""
    if not is_full:
        pytest.skip("all servers and a load take minutes: make stack-test")
    for name, value in a_set.ports.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as shell:
        for name, value in OF_ANOTHER_DEPLOYMENT.items():
            shell.setenv(name, value)
        assert main(["up"], a_set.folder) == 0
        assert main(["up"], a_set.folder) == 0
    assert "The set is already up." in capsys.readouterr().out
    a_set.require_private()
    variables = read_environment(a_set.folder)
    spec = ExportSpec(first_day=date(2026, 1, 5), days=1, events_per_day=60, shards=1)
    write_export(spec, tmp_path / "landing")
    _deliver(_store(variables), tmp_path / "landing")
    load = ["load", "--source", "regular", "--from", "2026-01-05", "--to", "2026-01-05"]
    done = subprocess.run(
        [
            "sh",
            "-c",
            '. "$0" && exec "$@"',
            str(a_set.folder.environment),
            sys.executable,
            "-m",
            "pipeline_assets.cli",
            *load,
        ],
        env={**os.environ, **OF_ANOTHER_DEPLOYMENT, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    digests = _digests(variables["TIDEMARK_CATALOG_URL"])
    assert {table for table, _ in digests} >= {"raw/regular_events", "refined/events", "aggregates/daily_revenue"}
    cluster = ask_json(a_set.port("SPARK_PAGE"), "/json/") or {}
    assert [one["state"] for one in cluster["completedapps"]] == ["FINISHED"]
    runs: Any = ask_json(
        a_set.port("WEBSERVER"), "/graphql", "{ runsOrError { ... on Runs { results { status jobName } } } }"
    )
    assert runs["data"]["runsOrError"]["results"] == [{"status": "SUCCESS", "jobName": "daily_load"}]
    assert main(["status"], a_set.folder) == 0
    assert main(["down"], a_set.folder) == 0
    a_set.require_gone()
    assert no_secrets_in(a_set.folder.root / "logs", a_set.secrets) == []


@pytest.fixture
def no_secrets_in() -> Callable[[Path, set[str]], list[str]]:
    def search(folder: Path, secrets: set[str]) -> list[str]:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files
        return [path.name for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]

    return search
