"""Run one contender in a separate process: it reports its seconds, and the operating system its peak memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.workload import KEPT, Stage, record_of
from pipeline_assets.domain.settings import PROJECT_ROOT

_SAMPLE_SECONDS = 0.2
_KINDS = {"java": "jvm", "python": "workers"}


@dataclass
class Measured:
    """The figures of one process of one contender."""

    contender: str
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Stage -> `seconds`, `rows`, `parts`."""
    peak_mb: dict[str, float] = field(default_factory=dict)
    """`jvm`, `driver` (its Python), `workers` (all of Spark's Python workers) -> peak resident memory in MB."""


def measure(
    contender: str, stages: Sequence[Stage], warm_up: Sequence[Stage], settings: Mapping[str, Any] | None = None
) -> Measured:
    """Run a contender through its stages in a new process and an empty folder; returns its figures."""
    KEPT.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{contender}-", dir=KEPT))
    order = {
        "contender": contender,
        "work": str(work),
        "stages": [record_of(stage) for stage in stages],
        "warm_up": [record_of(stage) for stage in warm_up],
        "settings": dict(settings or {}),
    }
    # Pass the order as a file, because ten thousand object names exceed the length of an argument.
    (work / "order.json").write_text(json.dumps(order), "utf-8")
    found = Measured(contender)
    said, found.peak_mb = run_and_watch(["benchmarks.one", str(work / "order.json")], work)
    found.stages = {str(one.pop("stage")): one for one in said}
    shutil.rmtree(work)
    return found


def run_and_watch(words: Sequence[str], work: Path) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Run a module in a separate process; returns the JSON lines that it prints, and peak MB by kind of process.

    Raises RuntimeError with the end of its standard error, which goes to a file in `work`.
    """
    said: list[dict[str, Any]] = []
    peak_mb: dict[str, float] = {}
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIDEMARK_") or name == "TIDEMARK_NATIVE"
    }
    with (work / "stderr.log").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=PROJECT_ROOT,
            env=environment | {"DAGSTER_DISABLE_TELEMETRY": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        is_done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peak_mb, is_done))
        watcher.start()
        try:
            assert process.stdout is not None
            said += [json.loads(line) for line in process.stdout if line.startswith("{")]
            code = process.wait()
        finally:
            is_done.set()
            watcher.join()
            _kill_group(process.pid)
    if code != 0:
        raise RuntimeError(f"{' '.join(words)} failed:\n{(work / 'stderr.log').read_text()[-4000:]}")
    return said, peak_mb


def _watch(root: int, peak_mb: dict[str, float], is_done: threading.Event) -> None:
    while not is_done.wait(_SAMPLE_SECONDS):
        now: dict[str, float] = {}
        for pid, kind in _family(root).items():
            size = _resident_mb(pid)
            # Count a JVM once: while it forks, it appears twice with the same memory.
            now[kind] = max(size, now.get(kind, 0.0)) if kind == "jvm" else size + now.get(kind, 0.0)
        for kind, size in now.items():
            peak_mb[kind] = max(size, peak_mb.get(kind, 0.0))


def _family(root: int) -> dict[int, str]:
    """Pid -> `driver`, `jvm`, `workers` or `other`, for the root process and all its descendants."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = (folder / "stat").read_text()
            except OSError:
                continue
            head, _, tail = status.rpartition(")")
            parents[int(folder.name)] = int(tail.split()[1])
            commands[int(folder.name)] = _program(folder) or head.partition("(")[2]
    found = {root: "driver"}
    is_growing = True
    while is_growing:
        new = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        is_growing = bool(new)
        found |= {pid: _kind(commands[pid]) for pid in new}
    return found


def _program(folder: Path) -> str:
    """The executable of a process; unlike its name, this is still `java` while a JVM forks."""
    try:
        return (folder / "exe").readlink().name
    except OSError:
        return ""


def _kind(program: str) -> str:
    return next((kind for name, kind in _KINDS.items() if program.startswith(name)), "other")


def _resident_mb(pid: int) -> float:
    try:
        pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
