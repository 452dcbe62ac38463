"""Start all servers in order and stop them in reverse; after a failed start, stop what was started."""

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
"""Servers by stage: those of a stage start together and need the stages before."""
_HOST = "127.0.0.1"
_POLL_SECONDS = 0.25
_LAST_LINES = 12
_LOG_END_BYTES = 8192


@dataclass(frozen=True)
class Standing:
    """The status of a server."""

    name: str
    pid: int | None
    """None if it does not run."""
    ports: tuple[int, ...]
    is_well: bool


class Supervisor:
    """The servers of one folder."""

    def __init__(self, folder: StackFolder, say: Callable[[str], None]) -> None:
        """Take `say`, which is called with each line of progress."""
        self._folder = folder
        self._say = say

    def up(self, stages: Stages) -> int:
        """Start the servers that do not run; returns their number.

        Raises UsageError for a port in use and for an option that differs from that of a running server. Raises ServerError for
        a server that does not start, after stopping all that this call started.
        """
        self._folder.make()
        servers = [server for stage in stages for server in stage]
        running = {started.name: started for started in processes.on_record(self._folder) if started.is_there}
        _require_same(servers, running)
        missing = [server for server in servers if server.name not in running]
        for server in missing:
            # Stop processes that an earlier server left behind when it died.
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
        """Stop all servers in reverse order; returns their number; raises StackError for one that does not stop."""
        recorded = processes.on_record(self._folder)
        living = [started for started in recorded if started.is_there]
        left = [started.name for started in reversed(recorded) if not self._end(started.name, started)]
        # Also stop servers without a record, left by a kill between a start and its record.
        names = sorted({name for _, name in processes.bearers(self._folder.id)} - set(left))
        left += [name for name in names if not self._end(name, None)]
        if left:
            raise StackError(", ".join(left), "did not end, not even when killed", "Look at it: ps -ef")
        self._folder.sweep()
        return len({started.name for started in living} | set(names))

    def standings(self, stages: Stages) -> list[Standing]:
        """Return the status of all servers, in order."""
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
            # Another program may have taken the port at the same moment and answer instead.
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
    """Raise UsageError for changed options of a running stack: its servers depend on each other's ports and memory."""
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
            # Treat a port that a server of ours has just released as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError as error:
                reason = f"port {port} of {server.name} cannot be used: {error.strerror}"
                hint = f"End what holds it, or name another one: make up {setting}={port + 1}"
                raise UsageError(setting, reason, hint) from error
