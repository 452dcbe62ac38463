"""Runs whose process died are reported to Dagster: ours alone, and once."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin as Location
from dagster._core.remote_origin import RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from pipeline_assets.cli.inspect import process_lines
from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.processes import LOOK_SECONDS, PATIENT_LOOKS, STILL_LOOKS, Identity
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.settings import Settings
from pipeline_assets.orchestration.live_runs import DIED_TAG, OWN_JOBS, liveness, report_dead_runs, under_way
from pipeline_assets.orchestration.sensor_requests import died_on
from pipeline_assets.orchestration.specs import RANGE_END, RANGE_START
from resources.ledger import processes as this_process
from resources.ledger.schema import PROCESSES
from resources.ledger.store import Ledger

SETTINGS = Settings(projects=("1",))
STARTED, CANCELING = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING
ELSEWHERE = Identity("other", "another boot", 4711, 99)
HERE = Location(LoadableTargetOrigin(module_name="pipeline_assets.definitions"), "tidemark")


@dg.asset
def of_others() -> None:
    """Somebody else's."""


def a_dead_process() -> Identity:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return replace(this_process.identity(), pid=child.pid)


def a_run(instance: dg.DagsterInstance, job: str = "daily_load", status: Any = STARTED, *, is_ours: bool = True) -> str:
    location = HERE if is_ours else Location(HERE.loadable_target_origin, "elsewhere")
    definition = build_defs(SETTINGS).resolve_job_def(job)
    repository = build_defs(SETTINGS).get_repository_def()
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, repository.name), job)
    run = instance.create_run_for_job(definition, status=status, remote_job_origin=origin, job_code_origin=None)
    return run.run_id


def begin(ledger: Ledger, identities: Mapping[str, Identity]) -> None:
    for run_id, identity in identities.items():
        ledger.processes.begin(run_id, "daily_load", identity, 1)


def status_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def time_passes(ledger: Ledger) -> None:
    with ledger.engine.begin() as connection:
        for row in connection.execute(PROCESSES.select()).mappings():
            if row["looked_at"]:
                earlier = datetime.fromisoformat(row["looked_at"]) - timedelta(seconds=LOOK_SECONDS)
                of_row = PROCESSES.update().where(PROCESSES.c.run_id == row["run_id"])
                connection.execute(of_row.values(looked_at=earlier.isoformat()))


