"""Dagster: a run's records do not depend on how its files are opened; how it counts a range (`told_backfill`)."""

from __future__ import annotations

import logging

# Dagster reads the op's annotations as types, so they are not postponed here.
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_test_daemon_workspace_context, instance_for_test
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._time import get_current_timestamp
from sqlalchemy import event
from sqlalchemy.engine import Engine

from pipeline_assets.orchestration.runtime import kept_connections

DAYS = dg.DailyPartitionsDefinition("2026-02-01", end_date="2026-02-11")


@dg.multi_asset(
    name="load",
    specs=[dg.AssetSpec(name, partitions_def=DAYS) for name in ("raw", "refined")],
    check_specs=[dg.AssetCheckSpec("whole", asset=name) for name in ("raw", "refined")],
)
def load() -> Iterator[Any]:
    for key in ("raw", "refined"):
        whole = dg.AssetCheckResult(asset_key=key, check_name="whole", passed=True)
        yield dg.MaterializeResult(key, metadata={"rows": 3}, tags={"of": "test"}, check_results=[whole])


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[str]]:
    """Names of the opened SQLite files, one per connection."""
    seen: list[str] = []

    def note(connection: Any, *_: object) -> None:
        (database,) = connection.execute("PRAGMA database_list").fetchall()
        seen.append(Path(database[2]).name)

    event.listen(Engine, "connect", note)
    yield seen
    event.remove(Engine, "connect", note)


def run(instance: dg.DagsterInstance) -> str:
    job = dg.define_asset_job("job", "*")
    definition = dg.Definitions(assets=[load], jobs=[job]).resolve_job_def("job")
    return definition.execute_in_process(instance=instance, partition_key="2026-02-02").run_id


def record(instance: dg.DagsterInstance, run_id: str) -> tuple[Any, ...]:
    logged = [entry.dagster_event for entry in instance.all_logs(run_id) if entry.dagster_event]
    events = [(one.event_type_value, one.message) for one in logged]
    kept = []
    for key in (dg.AssetKey("raw"), dg.AssetKey("refined")):
        shown = instance.fetch_materializations(key, limit=10).records[0].event_log_entry.asset_materialization
        assert shown is not None
        checks = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(key, "whole"), limit=1)
        tags = {name: value for name, value in (shown.tags or {}).items() if not name.startswith("dagster/")}
        days = instance.get_materialized_partitions(key)
        kept.append((shown.partition, shown.metadata, tags, days, [one.status for one in checks]))
    return instance.get_run_by_id(run_id).status, [one for one in events if "pid" not in str(one)], kept  # type: ignore[union-attr]


def test_dagster_shows_the_same_however_its_files_are_opened(tmp_path: Path) -> None:
    """Scenario: runs with and without kept connections. Outcome: the same events, assets, checks and status."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        first = record(instance, run(instance))
        with kept_connections(instance):
            second = record(instance, run(instance))
        assert first[0] is second[0] is dg.DagsterRunStatus.SUCCESS
        assert len(first[1]) > 10
        assert sorted(kind for kind, _ in first[1]) == sorted(kind for kind, _ in second[1])
        assert first[2] == second[2]


def test_each_file_is_opened_once_in_a_run_and_closed_after_it(tmp_path: Path, opened: list[str]) -> None:
    """Scenario: a block within a keeping block. Outcome: one connection for each file."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run(instance)
        many = len(opened)
        opened.clear()
        with kept_connections(instance), kept_connections(instance):
            run_id = run(instance)
            assert set(opened) == {"index.db", "runs.db", f"{run_id}.db"}
            # Dagster opens a file a second time to look for its tables.
            assert max(Counter(opened).values()) <= 2
        assert many > 30
        assert "connect" not in vars(instance.run_storage)
        assert "_connect" not in vars(instance.event_log_storage)
        assert not list(tmp_path.rglob("*.db-wal"))


