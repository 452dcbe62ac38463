"""Commands about a deployment's folder: `init` creates it, `setup` prepares Spark, `dev` runs Dagster for it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.config import CONFIG_NAME, INSTANCE_NAME, TEMPLATES, dagster_home, load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.machine import GROUP, living
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.requests import Dev, Init, Setup
from resources.spark.jars import JARS, available, fetch, jars_folder, make_archive, require_java

WORKSPACE_NAME = "workspace.yaml"
STEPS_NAME = "NEXT_STEPS.md"
_PLACES = ("landing_url", "warehouse_url", "catalog_url")


def init(request: Init) -> int:
    """Write the files of a new deployment."""
    directory, is_s3 = request.directory, request.is_s3
    files = deployment_files(is_s3=is_s3)
    if not directory:
        raise UsageError("DIR", "is an empty name, and nothing was written", "Name another folder, or . for this one")
    _write(Path(directory), files)
    console = ui.page()
    console.print(f"{directory}: {', '.join(files)} were written")
    is_here = Path(directory).resolve() == Path.cwd()
    console.print(f"  next: {'' if is_here else f'cd {shlex.quote(directory)}, then '}read {STEPS_NAME}")
    return EXIT_OK


def setup(_: Setup) -> int:
    """Fetch the jars, and prepare the JVM's classes."""
    settings = load_settings()
    folder = jars_folder(settings)
    console = ui.page()
    console.print(f"Java {require_java()} is there")
    with ui.downloads_shown(ui.PlainConsole(stderr=True, soft_wrap=True)):
        fetched = fetch(folder, url=settings.jars_url)
    console.print(f"{len(JARS)} jars are verified, {len(fetched)} of them fetched now: {folder}")
    console.print("loading a small day to prepare the JVM's classes (about a minute)")
    try:
        archive = make_archive(folder)
    except (RuntimeError, OSError) as error:
        ui.PlainConsole(stderr=True, soft_wrap=True).print(f"no classes were prepared: {error}")
        return EXIT_INCOMPLETE
    console.print(f"{archive.stat().st_size >> 20} MiB of classes are prepared: {archive}")
    return EXIT_OK


def deployment_files(*, is_s3: bool) -> Mapping[str, str]:
    """Name -> content of the files of a new deployment."""
    files = {name: (TEMPLATES / name).read_text("utf-8") for name in (CONFIG_NAME, WORKSPACE_NAME, INSTANCE_NAME)}
    steps = (TEMPLATES / f"next_steps_{'s3' if is_s3 else 'local'}.md").read_text("utf-8")
    return files | {CONFIG_NAME: _with_places(files[CONFIG_NAME], is_s3=is_s3), STEPS_NAME: steps}


def _with_places(text: str, *, is_s3: bool) -> str:
    """Uncomment the settings of places: with their defaults, or for a bucket with the examples beside them."""
    for name in _PLACES:
        line = re.compile(
            rf'^# {name} = (?P<default>"[^"]*")(?P<rest> +# for example (?P<example>"s3://[^"]*"))?', re.MULTILINE
        )
        found = line.search(text)
        if found is None:
            raise LookupError(f"the settings show no {name}")
        is_example = is_s3 and found["example"] is not None
        value = found["example"] if is_example else found["default"]
        rest = "   # yours" if is_example else found["rest"] or ""
        text = f"{text[: found.start()]}{name} = {value}{rest}{text[found.end() :]}"
    return text


