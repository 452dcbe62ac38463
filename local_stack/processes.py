"""Processes of the set: started, told from all others, ended.

Contains: the record of a server's process, which living processes belong to it, signals.
Add here: another proof that a process is the set's own.
Does not contain: which servers there are, and in which order (supervisor.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_stack.folder import StackFolder, write_for_owner
from local_stack.server import Server
from pipeline_assets.domain.processes import Identity, Sight
from resources.this_process import identity, sight

STACK_VARIABLE, SERVER_VARIABLE = "STACK_ID", "STACK_SERVER"
"""In the environment of all that a server starts: which set, which server of it."""
_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Started by this process, which they may outlive; those that end before it are buried by it."""
_PROC = Path("/proc")
_STATE, _SESSION = 0, 3
"""Fields of /proc/<pid>/stat behind the command's name."""
_POLL_SECONDS = 0.1
_ASKED_SECONDS, _TOLD_SECONDS, _KILLED_SECONDS = 40, 10, 10
"""How long a server may take to end by itself, what is left of it to follow SIGTERM, and then to vanish."""


@dataclass(frozen=True)
class Started:
    """A server's process, as it is on record."""

    name: str
    identity: Identity
    stop_signal: signal.Signals
    ports: dict[str, int]
    choices: dict[str, str]
    place: int
    """Among the servers, by the order of starting."""

    @property
    def is_there(self) -> bool:
        """Whether this very process lives; another one of the same number does not count."""
        return sight(self.identity) is Sight.THERE


def start(server: Server, folder: StackFolder, place: int) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, and put it on record. What it wrote the last time is kept beside its log."""
    log = folder.log(server.name)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    environment = {**server.environment, STACK_VARIABLE: folder.id, SERVER_VARIABLE: server.name}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            server.command,
            cwd=server.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            umask=0o077,
            **as_user(server.user),
        )
    finally:
        os.close(descriptor)
    _CHILDREN.append(process)
    record = {
        "pid": process.pid,
        "started": identity(process.pid).started,
        "boot": identity().place,
        "stop_signal": int(server.stop_signal),
        "ports": dict(server.ports),
        "choices": dict(server.choices),
        "place": place,
    }
    write_for_owner(folder.run / f"{server.name}.json", json.dumps(record))
    return process


def as_user(user: str | None) -> dict[str, Any]:
    """Words for Popen: another user, with its group and no other; nobody else where none is named."""
    return {"user": user, "group": user, "extra_groups": ()} if user else {}


def on_record(folder: StackFolder) -> list[Started]:
    """What was started and not ended since, in the order of starting; a record that cannot be read counts as none."""
    found = []
    for path in folder.run.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(path.read_text("utf-8"))
            process = Identity("", record["boot"], int(record["pid"]), record["started"])
            stop_signal = signal.Signals(record["stop_signal"])
            place = int(record["place"])
            found.append(Started(path.stem, process, stop_signal, record["ports"], record["choices"], place))
    return sorted(found, key=lambda started: started.place)


def begun_at(name: str, folder: StackFolder) -> float:
    """When a server was started, in seconds of this machine's clock; now where it was not."""
    try:
        return (folder.run / f"{name}.json").stat().st_mtime
    except FileNotFoundError:
        return time.time()


def forget(name: str, folder: StackFolder) -> None:
    """Take a server's process off the record."""
    (folder.run / f"{name}.json").unlink(missing_ok=True)


def stop(name: str, started: Started | None, folder: StackFolder) -> bool:
    """End a server and all that it started; returns whether nothing of it is left.

    It is asked first; what it leaves is told to end, and killed where it does not.
    """
    known = members(name, started, folder)
    if started is not None and started.is_there:
        send(started.identity, started.stop_signal)
        _wait(lambda: not started.is_there, _ASKED_SECONDS)

    def left() -> set[Identity]:
        return {one for one in known | members(name, started, folder) if sight(one) is Sight.THERE}

    for number, patience in ((signal.SIGTERM, _TOLD_SECONDS), (signal.SIGKILL, _KILLED_SECONDS)):
        for one in left():
            send(one, number)
        if _wait(lambda: not left(), patience):
            _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]
            return True
    return False


def members(name: str, started: Started | None, folder: StackFolder) -> set[Identity]:
    """Living processes of a server: those that bear its name and the set's id, and those of its session while it leads it.

    A child of PostgreSQL is neither: it leads a session of its own, and its title lies where its environment was. It ends when
    its parent does; while one is left, PostgreSQL's own lock on its data folder lets no other server begin there.
    """
    found = {one for one, its_name in bearers(folder.id) if its_name == name}
    if started is not None and started.is_there:
        session = [
            (identity(pid), fields) for pid, fields in _living() if int(fields[_SESSION]) == started.identity.pid
        ]
        # Its number is nobody else's session as long as it lives.
        found |= {one for one, _ in session} if started.is_there else set()
    return found


def bearers(stack_id: str) -> Iterator[tuple[Identity, str]]:
    """Every living process that bears the id of a set, and its server; none where there is no id."""
    if not stack_id:
        return
    wanted, prefix = f"{STACK_VARIABLE}={stack_id}".encode(), f"{SERVER_VARIABLE}=".encode()
    for pid, _ in _living():
        with suppress(OSError):
            # Before its variables are read: should the number be given to another one meanwhile, it is not that one's.
            one = identity(pid)
            variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
            if wanted in variables:
                names = [variable.removeprefix(prefix) for variable in variables if variable.startswith(prefix)]
                yield one, names[0].decode("utf-8", "replace") if names else ""


def send(to: Identity, number: signal.Signals) -> None:
    """Send a signal to this very process: its number cannot be given to another one meanwhile.

    Another user's is not ours to end: it stays, and whoever asks is told.
    """
    with suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(to.pid)
        try:
            if sight(to) is Sight.THERE:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _living() -> Iterator[tuple[int, list[str]]]:
    """Number and fields of all processes; one that ended and is not buried yet does not live."""
    for entry in _PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError):
            fields = (entry / "stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()
            if fields[_STATE] not in ("Z", "X", "x"):
                yield int(entry.name), fields


def _wait(is_so: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
