"""An operator's deployment: landing, tables and Dagster's webserver and daemon, started by `tidemark dev`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.drill.sandbox import kill_session
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from resources.ledger.store import Ledger
from tests.support.builders import LandingFolder, events_on
from tests.support.ports import a_free_port
from tests.support.small_spark import FIRST_COMPILER, small_config

PROJECTS = ("10001", "10002")
GROUP = "/locations/tidemark/asset-groups/events/lineage"
# Without the tests' class path: the session gets the jars as in production.
_SMALL = small_config(FIRST_COMPILER)
_START_SECONDS, _RUN_SECONDS = 180, 400
_ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
_RUNS = """
{ runsOrError(limit: 500) { ... on Runs { results {
    runId status jobName creationTime startTime endTime tags { key value }
} } } }
"""
_TICKS = """
{ sensorOrError(sensorSelector: {
    repositoryName: "__repository__", repositoryLocationName: "tidemark", sensorName: "regular_exports_arrived"
}) { ... on Sensor { sensorState { ticks(limit: 20) { status skipReason } } } } }
"""


@dataclass
class Deployment(LandingFolder):
    folder: Path
    calendar_start: date
    settings_changed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.landing = self.folder / "landing"
        self.landing.mkdir(parents=True)
        self.grammar = KeyGrammar(Settings().marker_pattern)
        self.port = a_free_port()
        self.log = self.folder / "dev.log"
        self._process: subprocess.Popen[bytes] | None = None

    def deliver_hours(self, day: date, *, events: int, cut: bool = False) -> None:
        """Four hours of a day for both projects, with all markers; the last object may be cut."""
        for project in PROJECTS:
            for hour in range(8, 12):
                is_cut = cut and (project, hour) == (PROJECTS[-1], 11)
                lines = events_on(day, events, prefix=f"{project}-{hour}", app=int(project))
                self.deliver(day, lines, hour=hour, project=project, truncated=is_cut)
            self.mark(day, project=project)

    @property
    def session(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """An operator's variables before `make dev` or `tidemark`."""
        return {
            **os.environ,
            "PORT": str(self.port),
            "DAGSTER_HOME": str(self.folder / "dagster_home"),
            "TIDEMARK_LANDING_URL": str(self.landing),
            "TIDEMARK_WAREHOUSE_URL": str(self.folder / "warehouse"),
            "TIDEMARK_CATALOG_URL": f"sqlite:///{self.folder}/catalog.db",
            "TIDEMARK_PROJECTS": ",".join(PROJECTS),
            "TIDEMARK_CALENDAR_START": self.calendar_start.isoformat(),
            "TIDEMARK_SPARK_MASTER": "local[2]",
            "TIDEMARK_SPARK_DRIVER_MEMORY": "1g",
            "TIDEMARK_SPARK_CONFIG": json.dumps(_SMALL),
            **self.settings_changed,
        }

    def kill(self) -> None:
        """SIGKILL to webserver, daemon, code servers, runs and their JVMs."""
        assert self._process is not None
        kill_session(self._process)
        self._process = None

    def __enter__(self) -> Self:
        """Returns when the webserver knows the assets."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline_assets.cli", "dev"],
                cwd=PROJECT_ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.wait("the webserver answers", self._is_up, _START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _is_up(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(self.log.read_text()[-3000:])
        try:
            found = self.ask("{ assetNodes { id } }")
        except OSError:
            return False
        return bool(found and found["assetNodes"])

    def ask(self, query: str) -> Any:
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"content-type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def runs(self) -> list[dict[str, Any]]:
        """All runs, the oldest first; tags as a dict."""
        found = self.ask(_RUNS)["runsOrError"]["results"]
        for run in found:
            run["tags"] = {tag["key"]: tag["value"] for tag in run["tags"]}
        return sorted(found, key=lambda run: run["creationTime"])

    def wait_for_new_runs(self, known: list[dict[str, Any]], count: int = 1) -> list[dict[str, Any]]:
        """The runs launched since `runs()` gave `known`, the oldest first, when so many have ended."""
        before = {run["runId"] for run in known}

        def ended() -> list[dict[str, Any]]:
            new = [run for run in self.runs() if run["runId"] not in before]
            return new if len(new) >= count and all(run["status"] in _ENDED for run in new) else []

        return list(self.wait(f"{count} runs end", ended, count * _RUN_SECONDS))

    def wait(self, what: str, found: Callable[[], Any], seconds: int) -> Any:
        """The first true answer; fails with the end of the log."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer = found()
            if answer:
                return answer
            time.sleep(1)
        raise AssertionError(f"waited {seconds} s in vain until {what}:\n{self.log.read_text()[-3000:]}")

    def rows(self, table: str, day: date) -> dict[str, int]:
        """Project -> rows of a published slice, by the ledger."""
        if not (self.folder / "catalog.db").exists():
            return {}
        with closing(Ledger(f"sqlite:///{self.folder}/catalog.db")) as ledger:
            return {key.project_id: one.digest.rows for key, one in ledger.slices(table, PROJECTS, [day]).items()}

    def said(self) -> str:
        """Messages of the regular sensor's last evaluations, the newest first."""
        found = self.ask(_TICKS)["sensorOrError"]["sensorState"]["ticks"]
        return "\n".join(tick["skipReason"] or tick["status"] for tick in found)


def a_day(back: int) -> date:
    return datetime.now(UTC).date() - timedelta(days=back)


def launch(page: Any, path: str, partitions: str) -> None:
    """*Materialize all…* on the page of a group or job, over a day or `[first...last]`."""
    page.goto(path)
    page.get_by_role("button", name="Materialize all").first.click()
    days = page.locator("input[placeholder*='partition' i], input[placeholder^='ex:']").last
    confirm = page.get_by_role("button", name="Confirm")
    confirm.or_(days).first.wait_for()
    # Dagster warns of an upstream asset without partitions: recovery exports that were never needed.
    if confirm.is_visible():
        confirm.click()
    days.wait_for()
    everything = page.get_by_text("Show all partitions")
    if everything.is_visible():
        everything.click()
        everything.wait_for(state="hidden")
    days.fill(partitions)
    days.press("Enter")
    button = page.get_by_role("button", name=re.compile("^Launch"))
    button.click()
    button.wait_for(state="hidden")
