"""Processes of a drill: commands that pause at a failpoint and are let go or killed, and commands that follow them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from resources.failpoints import SIGNAL_FILE_VARIABLE, VARIABLE

_POLL_SECONDS = 0.05
_LONGEST_SECONDS = 600
_LONGEST_COMMAND_SECONDS = 300
_LOG_END = 2000


class VictimError(Exception):
    """The process did not do its work; the message has the end of its output."""


class Victim:
    """A running command in a session of its own."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], point: str, folder: Path) -> None:
        """Start the command, which will pause at `point`. Its output goes to `victim.log` in the folder."""
        self._signal_file = folder / "paused"
        self._signal_file.unlink(missing_ok=True)
        self._log = folder / "victim.log"
        armed = {**environment, VARIABLE: point, SIGNAL_FILE_VARIABLE: str(self._signal_file)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, env=armed, stdout=log, stderr=log, start_new_session=True)

    @property
    def log(self) -> str:
        """Its output so far."""
        return self._log.read_text("utf-8", "replace")

    def wait_until_paused(self) -> str:
        """Wait for the pause and return its point; raises VictimError if the process ends before."""
        self.wait_until(lambda: self._signal_file.exists() and self._signal_file.read_text("utf-8"), "did not pause")
        return self._signal_file.read_text("utf-8")

    def go_on(self) -> None:
        """Let it continue from its pause."""
        self._signal_file.unlink()

    def wait_until_it_ends(self) -> int:
        """Wait for its exit code; raises VictimError if it does not end in time."""
        try:
            return self._process.wait(_LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise VictimError(f"the process did not end:\n{self.log[-_LOG_END:]}") from None

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until `is_so` holds; raises VictimError if the process ends before, or takes too long."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not is_so():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise VictimError(f"the process {what}:\n{self.log[-_LOG_END:]}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL to every process of its session; returns when all are gone."""
        kill_session(self._process)


@contextmanager
def a_victim(words: Sequence[str], environment: Mapping[str, str], point: str, folder: Path) -> Iterator[Victim]:
    """A victim that is killed at the end of the block."""
    victim = Victim(words, environment, point, folder)
    try:
        yield victim
    finally:
        victim.kill()


def kill_at(words: Sequence[str], environment: Mapping[str, str], point: str, folder: Path) -> None:
    """Start a command and kill it at `point`; raises VictimError if it does not pause there."""
    with a_victim([*words, "--verbose"], environment, point, folder) as victim:
        victim.wait_until_paused()


def failure(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Carry out a command to its end; returns the end of what it wrote if it failed."""
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, timeout=_LONGEST_COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise VictimError(str(error)) from None
    return done.stderr[-500:] if done.returncode else None


def tidemark(*words: str) -> list[str]:
    """A command of this installation."""
    return [str(Path(sys.executable).with_name("tidemark")), *words]


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to every process of the session that `leader` began; returns when all are gone."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while members := _members(leader.pid):
        if time.monotonic() > deadline:
            raise VictimError(f"processes survived SIGKILL: {members}")
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        leader.poll()
        time.sleep(_POLL_SECONDS)
    leader.wait()


def _members(session: int) -> list[int]:
    """Pids of the living processes of a session; workers have their own process group, but stay in the session."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        # A process that ended meanwhile has no text any more.
        with suppress(OSError, ValueError, IndexError):
            state, _, _, its_session = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            if int(its_session) == session and state != "Z":
                members.append(int(entry.name))
    return members