def _write(directory: Path, files: Mapping[str, str]) -> None:
    """Write all files or none; raises UsageError, and keeps existing files unchanged."""
    made: list[Path] = []
    place = directory
    try:
        _require_usable(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for place in (directory / name for name in files):
            if os.path.lexists(place):
                raise FileExistsError
        for place, text in zip([directory / name for name in files], files.values(), strict=True):
            # Mode "x" neither overwrites a new file nor follows a link.
            with place.open("x", encoding="utf-8") as file:
                made.append(place)
                file.write(text)
    except (OSError, ValueError, UsageError) as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        if isinstance(error, UsageError):
            raise
        if isinstance(error, FileExistsError) and place != directory:
            hint = "Name an empty folder, or move the file away; tidemark never overwrites it"
            raise UsageError(str(place), "is there already, and nothing was written", hint) from error
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = getattr(error, "strerror", None) or error
        reason = "is no folder, or lies below a file" if is_file else f"cannot be written ({why})"
        raise UsageError(str(directory), f"{reason}, and nothing was written", "Name another folder") from error


def _require_usable(directory: Path) -> None:
    # SQLAlchemy and the JDBC driver parse what follows `?` as options.
    odd = {character for character in str(directory.absolute()) if character == "?" or not character.isprintable()}
    if odd:
        reason = f"has {few(map(repr, sorted(odd)))} in its path, which the address of a database cannot hold"
        raise UsageError(str(directory), f"{reason}; nothing was written", "Name another folder")


_HOST = "127.0.0.1"
"""Listen on this machine only: Dagster's webserver lets every visitor start and stop runs."""
_PAGE = "locations/tidemark/asset-groups/events"
_ENDING_SECONDS = 30
_POLL_SECONDS = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def dev(request: Dev) -> int:
    """Start both processes, wait, and end them."""
    settings = load_settings()
    if not Path(WORKSPACE_NAME).is_file():
        reason = f"is no folder of a deployment: it has no {WORKSPACE_NAME}"
        raise UsageError(str(Path.cwd()), reason, "Go to that of yours, or make one: tidemark init DIR")
    _require_free(request.port)
    require_java()
    named = os.environ.get("DAGSTER_HOME")
    if named and not os.path.lexists(named):
        # Other commands expect it to be there.
        Path(named).mkdir(mode=0o700, parents=True)
    home = dagster_home()
    errors = ui.PlainConsole(stderr=True, soft_wrap=True)
    with ui.downloads_shown(errors):
        available(settings)
    _require_pool(home)
    served = _Served(request.port, is_read_only=request.read_only)
    with served:
        if served.watch():
            return EXIT_OK
    errors.print("The webserver or the daemon ended; its last lines above say why.")
    return EXIT_INCOMPLETE


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            hint = "End what uses it, or name another one: tidemark dev --port 3001"
            raise UsageError(f"port {port}", f"cannot be used: {error.strerror}", hint) from error


def _require_pool(home: Path) -> None:
    """Dagster does not enforce a pool on its first dequeue unless it exists."""
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
    """Both processes, each with a process group, so that their children end with them."""

    def __init__(self, port: int, *, is_read_only: bool) -> None:
        self._url = f"http://{_HOST}:{port}"
        webserver = ["-m", "dagster_webserver", "-w", WORKSPACE_NAME, "-h", _HOST, "-p", str(port)]
        daemon = ["-m", "dagster._daemon", "run", "-w", WORKSPACE_NAME]
        self.words = [[*webserver, "--read-only"]] if is_read_only else [daemon, webserver]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._is_asked_to_end = threading.Event()
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in _SIGNALS:
            self._former[number] = signal.signal(number, lambda *_: self._is_asked_to_end.set())
        try:
            for words in self.words:
                command = [sys.executable, "-P", *words]
                # With a separate process group, Ctrl-C reaches only this process, which ends the others in order.
                self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        # A further signal does not interrupt the ending.
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in self._living():
                with suppress(ProcessLookupError):
                    os.killpg(group, number)
            deadline = time.monotonic() + _ENDING_SECONDS
            while self._living() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def watch(self) -> bool:
        """Wait for a signal to end (True) or a process's own end (False); prints the URL once it answers."""
        is_told = False
        while not self._is_asked_to_end.wait(_POLL_SECONDS):
            if any(process.poll() is not None for process in self._processes):
                return False
            if not is_told and _answers(f"{self._url}/server_info"):
                ui.page().print(f"Dagster: {self._url}/{_PAGE} (Ctrl-C ends it)")
                is_told = True
        return True

    def _living(self) -> list[int]:
        return [process.pid for process in self._processes if process.poll() is None or living(GROUP, process.pid)]


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False
