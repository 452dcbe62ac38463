"""Reconciliations, recoveries and rollbacks in Dagster: config, metadata, checks, failures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.events import standing_events
from pipeline_assets.orchestration.operation_job import RECONCILE_JOB, RECONCILE_OP, RECOVER_JOB, RECOVER_OP
from pipeline_assets.tables.events import REFINED_EVENTS
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.export_api import Answer, Vendor, a_vendor

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


class Deployment:
    def __init__(self, folder: Path, vendor: Vendor, instance: dg.DagsterInstance) -> None:
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.vendor, self.instance = vendor, instance
        self.settings = Settings(
            landing_url=str(self.landing), warehouse_url=str(folder / "warehouse"), catalog_url=f"sqlite:///{folder}/c.db",
            projects=(PROJECT,), export_min_free_bytes=0, export_attempts=1,
        )  # fmt: skip

    def run(self, **config: Any) -> dg.ExecuteInProcessResult:
        job = build_defs(self.settings, clock=Clock(datetime(2026, 2, 10, tzinfo=UTC))).resolve_job_def(RECOVER_JOB)
        span = {"from": f"{DAY}T04", "to": f"{DAY}T05", "projects": [PROJECT]}
        run_config = {"ops": {RECOVER_OP: {"config": span | config}}}
        return job.execute_in_process(run_config=run_config, instance=self.instance, raise_on_error=False)

    def names(self) -> set[str]:
        return {path.name for path in self.landing.rglob("*") if path.is_file()}


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    with a_vendor(PROJECT) as vendor, dg.DagsterInstance.ephemeral() as instance:
        for name, value in vendor.environment().items():
            monkeypatch.setenv(name, value)
        vendor.add(PROJECT, Hour(DAY, 4), a_body(events_on(DAY, 3)))
        yield Deployment(tmp_path, vendor, instance)


def _shown(result: dg.ExecuteInProcessResult) -> str:
    (output,) = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return str(output.step_output_data.metadata["hours"].value)


def _failure(result: dg.ExecuteInProcessResult) -> str:
    (step,) = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    data: Any = step.event_specific_data
    return str(data.user_failure_data.description if data.user_failure_data else data.error)


def test_a_run_recovers_and_shows_the_hours(deployment: Deployment) -> None:
    planned = deployment.run(dry_run=True)
    assert planned.success
    assert "| 10001 | 2026-02-02 | 4–5 | missing | fetches them |" in _shown(planned)
    assert (deployment.vendor.asked, deployment.names()) == ([], set())

    done = deployment.run()
    assert done.success
    assert "| 10001 | 2026-02-02 | 4 | recovered | 1 |" in _shown(done)
    assert "| 10001 | 2026-02-02 | 5 | no data |" in _shown(done)
    stem = f"{PROJECT}-backfill_{DAY}"
    assert deployment.names() == {f"{stem}_4#0.json.gz", f"{stem}_4_complete", f"{stem}_5_complete"}


def test_a_run_fails_with_the_sentence_of_what_is_not_recovered(deployment: Deployment) -> None:
    deployment.vendor.always(Answer(403, b"no"))
    refused = deployment.run()
    assert not refused.success
    lost = "2 of 2 hours are not recovered: export of 10001, 2026-02-02T04 to 2026-02-02T05: the"
    assert _failure(refused).startswith(lost)
    assert "Check TIDEMARK_EXPORT_KEY_10001" in _failure(refused)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_dagster_tries_again_what_time_can_heal(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Twice at most; then the run fails with its sentence."""
    monkeypatch.setattr("pipeline_assets.orchestration.operation_job._RETRY_SECONDS", 0)
    deployment.vendor.fail(*[Answer(503, b"busy")] * failures)
    done = deployment.run()
    again = [event for event in done.all_events if event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY]
    assert (done.success, len(again)) == (failures < 3, min(failures, 2))
    assert len(deployment.vendor.asked) == min(failures + 1, 3)
    if not done.success:
        assert _failure(done).startswith("2 of 2 hours are not recovered: export of 10001")
        assert "503" in _failure(done)


def test_bad_config_fails_with_its_fix(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is neither a day nor an hour" in _failure(deployment.run(**{"from": "soon"}))
    assert "names no range" in _failure(deployment.run(**{"from": ""}))
    monkeypatch.delenv("TIDEMARK_EXPORT_KEY_10001")
    assert "TIDEMARK_EXPORT_KEY_10001: is not set" in _failure(deployment.run())


def _no_engine() -> None:
    raise AssertionError("telling Dagster starts no Spark")


def test_a_day_may_be_rolled_back_again_and_each_time_dagster_is_told(
    settings: Settings, ledger: Ledger, instance: dg.DagsterInstance
) -> None:
    """Scenario: two runs roll the same day back, with a release between. Outcome: the day's check shows both."""
    key, passed = Slice(DAY, PROJECT), (Evaluation(Check.UNIQUE_EVENT_KEY, True),)
    record = SliceRecord(REFINED_EVENTS.key, key, Verdict.PUBLISHED, digest=Digest(60, 1, 1), evaluations=passed)
    ledger.record(Changes(slices=[record]), "load")
    lakehouse = Lakehouse(_no_engine, "lake")  # type: ignore[arg-type]
    runtime = Runtime(lakehouse, ledger, LandingStore.from_settings(settings), settings)

    @dg.op
    def tell(context):
        yield from standing_events(context.instance, runtime, [(REFINED_EVENTS.key, DAY)])
        yield dg.Output(None)

    @dg.job
    def telling() -> None:
        tell()

    for number in (1, 2):
        if number == 1:
            ledger.interventions.hold({REFINED_EVENTS.key: [key]}, "it was wrong", "run-1")
        assert telling.execute_in_process(instance=instance).success, f"run {number}"
    check = dg.AssetCheckKey(dg.AssetKey(REFINED_EVENTS.key.split("/")), Check.UNIQUE_EVENT_KEY.name)
    history = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
    assert len({one.run_id for one in history}) == 2
