"""The set's folder is checked before use and keeps its secrets; commands on it, or on the demo's folder, work there alone."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack import __main__ as commands
from local_stack import demo as stack_demo
from local_stack import objects, postgres
from local_stack.__main__ import main
from local_stack.demo import _deployment
from local_stack.environment import deployment, inherited, keep_settings, read_environment, write_environment
from local_stack.folder import StackFolder
from local_stack.options import read_options
from local_stack.server import StackError
from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import UsageError
from sample_export.demo_place import Deployment, embedded
from sample_export.spec import ExportSpec
from tests.support.s3 import a_server_that_answers

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


@pytest.fixture
def store_port() -> Iterator[int]:
    """Port of a server that lists no buckets."""
    nothing = "<ListAllMyBucketsResult><Buckets></Buckets></ListAllMyBucketsResult>"
    with a_server_that_answers(lambda _: (200, nothing)) as url:
        yield int(url.rpartition(":")[2])


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


def test_its_data_is_removed_when_it_is_asked_for(folder: StackFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.secrets()
    (folder.objects / "bucket").mkdir()
    assert main(["down"], folder) == 0
    assert "The set was not up. Its data stays in" in capsys.readouterr().out
    assert (folder.objects / "bucket").is_dir()
    assert main(["down", "--wipe"], folder) == 0
    assert not folder.root.exists()
    assert main(["down", "--wipe"], folder) == 0
    assert "The set is not up, and has no data." in capsys.readouterr().out
    assert not folder.root.exists()


def test_a_foreign_file_keeps_everything(folder: StackFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.secrets()
    (folder.root / "notes.txt").write_text("mine")
    assert main(["down", "--wipe"], folder) == 2
    assert "notes.txt: was not written by the set" in capsys.readouterr().err
    assert (folder.root / "secrets.json").exists()


@pytest.mark.parametrize("command", [["up"], ["down"], ["down", "--wipe"]])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_of_somebody_else_is_not_touched(
    folder: StackFolder, tmp_path: Path, command: list[str], is_link: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither one without the mark, nor a link to a set elsewhere."""
    foreign = StackFolder(tmp_path / "foreign")
    if is_link:
        foreign.root.symlink_to(folder.root)
    else:
        (foreign.root / "tmp").mkdir(parents=True)
        (foreign.root / "tmp" / "theirs").write_text("theirs")
    assert main(command, foreign) == 2
    assert "foreign: is no folder of the set" in capsys.readouterr().err
    assert (folder.tmp if is_link else foreign.root / "tmp" / "theirs").exists()


def test_one_command_works_on_it_at_a_time(folder: StackFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with folder.locked():
        assert main(["down"], folder) == 2
    assert "another command is starting or ending the set" in capsys.readouterr().err
    assert main(["down"], folder) == 0


def test_secrets_are_made_once_for_their_owner_alone(folder: StackFolder) -> None:
    made = folder.secrets()
    assert folder.secrets() == made
    assert len(set(made.values())) == len(made) == 5
    other = StackFolder(folder.root.parent / "other")
    other.make()
    assert not set(other.secrets().values()) & set(made.values())
    write_environment(folder, deployment(folder, read_options({})))
    for name in ("secrets.json", "environment", ".tidemark-stack"):
        assert stat.S_IMODE((folder.root / name).stat().st_mode) == 0o600, name
    # A database without its key is not begun anew in silence.
    folder.postgres.mkdir()
    (folder.root / "secrets.json").unlink()
    with pytest.raises(StackError, match="make down ARGS=--wipe"):
        folder.secrets()


def test_what_may_be_chosen() -> None:
    chosen = {"STACK_PORT_S3": "19000", "STACK_WORKER_MEMORY": "1536m"}
    options = read_options({**chosen, "STACK_ROOT": "of another program"})
    assert (options.port("STACK_PORT_S3"), options.worker_memory_mib) == (19000, 1536)
    assert len(set(options.ports.values())) == len(options.ports)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("STACK_PORT_S3", "https", "is no port"),
        ("STACK_PORT_S3", "80", "is no port"),
        ("STACK_PORT_S3", "70000", "is no port"),
        ("STACK_PORT_S3", "4001", "is port 4001, as is STACK_PORT_"),
        ("STACK_PORT_MINIO", "9000", "is no setting of the set"),
        ("STACK_WORKER_CORES", "0", "is no number of cores"),
        ("STACK_WORKER_MEMORY", "1 GB", "is no amount of memory"),
        ("STACK_WORKER_MEMORY", "200m", "is no amount of memory"),
    ],
)
def test_what_may_not_be_chosen_is_refused_by_name(name: str, value: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_options({name: value})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
def test_root_is_told_of_a_folder_that_the_user_of_postgresql_cannot_reach() -> None:
    """Outcome: an unreachable folder is refused with the remedy before anything is made in it."""
    if not any(one.pw_name == "postgres" for one in pwd.getpwall()):
        pytest.skip("no user postgres")
    with tempfile.TemporaryDirectory() as place:
        clone, stack = Path(place), StackFolder(Path(place) / "-data with a blank")
        stack.make()
        clone.chmod(0o700)
        with pytest.raises(UsageError, match="cannot be reached by the user postgres") as refused:
            postgres.postgres(stack, read_options({}))
        assert str(stack.root) in str(refused.value)
        assert "Run `make up` as an ordinary user, or move the clone" in str(refused.value)
        clone.chmod(0o755)
        assert postgres.postgres(stack, read_options({})).user == "postgres"
