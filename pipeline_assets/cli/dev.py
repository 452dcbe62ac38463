"""`tidemark dev`: start and stop Dagster's webserver and daemon together, for the deployment in this folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.cli.install import WORKSPACE_NAME
from pipeline_assets.cli.terminal import PlainConsole, downloads_shown, page
from pipeline_assets.config import dagster_home, load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.requests import Dev
from resources.spark.jars import available, require_java

_HOST = "127.0.0.1"
"""Listen on this machine only: Dagster's webserver needs no password and lets every visitor start and stop runs."""
_PAGE = "locations/tidemark/asset-groups/events"
_ENDING_SECONDS = 30
_POLL_SECONDS = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def dev(request: Dev) -> int:
    """Start both processes, wait, and end them."""
    settings = load_settings()
    if not Path(WORKSPACE_NAME).is_file():
        raise UsageError(
            str(Path.cwd()),
            f"is no folder of a deployment: it has no {WORKSPACE_NAME}",
            "Go to that of yours, or make one: tidemark init DIR",
        )
    _require_free(request.port)
    require_java()
    _make_named_home()
    home = dagster_home()
    errors = PlainConsole(stderr=True, soft_wrap=True)
    with downloads_shown(errors):
        available(settings)
    _require_pool(home)
    served = _Served(request.port, is_read_only=request.read_only)
    with served:
        is_stopped = served.watch()
    if is_stopped:
        return EXIT_OK
    errors.print("The webserver or the daemon ended; its last lines above say why.")
    return EXIT_INCOMPLETE


def _make_named_home() -> None:
    """Create the folder of DAGSTER_HOME; only this command does, every other one treats a missing folder as a mistake."""
    named = os.environ.get("DAGSTER_HOME")
    if named and not os.path.lexists(named):
        # Keep runs and logs private to this user.
        Path(named).mkdir(mode=0o700, parents=True)


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            reason = f"cannot be used: {error.strerror}"
            raise UsageError(
                f"port {port}", reason, "End what uses it, or name another one: tidemark dev --port 3001"
            ) from error


def _require_pool(home: Path) -> None:
    """Create the pool: Dagster does not enforce a pool on its first dequeue unless it exists."""
    import dagster as dg  # noqa: PLC0415 - other commands start without Dagster

    from pipeline_assets.orchestration.assets import POOL  # noqa: PLC0415 - other commands start without Dagster

    try:
        with dg.DagsterInstance.get() as instance:
            if POOL not in {pool.name for pool in instance.event_log_storage.get_pool_limits()}:
                instance.event_log_storage.set_concurrency_slots(POOL, 1)
    except dg.DagsterError as error:
        reason = f"Dagster refuses its configuration: {' '.join(str(error).split())}"
        raise UsageError(str(home), reason, "Correct dagster.yaml") from error


class _Served:
    """Both processes, each leading a process group, so that their children can be ended with them."""

    def __init__(self, port: int, *, is_read_only: bool) -> None:
        self._url = f"http://{_HOST}:{port}"
        webserver = ["-m", "dagster_webserver", "-w", WORKSPACE_NAME, "-h", _HOST, "-p", str(port)]
        daemon = ["-m", "dagster._daemon", "run", "-w", WORKSPACE_NAME]
        self.words = [[*webserver, "--read-only"]] if is_read_only else [daemon, webserver]
        """The arguments of each process."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._is_asked_to_end = threading.Event()
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in _SIGNALS:
            self._former[number] = signal.signal(number, lambda *_: self._is_asked_to_end.set())
        try:
            for words in self.words:
                self._processes.append(_started(words))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        # A further signal does not interrupt the ending.
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in self._living():
                _signal_group(group, number)
            deadline = time.monotonic() + _ENDING_SECONDS
            while self._living() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def watch(self) -> bool:
        """Wait for a signal to end (True) or until a process ends by itself (False); prints the URL once it answers."""
        is_told = False
        while not self._is_asked_to_end.wait(_POLL_SECONDS):
            if any(process.poll() is not None for process in self._processes):
                return False
            if not is_told and _answers(f"{self._url}/server_info"):
                page().print(f"Dagster: {self._url}/{_PAGE} (Ctrl-C ends it)")
                is_told = True
        return True

    def _living(self) -> list[int]:
        return [process.pid for process in self._processes if process.poll() is None or _has_members(process.pid)]


def _started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    # With a separate process group, Ctrl-C reaches only this process, which ends the others in order.
    return subprocess.Popen([sys.executable, "-P", *words], stdin=subprocess.DEVNULL, process_group=0)


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _has_members(group: int) -> bool:
    """Whether a process of the group is alive; zombies do not count."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            state, _, its_group, *_ = entry.read_text().rsplit(")", 1)[1].split()
            if int(its_group) == group and state != "Z":
                return True
    return False


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False
