"""Commands on the set, or on the demo's folder, work there alone, despite the clone's and the shell's settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from local_stack import __main__ as commands
from local_stack import demo as stack_demo
from local_stack import objects
from local_stack.demo import _deployment
from local_stack.environment import deployment, inherited, keep_settings, read_environment, write_environment
from local_stack.folder import StackFolder
from local_stack.options import read_options
from local_stack.server import StackError
from pipeline_assets.config import load_settings
from sample_export.demo_place import Deployment, embedded
from sample_export.spec import ExportSpec

ANOTHER = """
projects = ["999"]
catalog_name = "production"
ledger_url = "postgresql://reader@db.internal/production"
notify_urls = ["https://hooks.internal/x"]
metrics_file = "production.prom"
jars_dir = "jars of this machine"
"""
"""The clone's settings, of another deployment."""
OF_A_SHELL = {
    "AWS_ENDPOINT_URL_S3": "https://store.internal",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
    "AWS_PROFILE": "nobody",
    "AWS_SESSION_TOKEN": "token",
    "PGHOSTADDR": "192.0.2.1",
    "PGSSLMODE": "require",
    "TIDEMARK_NOTIFY_URLS": "https://hooks.internal/x",
    "DAGSTER_GRPC_TIMEOUT_SECONDS": "1",
}


@pytest.fixture
def folder(tmp_path: Path) -> StackFolder:
    made = StackFolder(tmp_path / "data with a blank" / "stack")
    made.make()
    return made


@pytest.fixture
def _of_another_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "tidemark.toml").write_text(ANOTHER)
    monkeypatch.chdir(clone)
    for name, value in OF_A_SHELL.items():
        monkeypatch.setenv(name, value)


def test_the_environment_is_a_deployment(folder: StackFolder) -> None:
    variables = deployment(folder, read_options({"STACK_PORT_S3": "19000"}))
    assert {variables["AWS_ENDPOINT_URL"], variables["AWS_ENDPOINT_URL_S3"]} == {"http://127.0.0.1:19000"}
    write_environment(folder, variables)
    assert read_environment(folder) == variables
    folder.environment.unlink()
    with pytest.raises(StackError, match=r"the set: is not up. Start it: make up"):
        read_environment(folder)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_of_the_set_forgets_other_deployments(folder: StackFolder, shell: str) -> None:
    """Scenario: a shell with another deployment's variables reads the file. Outcome: it has the set's variables alone."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    variables = deployment(folder, read_options({}))
    write_environment(folder, variables)
    kept = {"PATH": os.environ["PATH"], "LINES_OF": "one\nAWS_REGION=two", "PLAIN_PG": "kept"}
    done = subprocess.run(
        [shell, "-euc", f'. "{folder.environment}"; env -0'], env=kept | OF_A_SHELL, capture_output=True, check=True
    )
    found = dict(one.split("=", 1) for one in done.stdout.decode().split("\0") if one)
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {name: value for name, value in found.items() if name not in of_the_shell} == kept | variables


@pytest.mark.usefixtures("_of_another_deployment")
@pytest.mark.parametrize("place", ["a server of the set", "a load of the demo on the set", "the demo in its folder"])
def test_no_setting_of_the_clone_counts(
    folder: StackFolder, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for the jars' folder on this machine."""
    keep_settings(folder)
    variables = deployment(folder, read_options({}))
    if place == "a server of the set":
        environment = {**inherited(folder), **variables}
    else:
        its_own: Deployment = (
            _deployment(folder, variables, None) if place.endswith("set") else embedded(tmp_path / "data")
        )
        environment = its_own.environment()
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN", "PGHOSTADDR", "PGSSLMODE"} & os.environ.keys()
    settings = load_settings()
    assert settings.catalog_url == settings.ledger_url
    assert settings.ledger_database_url.startswith("sqlite" if place.endswith("folder") else "postgresql://tidemark:")
    assert (settings.catalog_name, settings.projects) == ("lake", ExportSpec.projects)
    assert (settings.notify_urls, settings.metrics_file) == ((), None)
    assert settings.jars_dir == Path.cwd() / "jars of this machine"
    assert not place.endswith("set") or settings.spark_config["spark.driver.bindAddress"] == "127.0.0.1"


def test_settings_of_the_set_are_a_persons_but_for_places(folder: StackFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: an operator sets projects and a ledger. Outcome: `make up` leaves the file; the ledger stays the set's."""
    keep_settings(folder)
    folder.settings.write_text('projects = ["7"]\nledger_url = "postgresql://db.internal/production"\n')
    keep_settings(folder)
    variables = deployment(folder, read_options({}))
    for one, projects in ((variables, ("7",)), (_deployment(folder, variables, None).variables, ExportSpec.projects)):
        for name, value in one.items():
            monkeypatch.setenv(name, value)
        settings = load_settings()
        assert settings.projects == projects
        assert settings.ledger_url == settings.catalog_url


class _Buckets(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<ListAllMyBucketsResult><Buckets></Buckets></ListAllMyBucketsResult>"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests are silent."""


@pytest.fixture
def store_port() -> Iterator[int]:
    """Port of a server that lists no buckets."""
    with HTTPServer(("127.0.0.1", 0), _Buckets) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", ["status", "demo"])
def test_commands_ask_their_own_servers_whatever_the_shell_says(
    folder: StackFolder, command: str, store_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a profile, configuration and database of elsewhere. Outcome: own servers answer; variables are restored."""
    (tmp_path / "config").write_text("[default\nbroken")
    for name, value in (OF_A_SHELL | {"AWS_CONFIG_FILE": str(tmp_path / "config")}).items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    assert not objects._answers(folder, store_port)
    found: list[bool] = []
    left: set[str] = set()

    def look(*_: object) -> int:
        found.append(objects._answers(folder, store_port))
        left.update(name for name in os.environ if name.startswith(("AWS_", "PG")))
        return 0

    monkeypatch.setattr(commands, "_status", look)
    monkeypatch.setattr(stack_demo, "_main", look)
    assert (commands.main(["status"], folder) if command == "status" else stack_demo.main()) == 0
    assert found == [True]
    assert left == {"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"}
    assert dict(os.environ) == before
