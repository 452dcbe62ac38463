"""Dagster's counting of a range: the reason for a word in a run's log (`told_backfill`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_test_daemon_workspace_context, instance_for_test
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._time import get_current_timestamp

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
