"""The Dockerfile's steps below a folder of this machine, and a container of that image."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.ports import a_free_port
from tests.support.postgres import a_postgres
from tests.support.small_spark import SMALL

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
_STRANGER = 65_534
_PATIENCE_SECONDS = 240


@dataclass(frozen=True)
class Container:
    """A container's view: the program below `root`, and one writable folder."""

    root: Path
    own: Path
    as_user: tuple[str, ...]
    environment: dict[str, str]

    def command(self, *words: str) -> list[str]:
        # A shell that runs tests in its background ignores interrupts; Dagster would inherit that.
        return [*self.as_user, "env", "--default-signal=INT", str(self.root / "bin/entrypoint.sh"), *words]

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.as_user, *map(str, words)],
            cwd=self.own,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def is_healthy(self, role: str) -> bool:
        return self.run(self.root / "bin/health.sh", role).returncode == 0

    @contextmanager
    def serving(self, *roles: str) -> Iterator[None]:
        logs = {role: self.own.parent / f"{role}.log" for role in roles}
        started = []
        try:
            for role, log in logs.items():
                with log.open("wb") as out:
                    started.append(
                        subprocess.Popen(
                            self.command(role), cwd=self.own, env=self.environment, stdout=out, stderr=out,
                            start_new_session=True,
                        )
                    )  # fmt: skip
                self._await(role, started[-1], log)
            yield
        finally:
            for process in reversed(started):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
            for process in started:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def _await(self, role: str, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        # Each check of health starts Dagster.
        while not (self._is_heard(role) and self.is_healthy(role)):
            assert process.poll() is None, log.read_text()[-3_000:]
            assert time.monotonic() < deadline, log.read_text()[-3_000:]
            time.sleep(1)

    def _is_heard(self, role: str) -> bool:
        port = self.environment.get(f"{role.upper().replace('-', '_')}_PORT")
        with socket.socket() as probe:
            return port is None or probe.connect_ex(("127.0.0.1", int(port))) == 0


def _python(as_user: Sequence[str]) -> str:
    """An interpreter that the other user may run."""
    candidates = [os.path.realpath(sys.executable), *map(str, Path("/usr/bin").glob("python3.1[123]"))]
    for one in candidates:
        done = subprocess.run(
            [*as_user, "sh", "-c", f"{one} -c 'import sys, venv; print(sys.version_info[:2])'"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.stdout.strip() in ("(3, 11)", "(3, 12)", "(3, 13)"):
            return one
    pytest.skip("no Python of this machine may be run by another user")


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    is_root = os.getuid() == 0
    as_user = ("setpriv", f"--reuid={_STRANGER}", f"--regid={_STRANGER}", "--clear-groups") if is_root else ()
    # Not below pytest's folder, which no other user may enter.
    folder = Path(tempfile.mkdtemp(prefix="tidemark-image-"))
    try:
        folder.chmod(0o755)
        root, own = folder / "opt", folder / "own"
        own.mkdir()
        if is_root:
            os.chown(own, _STRANGER, _STRANGER)
        build = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": os.environ["HOME"], "PYTHON": _python(as_user),
            "UV": str(Path(sys.executable).parent / "uv"), "JARS": str(PROJECT_ROOT / ".jars"),
            # `warm.sh` writes the byte code of what it imports; all libraries' takes a minute.
            "UV_COMPILE_BYTECODE": "0",
        }  # fmt: skip
        # The registries' settings stay; those of this test run do not.
        ours = ("PYTHON", "VIRTUAL_ENV", "TIDEMARK_", "DAGSTER_", "AWS_")
        build = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | build
        for step in ("install.sh", "warm.sh", "seal.sh"):
            done = subprocess.run(
                ["sh", str(PROJECT_ROOT / "deploy/build" / step), str(root)],
                cwd="/", env=build, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{step}:\n{done.stdout}{done.stderr}"
        environment = {
            "PATH": build["PATH"], "HOME": str(own), "TMPDIR": str(own), "DAGSTER_HOME": str(own / "dagster"),
            "BIND_ADDRESS": "127.0.0.1", "CODE_SERVER_HOST": "127.0.0.1", "DAGSTER_DISABLE_TELEMETRY": "1",
            "CODE_SERVER_PORT": str(a_free_port()), "WEBSERVER_PORT": str(a_free_port()), "NO_PROXY": "127.0.0.1,localhost",
            "TIDEMARK_LANDING_URL": str(own / "landing"), "TIDEMARK_WAREHOUSE_URL": str(own / "warehouse"),
            "TIDEMARK_CATALOG_URL": f"sqlite:///{own}/catalog.db", "TIDEMARK_PROJECTS": PROJECT,
            "TIDEMARK_CALENDAR_START": "2026-01-01", "TIDEMARK_SPARK_MASTER": "local[2]",
            "TIDEMARK_SPARK_DRIVER_MEMORY": "1g",
            "TIDEMARK_SPARK_CONFIG": json.dumps({**SMALL, "spark.local.dir": str(own)}),
        }  # fmt: skip
        yield Container(root, own, as_user, environment)
    finally:
        # Only root may remove sealed folders as they are.
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
        shutil.rmtree(folder)


def test_nobody_who_runs_it_may_write_any_of_it(container: Container) -> None:
    done = container.run("find", container.root, "-writable", "-not", "-type", "l")
    assert done.stdout == ""
    written = container.run("sh", "-c", f"echo x > {container.root}/app/pipeline_assets/__init__.py")
    assert written.returncode != 0
    # Without byte code each start would compile the program again.
    assert list((container.root / "app/pipeline_assets/__pycache__").glob("definitions.*.pyc"))
    names = {path.name for path in (container.root / "app").iterdir()}
    assert not names & {"tests", ".git", "tidemark.toml", "data"}
    installed = container.run(container.root / "venv/bin/python", "-c", "import pytest")
    assert installed.returncode != 0


def test_a_container_begins_a_deployment(container: Container) -> None:
    folder = container.own / "begun"
    done = container.run(*container.command("tidemark", "init", str(folder))[len(container.as_user) :])
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} >= {"tidemark.toml", "workspace.yaml", "dagster.yaml"}
    assert not [path for path in (container.root / "app").rglob("*") if path.is_symlink()]


def test_a_container_loads_a_day_and_says_how_it_stands(container: Container) -> None:
    """Outcome: a user who owns one folder loads a day with the build's class archive, and writes nowhere else."""
    key = KeyGrammar(Settings().marker_pattern).format_delivery(BatchKey(Source.REGULAR, PROJECT, DAY), 10, 1)
    delivered = container.own / "landing" / key
    delivered.parent.mkdir(parents=True)
    delivered.write_bytes(a_body(events_on(DAY, 20)))
    for folder in (delivered.parent, delivered.parent.parent):
        folder.chmod(0o755)
    assert (container.root / "app/.jars/classes.jsa").is_file()
    load = ["tidemark", "load", "--source", "regular", "--from", str(DAY), "--to", str(DAY), "--json"]
    done = container.run(*container.command(*load)[len(container.as_user) :])
    assert done.returncode == 0, done.stdout + done.stderr
    assert {day["verdict"] for day in json.loads(done.stdout)} == {"published"}
    told = container.run(container.root / "bin/entrypoint.sh", "tidemark", "metrics")
    assert f'tidemark_rows{{project="{PROJECT}"}} 20.0' in told.stdout


def test_entry_points_answer_and_are_healthy(container: Container) -> None:
    """Outcome: each role passes its own health check, and neither server is healthy once it stopped."""
    roles = ("code-server", "webserver", "daemon")
    assert not any(container.is_healthy(role) for role in roles[:2])
    with a_postgres() as server:
        container.environment["DAGSTER_POSTGRES_URL"] = server.database("dagster")
        home = container.own / "dagster-with-database"
        container.environment["DAGSTER_HOME"] = str(home)
        with container.serving(*roles):
            url = f"http://127.0.0.1:{container.environment['WEBSERVER_PORT']}"
            assert "dagster_webserver_version" in json.load(urlopen(f"{url}/server_info"))
            query = (
                "{workspaceOrError{...on Workspace{locationEntries{name loadStatus locationOrLoadError{__typename}}}}}"
            )
            with urlopen(f"{url}/graphql?query={quote(query)}") as answer:
                (entry,) = json.load(answer)["data"]["workspaceOrError"]["locationEntries"]
            assert (entry["name"], entry["locationOrLoadError"]["__typename"]) == ("tidemark", "RepositoryLocation")
        assert "DAGSTER_POSTGRES_URL" in (home / "dagster.yaml").read_text()
        assert not any(container.is_healthy(role) for role in roles[:2])