def test_what_another_process_wrote_is_seen_at_once(tmp_path: Path) -> None:
    """Scenario: two instances of one home, one with kept connections. Outcome: each sees the other's runs."""
    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as one,
        dg.DagsterInstance.local_temp(str(tmp_path)) as other,
        kept_connections(one),
    ):
        mine = run(one)
        theirs = run(other)
        for instance in (one, other):
            assert {each.run_id for each in instance.get_runs()} == {mine, theirs}
        assert record(other, mine)[0] is record(one, theirs)[0] is dg.DagsterRunStatus.SUCCESS


def test_an_instance_in_memory_stays_as_it_is() -> None:
    with dg.DagsterInstance.ephemeral() as instance, kept_connections(instance):
        assert "connect" not in vars(instance.run_storage)
        assert instance.get_run_by_id(run(instance)).status is dg.DagsterRunStatus.SUCCESS  # type: ignore[union-attr]


_DAYS = ["2026-02-02", "2026-02-03", "2026-02-04"]
_LOCATION = """
import dagster as dg

DAYS = dg.DailyPartitionsDefinition("2026-02-02", end_date="2026-02-05")

@dg.multi_asset(
    specs=[dg.AssetSpec("events", partitions_def=DAYS, skippable=True)],
    backfill_policy=dg.BackfillPolicy.multi_run(30),
)
def load(context):
    for day in context.partition_keys:
        if day == "2026-02-03":
            yield dg.AssetObservation("events", partition=day, metadata={"verdict": "waiting"})
        else:
            yield dg.AssetMaterialization("events", partition=day)

defs = dg.Definitions(
    [load], jobs=[dg.define_asset_job("daily", selection="*")], executor=dg.in_process_executor
)
"""
_IN_THIS_PROCESS = {"module": "dagster._core.launcher.sync_in_memory_run_launcher", "class": "SyncInMemoryRunLauncher"}


def test_dagster_ends_a_range_as_failed_for_a_day_without_materialization_and_a_job_as_its_runs(tmp_path: Path) -> None:
    """Outcome: each run succeeds, but the assets' backfill fails, unlike the job's. If this fails, Dagster has learned
    of waiting days (dagster-io/dagster#34219): remove `told_backfill` and the word in each asset's description."""
    file = tmp_path / "location.py"
    file.write_text(_LOCATION)
    with (
        instance_for_test(overrides={"run_launcher": _IN_THIS_PROCESS}) as instance,
        create_test_daemon_workspace_context(
            PythonFileTarget(str(file), None, str(tmp_path), "x"), instance
        ) as context,
    ):
        request = context.create_request_context()
        (repository,) = request.get_code_location("x").get_repositories().values()
        (of_job,) = [one for one in repository.get_partition_sets() if one.job_name == "daily"]
        both: dict[str, Any] = {"partition_names": _DAYS, "tags": {}, "backfill_timestamp": get_current_timestamp()}
        unused = dict.fromkeys(("title", "description", "run_config"))
        of_assets = PartitionBackfill.from_asset_partitions(
            "of_assets", request.asset_graph, asset_selection=[dg.AssetKey("events")], dynamic_partitions_store=instance,
            all_partitions=False, **both, **unused,
        )  # fmt: skip
        job = PartitionBackfill(
            "of_job", BulkActionStatus.REQUESTED, partition_set_origin=of_job.get_remote_origin(), from_failure=False,
            reexecution_steps=None, **both,
        )  # fmt: skip
        for backfill, expected in ((of_assets, "COMPLETED_FAILED"), (job, "COMPLETED_SUCCESS")):
            instance.add_backfill(backfill)
            for _ in range(5):
                list(execute_backfill_iteration(context, logging.getLogger("backfill")))
                for queued in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
                    instance.launch_run(queued.run_id, context.create_request_context())
            ended = instance.get_backfill(backfill.backfill_id)
            runs = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill.backfill_id}))
            assert [run.status for run in runs] == [dg.DagsterRunStatus.SUCCESS]
            assert ended is not None
            assert ended.status.value == expected
