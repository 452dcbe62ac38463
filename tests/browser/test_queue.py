"""A daily load waits only for the running chunk of a long backfill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.deployment import GROUP, Deployment, a_day, launch

pytestmark = pytest.mark.slow
JOB = "/locations/tidemark/jobs/daily_load"


@pytest.fixture(scope="module")
def days(is_full: bool) -> tuple[int, int]:
    return (200, 30) if is_full else (4, 2)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, days: tuple[int, int]) -> Iterator[Deployment]:
    total, chunk = days
    folder = tmp_path_factory.mktemp("queue")
    with Deployment(folder, a_day(total + 4), {"TIDEMARK_DAYS_PER_RUN": str(chunk)}) as made:
        yield made


def test_a_daily_load_overtakes_a_running_backfill(page: Any, deployment: Deployment, days: tuple[int, int]) -> None:
    """Scenario: a range is backfilled; while its first chunk runs, `daily_load` of yesterday is launched.
    Outcome: it starts before any further chunk, and all of them end well."""
    total, chunk = days
    first, last, yesterday = a_day(total + 4), a_day(5), a_day(1)
    for back in (*range(5, total + 5), 1):
        deployment.deliver_hours(a_day(back), events=3)
    launch(page, GROUP, f"[{first}...{last}]")
    deployment.wait("the first chunk runs", lambda: any(run["startTime"] for run in deployment.runs()), 300)
    launch(page, JOB, str(yesterday))
    deployment.wait(
        "the daily load is queued", lambda: [one for one in deployment.runs() if one["jobName"] == "daily_load"], 60
    )
    queued = {run["runId"] for run in deployment.runs() if run["status"] == "QUEUED" and run["jobName"] != "daily_load"}
    assert queued
    runs = deployment.wait_for_new_runs([], count=-(-total // chunk) + 1)
    origin = min(run["creationTime"] for run in runs)
    for run in sorted(runs, key=lambda run: run["startTime"]):
        tags, times = run["tags"], [run[name] - origin for name in ("creationTime", "startTime", "endTime")]
        covers = tags.get("dagster/partition") or tags["dagster/asset_partition_range_start"]
        print(
            f"{run['jobName']:12} {covers}  queued {times[0]:6.0f} s  started {times[1]:6.0f} s  ended {times[2]:6.0f} s"
        )
    (daily,) = [run for run in runs if run["jobName"] == "daily_load"]
    assert all(run["startTime"] > daily["startTime"] for run in runs if run["runId"] in queued)
    assert {run["status"] for run in runs} == {"SUCCESS"}
