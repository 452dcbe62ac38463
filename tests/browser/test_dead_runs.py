"""Dead processes are noticed and their load is done again: a run's process alone, then everything at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from resources.failpoints import SIGNAL_FILE_VARIABLE, VARIABLE, Failpoint
from tests.browser.deployment import PROJECTS, Deployment, a_day
from tests.support.builders import events_on

pytestmark = pytest.mark.slow
FREE_WITHIN_SECONDS = 120
_STEPS = """
{ runOrError(runId: "%s") { ... on Run { eventConnection { events { __typename ... on MessageEvent { message } } } } } }
"""


def process_of(deployment: Deployment, run_id: str) -> int:
    events = deployment.ask(_STEPS % run_id)["runOrError"]["eventConnection"]["events"]
    (told,) = [event["message"] for event in events if "Started process for run (pid: " in event.get("message", "")]
    return int(told.rpartition("(pid: ")[2].rstrip(")."))


def wait_until_paused(deployment: Deployment, paused: Path, known: set[str]) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        running = [run for run in deployment.runs() if run["status"] == "STARTED" and run["runId"] not in known]
        return running[0] if running and paused.exists() else None

    run: dict[str, Any] = deployment.wait("a load is in the middle of its work", found, 300)
    return run


def test_a_load_that_dies_is_done_again_with_nobody_helping(tmp_path: Path, is_full: bool) -> None:
    """Scenario: in mid-load everything is killed (in full, before that an earlier try's process alone) and started again.
    Outcome: it is a failed run within two minutes, and the day is loaded."""
    day, paused = a_day(1), tmp_path / "paused"
    armed = {VARIABLE: f"{Failpoint.AFTER_PIN}:refined/events", SIGNAL_FILE_VARIABLE: str(paused)}
    deployment = Deployment(tmp_path, day, {"TIDEMARK_SENSORS_RUNNING": "true", **armed})
    for project in PROJECTS:
        deployment.deliver(day, events_on(day, 3, app=int(project)), project=project)
        deployment.mark(day, project=project)
    with deployment:
        run = wait_until_paused(deployment, paused, set())
        if is_full:
            paused.unlink()
            os.kill(process_of(deployment, run["runId"]), signal.SIGKILL)
            run = wait_until_paused(deployment, paused, {run["runId"]})
        deployment.kill()
    del deployment.settings_changed[VARIABLE]
    with deployment:
        started = time.time()

        def dead() -> dict[str, Any] | None:
            return next((one for one in deployment.runs() if one["runId"] == run["runId"] and one["endTime"]), None)

        found = deployment.wait("the load that died with everything is a failed run", dead, FREE_WITHIN_SECONDS)
        print(f"reported {found['endTime'] - started:.0f} s after the webserver answered")
        assert found["status"] == "FAILURE"
        loaded = dict.fromkeys(PROJECTS, 3)
        deployment.wait("the day is loaded", lambda: deployment.rows("refined/events", day) == loaded, 300)
        statuses = {"FAILURE", "SUCCESS"}
        deployment.wait("the runs end", lambda: {one["status"] for one in deployment.runs()} == statuses, 120)
