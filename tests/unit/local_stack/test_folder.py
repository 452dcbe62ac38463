"""The set's folder is checked before use, keeps its secrets, and lets one command work at a time."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from local_stack import postgres
from local_stack.__main__ import main
from local_stack.environment import deployment, write_environment
from local_stack.folder import StackFolder
from local_stack.options import read_options
from local_stack.server import StackError
from pipeline_assets.domain.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> StackFolder:
    made = StackFolder(tmp_path / "data with a blank" / "stack")
    made.make()
    return made


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
    options = read_options(
        {"STACK_PORT_S3": "19000", "STACK_WORKER_MEMORY": "1536m", "STACK_ROOT": "of another program"}
    )
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
