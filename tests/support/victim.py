"""Commands on a test's pipeline in their own process, paused and killed at chosen points."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pyspark import SparkContext
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.domain.slices import Source
from pipeline_assets.drill import drill, sandbox, scenarios
from pipeline_assets.drill.sandbox import Victim, as_environment, tidemark
from pipeline_assets.drill.sandbox import a_victim as of_its_own
from resources import failpoints
from resources.failpoints import stop_at
from tests.support.attached import attach, gateway_variables, is_attached
from tests.support.small_spark import SMALL

_PROCESSES = multiprocessing.get_context("forkserver")
"""Copies of a process that has imported everything and done nothing."""
_PROCESSES.set_forkserver_preload([__name__, "pipeline_assets.definitions"])


def home_below(folder: Path) -> Path:
    """Dagster's home for processes on this folder's pipeline."""
    return folder / "dagster_home"


@contextmanager
def a_victim(
    pipeline: Any,
    first: date,
    last: date,
    point: str,
    *,
    source: Source = Source.REGULAR,
    has_engine: bool = False,
    **settings: Any,
) -> Iterator[Victim]:
    """`tidemark load` in a process that pauses at `point`. `has_engine`: with a JVM that dies with it, else this one's."""
    words = ("load", "--source", source.value, "--from", str(first), "--to", str(last))
    with a_command(pipeline, words, point, has_engine=has_engine, **settings) as victim:
        yield victim


@contextmanager
def a_command(
    pipeline: Any, words: Sequence[str], point: str, *, has_engine: bool = False, **settings: Any
) -> Iterator[Victim]:
    folder = pipeline.landing.parent
    home_below(folder).mkdir(exist_ok=True)
    small = {"spark_master": "local[2]", "spark_driver_memory": "1g", "spark_config": SMALL}
    environment = as_environment(pipeline.settings.model_copy(update={**small, **settings}))
    environment["DAGSTER_HOME"] = str(home_below(folder))
    words = (*words, "--verbose")
    if has_engine:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
        with of_its_own(tidemark(*words), {**inherited, **environment}, point, folder) as victim:
            yield victim
        return
    with _a_copy(words, environment, point, folder) as victim:
        yield victim


@contextmanager
def drills_in_copies() -> Iterator[None]:
    """Meanwhile the processes of a drill are copies, too; with a session here, on its JVM."""

    @contextmanager
    def a_copy(words: Sequence[str], *how: Any) -> Iterator[Victim]:
        with _a_copy(words[1:], *how) as victim:
            yield victim

    def failure(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
        with TemporaryDirectory() as folder, a_copy(words, environment, "", Path(folder)) as victim:
            return victim.log[-500:] if victim.wait_until_it_ends() else None

    with pytest.MonkeyPatch.context() as patched:
        for module in (sandbox, drill):
            patched.setattr(module, "a_victim", a_copy)
        patched.setattr(scenarios, "failure", failure)
        yield


@contextmanager
def _a_copy(words: Sequence[str], environment: Mapping[str, str], point: str, folder: Path) -> Iterator[Victim]:
    victim = _Attached(words, environment, point, folder)
    try:
        yield victim
    finally:
        victim.kill()


class _Attached(Victim):
    """A process that runs a command, on this one's JVM if there is one."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], point: str, folder: Path) -> None:
        self._signal_file, self._log = folder / "paused", folder / "victim.log"
        self._signal_file.unlink(missing_ok=True)
        engine = gateway_variables() if SparkContext._gateway else {}
        given = (words, {**environment, **engine}, point, str(self._signal_file), str(self._log))
        self._process: Any = _Started(_PROCESSES.Process(target=_be, args=given))


class _Started:
    """`subprocess.Popen`'s interface for a process of multiprocessing."""

    def __init__(self, process: Any) -> None:
        process.start()
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a victim", seconds or 0)
        return self._process.exitcode


def _be(words: Sequence[str], environment: Mapping[str, str], point: str, signal_file: str, log: str) -> None:
    os.setsid()
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for standard in (1, 2):
        os.dup2(written, standard)
    for name in [name for name in os.environ if name.startswith("TIDEMARK_")]:
        del os.environ[name]
    os.environ |= environment
    failpoints.watch(*([stop_at(point, Path(signal_file))] if point else []))
    if is_attached():
        attach()
    done = CliRunner().invoke(app, words)
    os.write(1, (done.output + "".join(traceback.format_exception(done.exception))).encode())
    os._exit(done.exit_code)
