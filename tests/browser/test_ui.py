"""An operator in Dagster's UI: a range with a red day, its recovery, a single day, an arrival, a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pipeline_assets.tables.registry import ASSET_TABLES
from tests.browser.deployment import GROUP, PROJECTS, Deployment, a_day, launch
from tests.support.builders import events_on

pytestmark = pytest.mark.slow
SENSOR = "/locations/tidemark/sensors/regular_exports_arrived"


def load_from_the_group_page(page: Any, deployment: Deployment, partitions: str) -> dict[str, Any]:
    """*Materialize all…* over days; returns the ended run."""
    known = deployment.runs()
    launch(page, GROUP, partitions)
    # On a slow machine a sensor may launch its own run beside it.
    (run,) = [run for run in deployment.wait_for_new_runs(known) if "dagster/sensor_name" not in run["tags"]]
    return run


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


def test_a_range_with_a_red_day_is_loaded_understood_and_recovered(
    page: Any, deployment: Deployment, picture: Callable[[str], None]
) -> None:
    """Scenario: three days are loaded from the group page, one with a cut object, which is delivered again.
    Outcome: one run gives two green days and one red, with reason and cure one click away; then all is green."""
    first, bad, last = a_day(6), a_day(5), a_day(4)
    for number, day in enumerate((first, bad, last)):
        deployment.deliver_hours(day, events=12 + 4 * number, cut=day == bad)
    run = load_from_the_group_page(page, deployment, f"[{first}...{last}]")
    assert run["status"] == "FAILURE"
    seen = boxes(page)
    picture("range_with_a_red_day")
    for name in ("regular_events", "events", "daily_revenue", "event_counts", "active_users"):
        assert "(1 failed)" in seen[name], seen
    assert "failed" not in seen["backfill_events"]

    page.goto(f"/assets/raw/regular_events?view=partitions&partition={bad}")
    page.get_by_text("Materialized (2)").wait_for()
    page.get_by_role("button", name="View logs").click()
    name, hint = f"{PROJECTS[-1]}_{bad}_11#1.json.gz", "Have the vendor export that hour again"
    cut = re.compile(rf"{name}: truncated_gzip, ends after \d+ decompressed bytes\. {hint}")
    page.get_by_text(cut).first.wait_for()

    checks_of_days(page, "raw/regular_events", "delivery_reconciles")
    page.locator(f"text={bad} >> visible=true").last.click()
    page.get_by_text(cut).wait_for()
    picture("reason_of_a_red_day")

    deployment.deliver_hours(bad, events=16)
    known = deployment.runs()
    page.goto(f"/runs/{run['runId']}")
    page.get_by_role("button", name="Re-execute all").first.click()
    # Dagster asks for confirmation once the run's backfill has ended.
    confirm, is_launched = page.get_by_role("button", name="Confirm"), page.get_by_text("ROOT", exact=True)
    confirm.or_(is_launched).first.wait_for()
    if confirm.is_visible():
        confirm.click()
    (again,) = deployment.wait_for_new_runs(known)
    assert again["status"] == "SUCCESS"
    seen = boxes(page)
    assert not [name for name, text in seen.items() if "failed" in text]
    for day, events in ((first, 48), (bad, 64), (last, 80)):
        assert deployment.rows("refined/events", day) == dict.fromkeys(PROJECTS, events)

    checks_of_days(page, "refined/events", "change_is_explained")
    page.get_by_text("Failed (0)", exact=True).wait_for()
    page.get_by_role("tab", name="Overview").last.click()
    page.get_by_text("rows_after").last.wait_for()
    page.locator("canvas >> visible=true").first.wait_for()
    picture("figures_of_a_check")


def test_a_single_day_is_loaded_from_the_group_page(page: Any, deployment: Deployment) -> None:
    day = a_day(3)
    deployment.deliver_hours(day, events=5)
    assert load_from_the_group_page(page, deployment, str(day))["status"] == "SUCCESS"
    for table in ASSET_TABLES:
        page.goto(f"/assets/{table.key}?view=partitions&partition={day}")
        page.get_by_text("Materialized", exact=True).last.wait_for()
        page.get_by_text(re.compile("10001: (published|unchanged)")).wait_for()
    page.goto(f"/assets/refined/events?view=partitions&partition={day}")
    page.get_by_text("dagster/partition_row_count").wait_for()
    page.get_by_text("40", exact=True).first.wait_for()


def test_a_marker_in_landing_turns_a_day_green(
    page: Any, deployment: Deployment, picture: Callable[[str], None]
) -> None:
    """Scenario: with the sensor on, hours arrive without markers, then with them.
    Outcome: it names the missing ones, then launches one run; the source asset shows the deliveries."""
    day = a_day(1)
    page.goto(SENSOR)
    page.locator("label:has(input[type=checkbox])").last.click()
    for project in PROJECTS:
        deployment.deliver(day, events_on(day, 6, prefix=project, app=int(project)), hour=9, project=project)
    deployment.wait(
        "the sensor waits for the hours", lambda: f"{day}: hours 9 are not complete" in deployment.said(), 240
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
