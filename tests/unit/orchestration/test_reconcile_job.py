"""The job `reconcile` reports differences to Dagster, and starts no Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.operation_job import RECONCILE_JOB, RECONCILE_OP
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.builders import PROJECT

DAY = date(2026, 2, 2)
NOW = datetime(2026, 2, 10, tzinfo=UTC)


@pytest.mark.usefixtures("spark")  # an empty catalog starts an engine: not a large one, which later tests would keep
def test_the_job_turns_the_check_yellow_and_green_again(
    settings: Settings, ledger: Ledger, instance: dg.DagsterInstance
) -> None:
    """Scenario: a difference, within tolerance, bad lines, no totals. Outcome: run and check name each fault."""
    record = SliceRecord("refined/events", Slice(DAY, PROJECT), Verdict.PUBLISHED, digest=Digest(60, 1, 1))
    ledger.record(Changes(slices=[record]), "run")

    def run(**changes: Any) -> tuple[bool, str]:
        job = build_defs(settings.model_copy(update=changes), clock=Clock(NOW)).resolve_job_def(RECONCILE_JOB)
        ops = {RECONCILE_OP: {"config": {"to": "2026-02-05"}}}
        done = job.execute_in_process(run_config={"ops": ops}, instance=instance, raise_on_error=False)
        failures = [event.event_specific_data for event in done.all_events if event.is_step_failure]
        told = [str(one.user_failure_data.description if one.user_failure_data else one.error) for one in failures]  # type: ignore[union-attr]
        return done.success, "".join(told)

    assert run() == (True, "")
    file = Path(settings.landing_url) / "golden" / f"{DAY}.csv"
    file.parent.mkdir()
    file.write_text(f"day,project,measure,value\n{DAY},{PROJECT},rows,61\n")
    assert run() == (False, "2026-02-02/10001 refined/events: rows 60 published, 61 golden (-1, 1.64%)")
    assert run(golden_absolute_tolerance=1.0) == (True, "")
    file.write_text(f"day,project,measure,value\n{DAY},{PROJECT},rows,60\n{DAY},{PROJECT},rows\n")
    is_good, told = run()
    assert not is_good
    assert told.startswith("not compared: golden/2026-02-02.csv line 3: has not the four fields of the header")
    key = dg.AssetCheckKey(dg.AssetKey(["refined", "events"]), "reconciles_with_golden")
    seen = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    evaluations = [one.event.dagster_event.asset_check_evaluation_data for one in seen if one.event is not None]  # type: ignore[union-attr]
    assert [one.passed for one in evaluations] == [True, True, False]
    assert {one.partition for one in evaluations} == {str(DAY)}
