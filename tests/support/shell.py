"""`tidemark` in its own process, in this one, or in one that knows a user's modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.drill.sandbox import as_environment
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from tests.support.attached import gateway_variables
from tests.support.builders import PROJECT
from tests.support.hands import Hand
from tests.support.small_spark import SMALL

Done = subprocess.CompletedProcess[str]


class Shell:
    """Runs the command with scratch settings, each time in its own process."""

    def __init__(self, folder: Path, spark_config: Mapping[str, str] = SMALL) -> None:
        self.landing = folder / "landing"
        (self.landing / PROJECT).mkdir(parents=True)
        (folder / "home").mkdir()
        self.environment = {
            **os.environ,
            "TIDEMARK_LANDING_URL": str(self.landing),
            "TIDEMARK_WAREHOUSE_URL": f"file://{folder}/warehouse",
            "TIDEMARK_CATALOG_URL": f"sqlite:///{folder}/catalog.db",
            # A session remembers a catalog by its name, even with other settings.
            "TIDEMARK_CATALOG_NAME": f"lake_{uuid.uuid4().hex[:8]}",
            "TIDEMARK_PROJECTS": PROJECT,
            "TIDEMARK_CALENDAR_START": "2026-01-01",
            "TIDEMARK_SPARK_MASTER": "local[2]",
            "TIDEMARK_SPARK_DRIVER_MEMORY": "1g",
            "TIDEMARK_SPARK_CONFIG": json.dumps(dict(spark_config)),
            "DAGSTER_HOME": str(folder / "home"),
        }

    def deliver(self, day: date, body: bytes, project: str = PROJECT, hour: int = 10) -> None:
        key = KeyGrammar(Settings().marker_pattern).format_delivery(BatchKey(Source.REGULAR, project, day), hour, 1)
        (self.landing / project).mkdir(exist_ok=True)
        (self.landing / key).write_bytes(body)

    def __call__(self, *words: str, **environment: str) -> Done:
        command = [str(Path(sys.executable).parent / "tidemark"), *words]
        return subprocess.run(
            command, env={**self.environment, **environment}, capture_output=True, text=True, check=False, timeout=300
        )

    def must(self, *words: str, **environment: str) -> Done:
        done = self(*words, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done


class InThisProcess(Shell):
    """The same commands in this process and session, where a process and a JVM for each would show nothing more."""

    def __call__(self, *words: str, **environment: str) -> Done:
        done = CliRunner().invoke(app, words, env={**self.environment, **environment})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def commands(*first: str, **base: str) -> Callable[..., Any]:
    """`tidemark` in this process: always with these first words and these variables."""
    return lambda *words, **environment: CliRunner().invoke(app, [*first, *words], env=base | environment)


class OfPipeline(InThisProcess):
    """Commands on a pipeline's tables, with its settings at each call."""

    def __init__(self, p: Any, home: Path | None = None, **environment: str) -> None:
        self.p, self.landing, self._own = p, p.landing, environment
        self.home = home or p.landing.parent / "home"
        self.home.mkdir(exist_ok=True)

    def __call__(self, *words: str, **environment: str) -> Done:
        settings = as_environment(self.p.settings) | {"DAGSTER_HOME": str(self.home)}
        self.environment = {**os.environ, **settings, **self._own}
        return super().__call__(*words, **environment)


class InOneProcess(Shell):
    """All commands in one process beside this one, on its JVM, with further tables."""

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start it with the present environment; it ends with its use."""
        environment = self.environment | gateway_variables()
        with closing(Hand("tests.support.commands", environment=environment)) as self._hand:
            yield

    def __call__(self, *words: str, **environment: str) -> Done:
        assert not environment
        told = self._hand.ask(words)
        return subprocess.CompletedProcess(words, told["code"], told["stdout"], told["stderr"])

    @property
    def said(self) -> str:
        """The commands' progress, which goes to the terminal itself."""
        return self._hand.said()
