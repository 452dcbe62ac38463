"""Growth of Dagster's storage: one-day runs with the events of a load, and partitions of many years."""

# Dagster reads the op's annotations as types, so they are not postponed here.
import json
import sys
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from benchmarks.scale.sizes import FIRST_DAY
from pipeline_assets.orchestration.live_runs import WORKING
from pipeline_assets.orchestration.specs import asset_key, range_tags
from pipeline_assets.tables.registry import DERIVED
from pipeline_assets.tables.table import Table

_TABLES: tuple[Table, ...] = DERIVED
_JOB = "daily_load"
_LAST_RUNS = 200
_METADATA: dict[str, Any] = {
    "rows": 1_000_000,
    "projects": "\n".join(f"| {10_001 + number} | published | 100,000 |" for number in range(200)),
    "seconds": 12.5,
}


def grow(folder: Path, runs: int, days: int) -> dict[str, Any]:
    """Execute runs, then materialize each table for a number of days; returns bytes of each, and seconds of the queries."""
    folder.mkdir(parents=True)
    with dg.DagsterInstance.local_temp(str(folder)) as instance:
        empty = _bytes(folder)
        job = _job()
        for number in range(runs):
            day = FIRST_DAY + timedelta(days=number)
            job.execute_in_process(instance=instance, tags=range_tags(day, day))
        of_runs = _bytes(folder)
        for number in range(days):
            _materialize(instance, FIRST_DAY + timedelta(days=number))
        of_days = _bytes(folder)
        asked = {name: _seconds(question, instance) for name, question in _QUESTIONS.items()}
    return {
        "runs": runs,
        "kb_a_run": (of_runs - empty) // max(1, runs) // 1_000,
        "days": days,
        "kb_a_day": round((of_days - of_runs) / max(1, days) / 1_000, 1),
        "seconds": asked,
    }


def _job() -> dg.JobDefinition:
    """A job that yields for each table what a one-day load does: a materialization, its checks, some log lines."""

    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        for table in _TABLES:
            for number in range(10):
                context.log.info(
                    f"{table.key}: step {number} of a load says what it does, in a line of ordinary length"
                )
            context.log_event(dg.AssetMaterialization(asset_key(table), partition="2016-01-01", metadata=_METADATA))
            for rule in table.checks:
                evaluation: Any = dg.AssetCheckEvaluation(
                    asset_key=asset_key(table),
                    check_name=rule.name,
                    passed=True,
                    metadata={"rows_before": 1, "rows": 1},
                )
                context.log_event(evaluation)

    @dg.job(name=_JOB)
    def daily() -> None:
        load()

    return daily


def _materialize(instance: dg.DagsterInstance, day: date) -> None:
    for table in _TABLES:
        event = dg.AssetMaterialization(asset_key(table), partition=day.isoformat(), metadata=_METADATA)
        instance.report_runless_asset_event(event)


_QUESTIONS: dict[str, Callable[[dg.DagsterInstance], object]] = {
    "sensors: runs under way": lambda instance: instance.get_runs(dg.RunsFilter(job_name=_JOB, statuses=list(WORKING))),
    "sensors: newest 200 runs": lambda instance: instance.get_runs(dg.RunsFilter(job_name=_JOB), limit=_LAST_RUNS),
    "UI: partitions of an asset": lambda instance: instance.get_materialized_partitions(asset_key(_TABLES[0])),
    "UI: newest event of each asset": lambda instance: [
        instance.get_latest_materialization_event(asset_key(table)) for table in _TABLES
    ],
    "UI: runs page": lambda instance: instance.get_run_records(limit=25),
}


def _seconds(question: Callable[[dg.DagsterInstance], object], instance: dg.DagsterInstance) -> float:
    started = time.perf_counter()
    question(instance)
    return round(time.perf_counter() - started, 3)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    """Run with the arguments `FOLDER RUNS DAYS`; prints JSON."""
    folder, runs, days = sys.argv[1:]
    sys.stdout.write(json.dumps(grow(Path(folder), int(runs), int(days))) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
