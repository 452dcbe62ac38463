"""An operator in Dagster's UI: a range with a red day, its recovery, an arrival, a death, a page."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from pipeline_assets.tables.registry import ASSET_TABLES
from tests.browser.deployment import BAD, GROUP, PAUSING_HOUR, PROJECTS, Deployment, a_day, launch, leave
from tests.support.builders import events_on

pytestmark = pytest.mark.slow
JOB = "/locations/tidemark/jobs/daily_load"
SENSOR = "/locations/tidemark/sensors/regular_exports_arrived"
FREE_WITHIN_SECONDS = 120
_STEPS = """
{ runOrError(runId: "%s") { ... on Run { eventConnection { events { __typename ... on MessageEvent { message } } } } } }
"""


def runs_of_a_range_and_a_day(
    page: Any, deployment: Deployment, partitions: str, day: date
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Launch a range of two chunks on the group's page; while the first runs, the daily load of a day on its job's page.

    Returns the runs of the range, which began before and after the daily one, and that one.
    """
    known = deployment.runs()
    launch(page, deployment, GROUP, partitions)
    deployment.wait("the first chunk runs", lambda: any(run["startTime"] for run in deployment.runs()), 300)
    launch(page, deployment, JOB, str(day))
    waiting = {
        run["runId"] for run in deployment.runs() if run["status"] == "QUEUED" and run["jobName"] != "daily_load"
    }
    assert waiting
    runs = deployment.wait_for_new_runs(known, count=3)
    # On a slow machine a sensor may launch its own run beside it.
    (daily,) = [run for run in runs if run["jobName"] == "daily_load" and "dagster/sensor_name" not in run["tags"]]
    chunks = sorted((run for run in runs if run["jobName"] != "daily_load"), key=lambda run: run["startTime"])
    assert [run["runId"] for run in chunks if run["startTime"] > daily["startTime"]] == list(waiting)
    return chunks, daily


def shows_a_day(page: Any, day: date, rows: int) -> None:
    for table in ASSET_TABLES:
        page.goto(f"/assets/{table.key}?view=partitions&partition={day}")
        page.get_by_text("Materialized", exact=True).last.wait_for()
        page.get_by_text(re.compile("10001: (published|unchanged)")).wait_for()
    page.goto(f"/assets/refined/events?view=partitions&partition={day}")
    page.get_by_text("dagster/partition_row_count").wait_for()
    page.get_by_text(str(rows), exact=True).first.wait_for()


def boxes(page: Any) -> dict[str, str]:
    page.goto(GROUP)
    page.get_by_text(re.compile("[1-9][0-9]*% filled")).first.wait_for()
    page.wait_for_load_state("networkidle")
    found = {}
    for table in ASSET_TABLES:
        # The last: the group has an asset's name, and its title lies around all boxes.
        box = page.locator(f"xpath=//*[text()='{table.name}']/ancestor::*[contains(., '% filled')][1]").last
        found[table.name] = box.inner_text()
        assert found[table.name].count("% filled") == 1
    return found


def checks_of_days(page: Any, asset: str, check: str) -> None:
    page.goto(f"/assets/{asset}?view=checks&checkDetail={check}")
    page.get_by_text("Execution history").wait_for()
    page.get_by_role("tab", name="Partitions").last.click()
    page.get_by_text(re.compile("Passed \\(")).wait_for()


def process_of(deployment: Deployment, run_id: str) -> int:
    events = deployment.ask(_STEPS % run_id)["runOrError"]["eventConnection"]["events"]
    (told,) = [event["message"] for event in events if "Started process for run (pid: " in event.get("message", "")]
    return int(told.rpartition("(pid: ")[2].rstrip(")."))


def wait_until_paused(deployment: Deployment, known: set[str]) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        running = [run for run in deployment.runs() if run["status"] == "STARTED" and run["runId"] not in known]
        return running[0] if running and deployment.paused.exists() else None

    run: dict[str, Any] = deployment.wait("a load is in the middle of its work", found, 300)
    return run


def dies_with_everything(deployment: Deployment, known: list[dict[str, Any]], *, is_full: bool) -> None:
    """The new run is killed in mid-load with webserver and daemon (in full, before that an earlier try's process alone),
    which are started again: it is a failed run within two minutes, and another loads its days."""
    before = {run["runId"] for run in known}
    run = wait_until_paused(deployment, before)
    if is_full:
        deployment.paused.unlink()
        os.kill(process_of(deployment, run["runId"]), signal.SIGKILL)
        run = wait_until_paused(deployment, {*before, run["runId"]})
    deployment.kill()
    deployment.settings_changed = {}
    deployment.start()
    started = time.time()

    def dead() -> dict[str, Any] | None:
        return next((one for one in deployment.runs() if one["runId"] == run["runId"] and one["endTime"]), None)

    found = deployment.wait("the load that died with everything is a failed run", dead, FREE_WITHIN_SECONDS)
    print(f"reported {found['endTime'] - started:.0f} s after the webserver answered")
    assert found["status"] == "FAILURE"
    (*_, again) = deployment.wait_for_new_runs(known, count=2)
    assert again["status"] == "SUCCESS"


