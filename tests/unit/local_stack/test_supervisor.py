"""A set of small real processes comes up in order or not at all, and leaves nothing when it goes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from local_stack import __main__ as commands
from local_stack import postgres, processes
from local_stack.__main__ import main
from local_stack.demo import _main as _tell_the_demo
from local_stack.folder import StackFolder
from local_stack.options import read_options
from local_stack.processes import bearers, on_record
from local_stack.server import Server, ServerError
from local_stack.stack import stages_of
from local_stack.supervisor import Supervisor
from pipeline_assets.cli.terminal import page
from pipeline_assets.domain.errors import UsageError
from tests.support.ports import a_free_port

LISTEN = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
FAIL = "import sys; print('one of its lines'); print('cannot open its database', file=sys.stderr); sys.exit(3)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
CHILD = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], "
    "start_new_session={apart}); "
)


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        time.sleep(0.02)


@dataclass
class Stack:
    folder: StackFolder
    said: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.folder, self.said.append)

    def server(self, name: str, program: str = LISTEN, before: str = "", patience: float = 30) -> Server:
        port = a_free_port()
        return Server(
            name=name,
            command=(sys.executable, "-S", "-c", before + program.format(port=port)),
            environment={"PATH": os.environ["PATH"]},
            folder=self.folder.root,
            ports={f"STACK_PORT_{name.upper()}": port},
            is_well=lambda: listens(port),
            prepare=lambda: self.done.append(f"prepare {name}"),
            complete=lambda: self.done.append(f"complete {name}"),
            patience_seconds=patience,
        )

    @property
    def living(self) -> list[str]:
        return sorted(name for _, name in bearers(self.folder.id))

    def pids(self) -> dict[str, int]:
        return {started.name: started.identity.pid for started in on_record(self.folder)}


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    # Kill a server that does not listen soon.
    monkeypatch.setattr(processes, "_ASKED_SECONDS", 0.5)
    monkeypatch.setattr(processes, "_TOLD_SECONDS", 0.5)
    made = Stack(StackFolder(tmp_path / "stack"))
    made.folder.make()
    yield made
    made.supervisor.down()
    assert made.living == []


def test_it_comes_up_in_order_once_and_goes_in_reverse_without_leftovers(stack: Stack) -> None:
    """Outcome: the second call of each does nothing; children go with their server; only data stays."""
    stages = [
        [stack.server("first"), stack.server("beside")],
        [stack.server("last", before=CHILD.format(apart=True) + CHILD.format(apart=False))],
    ]
    assert stack.supervisor.up(stages) == 3
    first, done, last = stack.done[:2], sorted(stack.done[2:4]), stack.done[4:]
    assert (first, done) == (["prepare first", "prepare beside"], ["complete beside", "complete first"])
    assert last == ["prepare last", "complete last"]
    assert stack.living == ["beside", "first", "last", "last", "last"]
    pids = stack.pids()
    assert stack.supervisor.up(stages) == 0
    assert stack.pids() == pids
    assert [one.is_well for one in stack.supervisor.standings(stages)] == [True] * 3
    (stack.folder.objects / "kept").write_text("data")
    stack.said.clear()
    assert stack.supervisor.down() == 3
    assert (stack.living, stack.said) == ([], ["last: ended", "beside: ended", "first: ended"])
    assert [stack.folder.run.exists(), stack.folder.tmp.exists()] == [False, False]
    assert (stack.folder.objects / "kept").read_text() == "data"
    assert stack.supervisor.down() == 0


def test_a_server_that_fails_takes_with_it_what_was_started(stack: Stack) -> None:
    running = stack.server("running")
    stack.supervisor.up([[running]])
    stages = [[running], [stack.server("fine")], [stack.server("broken", FAIL)], [stack.server("never")]]
    with pytest.raises(ServerError) as caught:
        stack.supervisor.up(stages)
    error = caught.value
    assert (error.subject, error.reason) == ("broken", "did not come up: it ended with exit code 3")
    assert set(error.last_lines) == {"one of its lines", "cannot open its database"}
    assert str(stack.folder.log("broken")) in error.hint
    assert "prepare never" not in stack.done
    assert (stack.living, list(stack.pids())) == (["running"], ["running"])


def test_a_server_that_does_not_answer_is_given_up(stack: Stack) -> None:
    with pytest.raises(ServerError, match=r"mute: did not come up: no answer within 0 s"):
        stack.supervisor.up([[stack.server("mute", "import time; time.sleep(600)", patience=0.2)]])
    assert stack.living == []


def test_a_port_that_somebody_else_holds_is_refused_before_anything_starts(stack: Stack) -> None:
    free, taken = stack.server("free"), stack.server("taken")
    port = taken.ports["STACK_PORT_TAKEN"]
    with socket.create_server(("127.0.0.1", port)), pytest.raises(UsageError) as caught:
        stack.supervisor.up([[free], [taken]])
    expected = f"STACK_PORT_TAKEN: port {port} of taken cannot be used: Address already in use. "
    assert str(caught.value) == f"{expected}End what holds it, or name another one: make up STACK_PORT_TAKEN={port + 1}"
    assert (stack.living, stack.done) == ([], [])


def test_a_set_that_is_up_does_not_move_to_another_port(stack: Stack) -> None:
    server = stack.server("server")
    stack.supervisor.up([[server]])
    moved = replace(server, ports={"STACK_PORT_SERVER": a_free_port()})
    with pytest.raises(UsageError, match=r"and server runs on [0-9]+\. Unset it, or end the set first: make down"):
        stack.supervisor.up([[moved]])


def test_a_set_that_is_up_takes_no_other_choice(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenario: `make up` again, with more memory. Outcome: a refusal that keeps the file; the first choice is up."""
    server = stack.server("spark-worker-1")
    monkeypatch.setattr(commands, "stages_of", lambda _, options, __: [[replace(server, choices=options.chosen)]])
    monkeypatch.setenv("STACK_WORKER_CORES", "3")
    monkeypatch.setenv("STACK_WORKER_MEMORY", "1536m")
    assert main(["up"], stack.folder) == 0
    before, pids = stack.folder.environment.read_text(), stack.pids()
    assert '"spark.executor.memory": "1536m"' in before
    for name, value, is_now, was in (
        ("STACK_WORKER_MEMORY", "2g", "2048m", "1536m"),
        ("STACK_WORKER_CORES", "4", "4", "3"),
        ("STACK_PORT_S3", "9999", "9999", "9010"),
    ):
        with monkeypatch.context() as another:
            another.setenv(name, value)
            assert main(["up"], stack.folder) == 2
        said = " ".join(capsys.readouterr().err.split())
        refusal = f"{name}: is {is_now}, and spark-worker-1 was started with {was} fix: Give {was} again"
        assert said == f"{refusal}, or end the set first: make down"
    assert (stack.folder.environment.read_text(), stack.pids()) == (before, pids)
    assert main(["up"], stack.folder) == 0
    assert "The set is already up." in capsys.readouterr().out