def looks(instance: dg.DagsterInstance, ledger: Ledger, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        found += report_dead_runs(instance, ledger, "tidemark")
        time_passes(ledger)
    return found


def test_the_jobs_that_are_ours_are_those_of_the_definitions() -> None:
    """Except the one that only reads the ledger: it holds no day and no slot, and does not beat."""
    jobs = {job.name for job in build_defs(SETTINGS).get_repository_def().get_all_jobs() if job.name[0] != "_"}
    assert jobs - {"health_report"} == OWN_JOBS


def test_whatever_the_number_of_days_the_newest_runs_are_asked_for_once_and_not_before(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    died, failed, both = ("2026-02-01", {DIED_TAG: "true"}), ("2026-02-01", {}), ("2026-02-02", {DIED_TAG: "true"})
    definition = build_defs(SETTINGS).resolve_job_def("daily_load")
    for last, tags in (both, failed, died, failed):
        days = {RANGE_START: "2026-02-01", RANGE_END: last}
        instance.create_run_for_job(definition, status=dg.DagsterRunStatus.FAILURE, tags={**days, **tags})
    asked: list[Any] = []
    get_runs = instance.get_runs
    monkeypatch.setattr(instance, "get_runs", lambda *args, **options: asked.append(args) or get_runs(*args, **options))
    has_died = died_on(instance, "daily_load")
    assert not asked
    assert [has_died(date(2026, 2, day)) for day in (1, 2, 3)] == [False, True, False]
    assert len(asked) == 1


def test_a_run_whose_process_is_gone_here_is_failed_at_once_and_one_that_lives_is_not(
    instance: dg.DagsterInstance, ledger: Ledger
) -> None:
    """Outcome: failed with a tag, cancelled, left, left; sensors ignore the dead at once; a second look finds nothing."""
    gone, cancelled, alive = a_run(instance), a_run(instance, status=CANCELING), a_run(instance)
    queued = a_run(instance, status=dg.DagsterRunStatus.QUEUED)
    begin(ledger, {gone: a_dead_process(), cancelled: a_dead_process(), alive: this_process.identity()})
    assert {run.run_id for run in under_way(instance, ledger, "daily_load")} == {alive, queued}

    found = looks(instance, ledger, 1)

    assert {one.run_id for one in found} == {gone, cancelled}
    assert status_of(instance, gone) is dg.DagsterRunStatus.FAILURE
    assert status_of(instance, cancelled) is dg.DagsterRunStatus.CANCELED
    assert getattr(instance.get_run_by_id(gone), "tags", {})[DIED_TAG] == "true"
    assert "is gone, last heard from at" in str(found[0])
    assert looks(instance, ledger, PATIENT_LOOKS + 1) == []
    assert (status_of(instance, alive), status_of(instance, queued)) == (STARTED, dg.DagsterRunStatus.QUEUED)


def test_a_run_elsewhere_or_without_a_process_is_waited_for(instance: dg.DagsterInstance, ledger: Ledger) -> None:
    """Outcome: a container's run and one without an op fail after their looks; others' and starting ones do not."""
    silent, missed = a_run(instance), a_run(instance, "maintenance")
    foreign = a_run(instance, is_ours=False)
    starting = a_run(instance, status=dg.DagsterRunStatus.STARTING)
    others = instance.create_run_for_job(
        dg.Definitions(assets=[of_others]).resolve_implicit_global_asset_job_def(), status=STARTED
    ).run_id
    ledger.processes.begin(silent, "daily_load", ELSEWHERE, 1)
    assert looks(instance, ledger, STILL_LOOKS) == []
    assert [one.run_id for one in looks(instance, ledger, 1)] == [silent]
    assert [one.run_id for one in looks(instance, ledger, PATIENT_LOOKS - STILL_LOOKS)] == [missed]
    assert looks(instance, ledger, PATIENT_LOOKS) == []
    assert (status_of(instance, foreign), status_of(instance, others)) == (STARTED, STARTED)
    assert status_of(instance, starting) is dg.DagsterRunStatus.STARTING


def test_a_dead_run_of_another_dagster_home_is_left_to_it(instance: dg.DagsterInstance, ledger: Ledger) -> None:
    """Outcome: this Dagster home only reports it; its own fails it at its next look."""
    with dg.DagsterInstance.ephemeral() as other:
        run_id = a_run(other)
        ledger.processes.begin(run_id, "daily_load", a_dead_process(), 1)
        (found,) = report_dead_runs(instance, ledger)
        assert not found.is_reported
        (found,) = report_dead_runs(other, ledger)
        assert found.is_reported
        assert status_of(other, run_id) is dg.DagsterRunStatus.FAILURE


def test_a_branch_is_left_to_a_process_that_works_and_to_whom_nobody_knows(
    instance: dg.DagsterInstance, ledger: Ledger
) -> None:
    """Outcome: true for a live run, false for dead, ended and own ones, unknown for another ledger's."""
    is_live = liveness(instance, ledger, own := str(uuid.uuid4()))
    theirs, unknown, ended = (str(uuid.uuid4()) for _ in range(3))
    begin(ledger, {theirs: ELSEWHERE, ended: this_process.identity(), own: this_process.identity()})
    ledger.processes.end(ended)
    finished = a_run(instance, status=dg.DagsterRunStatus.FAILURE)
    running = a_run(instance)

    def of(run_id: str) -> bool | None:
        return is_live(f"{run_id.replace('-', '')}_2")

    assert [of(theirs), of(unknown), of(ended), of(own), of(finished), of(running)] == [True, None, *[False] * 3, True]
    ledger.processes.lose([theirs])
    assert of(theirs) is False
    assert is_live("deadrun_0") is None


def test_a_branch_of_a_rebuild_is_left_until_a_person_answers_it(instance: dg.DagsterInstance, ledger: Ledger) -> None:
    """Outcome: its branch is needed until the answer; another ledger's is unknown."""
    is_live = liveness(instance, ledger, str(uuid.uuid4()))
    day = date(2026, 2, 2)
    state = RebuildState.BUILDING
    asked = RebuildRecord(0, ("refined/events",), day, day, ("10001",), "why", "ann", state, str(uuid.uuid4()))
    rebuild = ledger.rebuilds.begin(asked)
    assert is_live(rebuild.branch) is True
    for state, is_needed in ((RebuildState.READY, True), (RebuildState.ABANDONED, False)):
        rebuild = ledger.rebuilds.change(rebuild, state=state)
        assert is_live(rebuild.branch) is is_needed
    assert [is_live(name) for name in ("green_77", "green_x")] == [None, None]


def test_status_tells_who_works_and_who_died(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: a line for each run; Dagster learns of the dead one once."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as home:
        here, silent, dead = a_run(home), a_run(home), a_run(home)
        begin(ledger, {here: this_process.identity(), silent: ELSEWHERE, dead: a_dead_process()})
        ledger.processes.look([], {})
        time_passes(ledger)
        lines = {run_id: line for line in process_lines(ledger) for run_id in (here, silent, dead) if run_id in line}
        assert lines[here].startswith(f"run {here} (daily_load) works: process ")
        assert "not heard from" not in lines[here]
        assert "works: process 4711 on other" in lines[silent]
        assert "not heard from since" in lines[silent]
        assert lines[dead].endswith("it is reported as failed")
        assert status_of(home, dead) is dg.DagsterRunStatus.FAILURE
    assert len(process_lines(ledger)) == 2