def test_a_range_with_a_red_day_is_overtaken_understood_and_recovered_whatever_dies(
    page: Any, deployment: Deployment, picture: Callable[[str], None], is_full: bool
) -> None:
    """Scenario: four days are loaded from the group page, one with a cut object; while the first chunk runs, `daily_load` of
    another day is launched. The object is delivered again; while that is loaded, everything is killed and started again.
    Outcome: the day's load starts before the second chunk; one run gives two green days and one red, with reason and cure
    one click away; then all is green, with nobody helping."""
    first, bad, last, single = a_day(7), a_day(BAD), a_day(4), a_day(3)
    days = {first: 12, bad: 16, a_day(5): 20, last: 8, single: 5}
    for day, events in days.items():
        deployment.deliver_hours(day, events=events, cut=day == bad)
    (run, other), daily = runs_of_a_range_and_a_day(page, deployment, f"[{first}...{last}]", single)
    assert [one["status"] for one in (run, other, daily)] == ["FAILURE", "SUCCESS", "SUCCESS"]
    seen = boxes(page)
    picture("range_with_a_red_day")
    for name in ("regular_events", "events", "daily_revenue", "event_counts", "active_users"):
        assert "(1 failed)" in seen[name], seen
    assert "failed" not in seen["backfill_events"]

    page.goto(f"/assets/raw/regular_events?view=partitions&partition={bad}")
    page.get_by_text("Materialized (4)").wait_for()
    page.get_by_role("button", name="View logs").click()
    name, hint = f"{PROJECTS[-1]}_{bad}_11#1.json.gz", "Have the vendor export that hour again"
    cut = re.compile(rf"{name}: truncated_gzip, ends after \d+ decompressed bytes\. {hint}")
    page.get_by_text(cut).first.wait_for()

    checks_of_days(page, "raw/regular_events", "delivery_reconciles")
    page.locator(f"text={bad} >> visible=true").last.click()
    page.get_by_text(cut).wait_for()
    picture("reason_of_a_red_day")

    shows_a_day(page, single, 40)

    deployment.deliver_hours(bad, events=16)
    deployment.deliver(
        bad, events_on(bad, 1, prefix="again", app=int(PROJECTS[0])), hour=PAUSING_HOUR, project=PROJECTS[0]
    )
    known = deployment.runs()
    page.goto(f"/runs/{run['runId']}")
    page.get_by_role("button", name="Re-execute all").first.click()
    # Dagster asks for confirmation once the run's backfill has ended.
    confirm, is_launched = page.get_by_role("button", name="Confirm"), page.get_by_text("ROOT", exact=True)
    confirm.or_(is_launched).first.wait_for()
    if confirm.is_visible():
        confirm.click()
        is_launched.wait_for()
    leave(page)
    dies_with_everything(deployment, known, is_full=is_full)
    seen = boxes(page)
    assert not [name for name, text in seen.items() if "failed" in text]
    for day, events in days.items():
        more = {PROJECTS[0]: 4 * events + 1} if day == bad else {}
        assert deployment.rows("refined/events", day) == dict.fromkeys(PROJECTS, 4 * events) | more

    checks_of_days(page, "refined/events", "change_is_explained")
    page.get_by_text("Failed (0)", exact=True).wait_for()
    page.get_by_role("tab", name="Overview").last.click()
    page.get_by_text("rows_after").last.wait_for()
    page.locator("canvas >> visible=true").first.wait_for()
    picture("figures_of_a_check")


def test_a_marker_in_landing_turns_a_day_green(
    page: Any, deployment: Deployment, picture: Callable[[str], None]
) -> None:
    """Scenario: with the sensor on, hours arrive without markers, then with them.
    Outcome: it names the missing ones, then launches one run; the source asset shows the deliveries."""
    day = a_day(1)
    page.goto(SENSOR)
    page.locator("label:has(input[type=checkbox])").last.click()
    deployment.wait("the sensor is on", lambda: deployment.sensor()[0] == "RUNNING", 60)
    leave(page)
    for project in PROJECTS:
        deployment.deliver(day, events_on(day, 6, prefix=project, app=int(project)), hour=9, project=project)
    deployment.wait(
        "the sensor waits for the hours", lambda: f"{day}: hours 9 are not complete" in deployment.sensor()[1], 240
    )
    for project in PROJECTS:
        deployment.mark(day, project=project, hours=[9])
    deployment.wait(
        "the day is published", lambda: deployment.rows("refined/events", day) == dict.fromkeys(PROJECTS, 6), 400
    )
    (run,) = [run for run in deployment.runs() if f"{day}: new hours: 1" in run["tags"].get("tidemark/reason", "")]
    assert run["tags"]["dagster/sensor_name"] == "regular_exports_arrived"
    deployment.wait(
        "the run ends well",
        lambda: ("SUCCESS", run["runId"]) in {(one["status"], one["runId"]) for one in deployment.runs()},
        120,
    )
    page.goto(SENSOR)
    page.get_by_text("1 run requested").first.wait_for()
    page.get_by_role("button", name="View logs").first.wait_for()
    page.wait_for_load_state("networkidle")
    picture("sensor")
    page.goto(f"/assets/landing/regular_exports?view=partitions&partition={day}")
    page.get_by_text("hours_complete").wait_for()
    page.goto(f"/assets/aggregates/event_counts?view=partitions&partition={day}")
    page.get_by_text("Materialized", exact=True).last.wait_for()


def test_an_asset_says_what_it_is_whose_it_is_and_how_to_recover_it(page: Any) -> None:
    """Outcome: a row's meaning, the columns, the table's place, its owner, and the remedy for a red day."""
    page.goto("/assets/aggregates/daily_revenue?view=overview")
    for text in (
        "Revenue, purchases and paying users per day, project and currency.",
        "When a day is red:",
        "To load a day again:",
        "users that the vendor merged count twice",
        "lake.aggregates.daily_revenue",
        "data-engineering",
    ):
        page.get_by_text(text).first.wait_for()
    page.goto("/assets/landing/backfill_exports?view=overview")
    page.get_by_text("To recover a day:").wait_for()
