"""Start, identify and stop the processes of the local stack."""

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
from resources.ledger.processes import identity, sight

STACK_VARIABLE, SERVER_VARIABLE = "STACK_ID", "STACK_SERVER"
"""Variables in the environment of all that a server starts: the stack's id and the server's name."""
_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Children of this process, kept so that those that end first are reaped; the others may outlive it."""
_PROC = Path("/proc")
_STATE, _SESSION = 0, 3
"""Positions of fields in /proc/<pid>/stat after the command's name."""
_POLL_SECONDS = 0.1
_ASKED_SECONDS, _TOLD_SECONDS, _KILLED_SECONDS = 40, 10, 10
"""Seconds for a server to end by itself, for its remaining processes to follow SIGTERM, and SIGKILL."""


@dataclass(frozen=True)
class Started:
    """The recorded process of a server."""

    name: str
    identity: Identity
    stop_signal: signal.Signals
    ports: dict[str, int]
    choices: dict[str, str]
    place: int
    """Position in the starting order."""

    @property
    def is_there(self) -> bool:
        """Whether this process is alive; another process with the same pid does not count."""
        return sight(self.identity) is Sight.THERE


def start(server: Server, folder: StackFolder, place: int) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own and record it; keeps its previous log beside the new one."""
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
    """Return Popen's arguments to run as another user with only its group; empty for None."""
    return {"user": user, "group": user, "extra_groups": ()} if user else {}


def on_record(folder: StackFolder) -> list[Started]:
    """Return the servers that were started and not stopped since, in starting order; skips unreadable records."""
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
    """Return the start time of a server as a Unix timestamp; now if it was not started."""
    try:
        return (folder.run / f"{name}.json").stat().st_mtime
    except FileNotFoundError:
        return time.time()


def forget(name: str, folder: StackFolder) -> None:
    """Remove the record of a server's process."""
    (folder.run / f"{name}.json").unlink(missing_ok=True)


def stop(name: str, started: Started | None, folder: StackFolder) -> bool:
    """Stop a server and all its processes; returns whether none is left.

    First sends the server's stop signal, then SIGTERM to the remaining processes, then SIGKILL.
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
    """Return a server's living processes: those with its name and the stack's id, and those of the session that it leads.

    A child of PostgreSQL is neither: it leads its own session, and its process title overwrites its environment. It ends with
    its parent. While one is left, PostgreSQL's own lock on the data folder keeps another server from starting there.
    """
    found = {one for one, its_name in bearers(folder.id) if its_name == name}
    if started is not None and started.is_there:
        session = [
            (identity(pid), fields) for pid, fields in _living() if int(fields[_SESSION]) == started.identity.pid
        ]
        # While the leader is alive, its pid cannot be the session of other processes.
        found |= {one for one, _ in session} if started.is_there else set()
    return found


def bearers(stack_id: str) -> Iterator[tuple[Identity, str]]:
    """Yield every living process with a stack's id, and its server's name; none for an empty id."""
    if not stack_id:
        return
    wanted, prefix = f"{STACK_VARIABLE}={stack_id}".encode(), f"{SERVER_VARIABLE}=".encode()
    for pid, _ in _living():
        with suppress(OSError):
            # Take the identity before reading the environment: if the pid is reused in between, the identity does not match.
            one = identity(pid)
            variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
            if wanted in variables:
                names = [variable.removeprefix(prefix) for variable in variables if variable.startswith(prefix)]
                yield one, names[0].decode("utf-8", "replace") if names else ""


def send(to: Identity, number: signal.Signals) -> None:
    """Send a signal to exactly this process, safely against reuse of its pid.

    A process of another user is left alone; callers then find it still alive.
    """
    with suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(to.pid)
        try:
            if sight(to) is Sight.THERE:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _living() -> Iterator[tuple[int, list[str]]]:
    """Yield pid and stat fields of all living processes; zombies are not living."""
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