def test_every_server_of_the_set_is_told_all_choices(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_tools", lambda: Path("/usr"))
    monkeypatch.setattr(postgres, "_user", lambda _: None)
    options = read_options({"STACK_WORKER_MEMORY": "2g", "STACK_WORKER_CORES": "3"})
    servers = [server for stage in stages_of(stack.folder, options, {}) for server in stage]
    assert len(servers) == 8
    assert len(options.chosen) == len(options.ports) + 2
    for server in servers:
        assert server.choices == options.chosen


def test_what_died_is_started_again_after_what_it_left_behind_ended(stack: Stack) -> None:
    stages = [[stack.server("stays")], [stack.server("dies", before=CHILD.format(apart=True))]]
    stack.supervisor.up(stages)
    before = stack.pids()
    os.kill(before["dies"], signal.SIGKILL)
    until(lambda: stack.living == ["dies", "stays"])
    assert stack.supervisor.up(stages) == 1
    after = stack.pids()
    assert (after["stays"] == before["stays"], after["dies"] == before["dies"]) == (True, False)
    assert stack.living == ["dies", "dies", "stays"]


def test_a_server_that_does_not_listen_is_killed(stack: Stack) -> None:
    stack.supervisor.up([[stack.server("deaf", before=DEAF)]])
    assert stack.supervisor.down() == 1
    assert stack.living == []


def test_a_process_that_has_the_number_of_a_former_one_is_left_alone(stack: Stack) -> None:
    """Scenario: an old record's number is another program's. Outcome: it gets no signal, and the record goes."""
    stack.supervisor.up([[stack.server("former")]])
    os.kill(stack.pids()["former"], signal.SIGKILL)
    until(lambda: not stack.living)
    path = stack.folder.run / "former.json"
    record = json.loads(path.read_text())
    stranger = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        for change in ({"pid": stranger.pid}, {"pid": stranger.pid, "boot": "another boot"}):
            path.write_text(json.dumps(record | change))
            assert stack.supervisor.down() == 0
            assert not path.exists()
            stack.folder.make()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_is_on_no_record_is_found_by_the_id_of_the_set(stack: Stack) -> None:
    """`make up` was killed between a start and its record; another set's processes are not touched."""
    other = Stack(StackFolder(stack.folder.root.parent / "other"))
    other.folder.make()
    other.supervisor.up([[other.server("other")]])
    try:
        stack.supervisor.up([[stack.server("lost")]])
        (stack.folder.run / "lost.json").unlink()
        assert stack.supervisor.down() == 1
        assert (stack.living, other.living) == ([], ["other"])
    finally:
        other.supervisor.down()


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_a_folder_that_came_from_elsewhere_ends_and_starts_nothing(
    stack: Stack, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outcome: in the copy every command refuses; the servers go on; the original folder ends them."""
    stack.supervisor.up([[stack.server("server")]])
    stack.folder.environment.write_text("export A=b\n")
    was, here = stack.folder.root, StackFolder(stack.folder.root.parent / how)
    shutil.copytree(was, here.root) if how == "copied" else was.rename(here.root)
    before = sorted(here.root.rglob("*"))
    for command in (["down"], ["down", "--wipe"], ["up"], ["status"]):
        assert main(command, here) == 2, command
        said = " ".join(capsys.readouterr().err.split())
        assert f"{how}: was copied or moved while the set was up, at {was}" in said
        assert "remove a copy by hand, or move the folder back and end the set there: make down" in said
    with pytest.raises(UsageError, match="was copied or moved"):
        _tell_the_demo(page(), here)
    assert sorted(here.root.rglob("*")) == before
    assert [name for _, name in bearers(here.id)] == ["server"]
    if how == "moved":
        here.root.rename(was)
    assert stack.supervisor.down() == 1


def test_a_copy_of_a_set_that_is_down_is_a_set_of_its_own(stack: Stack) -> None:
    """Scenario: a stopped set's folder is copied, then moved; each set comes up. Outcome: each ends its own alone."""
    stack.supervisor.up([[stack.server("first")]])
    stack.supervisor.down()
    copy = Stack(StackFolder(stack.folder.root.parent / "copy"))
    shutil.copytree(stack.folder.root, copy.folder.root)
    moved = StackFolder(stack.folder.root.parent / "moved")
    stack.folder.root.rename(moved.root)
    stack.folder, stack.supervisor = moved, Supervisor(moved, stack.said.append)
    try:
        assert copy.supervisor.up([[copy.server("server")]]) == 1
        assert stack.supervisor.up([[stack.server("server")]]) == 1
        assert copy.supervisor.down() == 1
        assert (copy.living, stack.living) == ([], ["server"])
    finally:
        copy.supervisor.down()


def test_the_last_log_is_kept_beside_the_new_one(stack: Stack) -> None:
    for _ in range(2):
        with pytest.raises(ServerError):
            stack.supervisor.up([[stack.server("broken", FAIL)]])
    log = stack.folder.log("broken")
    assert log.read_text() == log.with_suffix(".log.1").read_text() != ""
    assert log.stat().st_mode & 0o077 == 0
