"""Who this process is, and whether another one runs: by boot, namespaces, number and start, which no later process shares."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

from pipeline_assets.domain.processes import Identity, Sight

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""Fields of /proc/<pid>/stat behind the command's name."""
_ENDED = ("Z", "X", "x")


def identity(pid: int | None = None) -> Identity:
    """Of a process of this machine; of this one where none is named."""
    pid = os.getpid() if pid is None else pid
    fields = _stat(pid)
    return Identity(socket.gethostname(), place(), pid, int(fields[_STARTED]) if fields else None)


def sight(of: Identity | None) -> Sight:
    """What this machine sees of a process."""
    if of is None or of.place is None or of.started is None or of.place != place():
        return Sight.HIDDEN
    fields = _stat(of.pid)
    if fields:
        is_there = fields[_STATE] not in _ENDED and int(fields[_STARTED]) == of.started
        return Sight.THERE if is_there else Sight.GONE
    try:
        os.kill(of.pid, 0)
    except ProcessLookupError:
        return Sight.GONE
    except OSError:
        # Another user's, where /proc hides these.
        return Sight.HIDDEN
    return Sight.HIDDEN


@cache
def place() -> str | None:
    """Where the number of a process means the same as here; None where the system does not tell."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        pids = (_PROC / "self/ns/pid").readlink()
    except OSError:
        return None
    try:
        times = str((_PROC / "self/ns/time").readlink())
    except OSError:
        # An older kernel has one time for all.
        times = ""
    return f"{boot} {pids} {times}"


def _stat(pid: int) -> list[str] | None:
    try:
        return (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
