"""Start all servers in order and end them in reverse; a set that does not come up whole does not stay.

Contains: what is checked before the first one starts, waiting for health, going back.
Add here: another rule about the set as a whole.
Does not contain: any one server, processes (processes.py).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from local_stack import processes
from local_stack.folder import StackFolder
from local_stack.processes import Started
from local_stack.server import Server, ServerError, StackError
from pipeline_assets.domain.errors import UsageError

Stages = Sequence[Sequence[Server]]
"""The servers of a stage need those of the stages before, and start together."""
_HOST = "127.0.0.1"
_POLL_SECONDS = 0.25
_LAST_LINES = 12
_LOG_END_BYTES = 8192


@dataclass(frozen=True)
class Standing:
    """How a server stands."""

    name: str
    pid: int | None
    """None where it does not run."""
    ports: tuple[int, ...]
    is_well: bool


class Supervisor:
    """The servers of one folder."""

    def __init__(self, folder: StackFolder, say: Callable[[str], None]) -> None:
        """`say` is told what happens, a line each time."""
        self._folder = folder
        self._say = say

    def up(self, stages: Stages) -> int:
        """Start what does not run; returns how many servers that were.

        Raises UsageError for a port that somebody else holds and for a choice other than that of a server that runs,
        ServerError for a server that does not come up: then all that this call started is ended again.
        """
        self._folder.make()
        servers = [server for stage in stages for server in stage]
        running = {started.name: started for started in processes.on_record(self._folder) if started.is_there}
        _require_same(servers, running)
        missing = [server for server in servers if server.name not in running]
        for server in missing:
            # What an earlier one left behind when it died.
            self._end(server.name, None)
        for server in missing:
            _require_free(server)
        begun: list[str] = []
        try:
            for stage in stages:
                self._start([server for server in stage if server in missing], servers, begun)
        except BaseException:
            self._go_back(begun)
            raise
        return len(missing)

    def down(self) -> int:
        """End all that lives, in reverse; returns how many servers that were. Raises StackError for what does not end."""
        recorded = processes.on_record(self._folder)
        living = [started for started in recorded if started.is_there]
        left = [started.name for started in reversed(recorded) if not self._end(started.name, started)]
        # Of servers that are on no record: a kill between a start and its record.
        names = sorted({name for _, name in processes.bearers(self._folder.id)} - set(left))
        left += [name for name in names if not self._end(name, None)]
        if left:
            raise StackError(", ".join(left), "did not end, not even when killed", "Look at it: ps -ef")
        self._folder.sweep()
        return len({started.name for started in living} | set(names))

    def standings(self, stages: Stages) -> list[Standing]:
        """Of all servers, in order."""
        running = {started.name: started for started in processes.on_record(self._folder) if started.is_there}
        return [
            Standing(
                server.name,
                running[server.name].identity.pid if server.name in running else None,
                tuple(server.ports.values()),
                server.name in running and server.is_well(),
            )
            for stage in stages
            for server in stage
        ]

    def _start(self, servers: Sequence[Server], among: Sequence[Server], begun: list[str]) -> None:
        children = []
        for server in servers:
            server.prepare()
            begun.append(server.name)
            children.append((server, processes.start(server, self._folder, among.index(server)), time.monotonic()))
        for server, process, since in children:
            while not server.is_well():
                code = process.poll()
                if code is not None:
                    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    raise self._failure(server, f"did not come up: it {how}")
                if time.monotonic() - since > server.patience_seconds:
                    raise self._failure(server, f"did not come up: no answer within {server.patience_seconds:.0f} s")
                time.sleep(_POLL_SECONDS)
            # Another program may answer in its place, where both began to listen at once.
            if process.poll() is not None:
                raise self._failure(server, "did not come up: it ended, and something else answers at its port")
            server.complete()
            self._say(f"{server.name}: up after {time.monotonic() - since:.0f} s")

    def _failure(self, server: Server, reason: str) -> ServerError:
        log = self._folder.log(server.name)
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_END_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        return ServerError(
            server.name, reason, f"Its last lines follow; all of them: {log}", tuple(lines[-_LAST_LINES:])
        )

    def _go_back(self, begun: Sequence[str]) -> None:
        recorded = {started.name: started for started in processes.on_record(self._folder)}
        for name in reversed(begun):
            self._end(name, recorded.get(name))

    def _end(self, name: str, started: Started | None) -> bool:
        if not processes.stop(name, started, self._folder):
            return False
        processes.forget(name, self._folder)
        if started is not None:
            self._say(f"{name}: ended")
        return True


def _require_same(servers: Sequence[Server], running: Mapping[str, Started]) -> None:
    """Servers know of one another: a load asks for all the memory that a worker has, a worker for its master's port."""
    pairs = [(server, running[server.name]) for server in servers if server.name in running]
    for server, started in pairs:
        for setting, port in server.ports.items():
            if started.ports.get(setting) != port:
                reason = f"is {port}, and {server.name} runs on {started.ports.get(setting)}"
                raise UsageError(setting, reason, "Unset it, or end the set first: make down")
    for server, started in pairs:
        for setting, value in server.choices.items():
            other = started.choices.get(setting)
            if other != value:
                reason = f"is {value}, and {server.name} was started with {other}"
                raise UsageError(setting, reason, f"Give {other} again, or end the set first: make down")


def _require_free(server: Server) -> None:
    for setting, port in server.ports.items():
        with socket.socket() as probe:
            # A port that a server of ours left a moment ago is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError as error:
                reason = f"port {port} of {server.name} cannot be used: {error.strerror}"
                hint = f"End what holds it, or name another one: make up {setting}={port + 1}"
                raise UsageError(setting, reason, hint) from error
