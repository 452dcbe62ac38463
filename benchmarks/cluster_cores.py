"""`python -m benchmarks.cluster_cores`: rows a second of one load by a worker of 1, 2 and 4 cores of a standalone cluster."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import NOW, settings_in
from benchmarks.measure import run_and_watch
from benchmarks.workload import KEPT, Stage, deliver, one_day, record_of, stage_of
from pipeline_assets.domain.machine import cores as cores_here
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.tables.registry import ASSET_TABLES
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog, spark_resource
from tests.support.spark_cluster import a_cluster

_EXECUTOR_MEMORY, _WORKER_MEMORY = "1536m", "2g"
_ME = "benchmarks.cluster_cores"
_WARM_EVENTS = 500


@dataclass(frozen=True)
class Measured:
    """One load on a worker with this number of cores."""

    cores: int
    seconds: float
    rows: int
    peak_mb: dict[str, float]
    digests: str

    @property
    def rows_a_second(self) -> float:
        """Rows of refined.events per second, from listing landing until all tables are visible."""
        return self.rows / self.seconds


def measure(cores: int, stage: Stage, warm_up: Stage) -> Measured:
    """Start a cluster and a driver, load once to warm up and once to measure; returns the figures."""
    work = Path(tempfile.mkdtemp(prefix=f"cores-{cores}-", dir=KEPT))
    try:
        with a_cluster(work / "cluster", cores, memory=_WORKER_MEMORY) as cluster:
            order = {"master": cluster.url, "stage": record_of(stage), "warm_up": record_of(warm_up)}
            (work / "order.json").write_text(json.dumps(order), "utf-8")
            (said,), peak_mb = run_and_watch([_ME, "--drive", str(work)], work)
        return Measured(cores, said["seconds"], said["rows"], peak_mb, said["digests"])
    finally:
        shutil.rmtree(work)


def drive(work: Path) -> None:
    """Run the driver: load the stages of the order file and print the figures."""
    order = json.loads((work / "order.json").read_text("utf-8"))
    _load(work / "warm", stage_of(order["warm_up"]), order["master"])
    found = _load(work / "measured", stage_of(order["stage"]), order["master"])
    sys.stdout.write(json.dumps(found) + "\n")


def _load(folder: Path, stage: Stage, master: str) -> dict[str, Any]:
    landing, catalog = folder / "landing", f"bench_{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    deliver(stage.objects, landing)
    config = {"spark.executor.memory": _EXECUTOR_MEMORY}
    settings = settings_in(folder, landing, catalog, spark_master=master, spark_config=config, spark_shared_disk=True)
    spark = SparkSession.getActiveSession() or spark_resource(settings).spark_session
    spark.sparkContext.setLogLevel("ERROR")
    configure_catalog(spark, settings)
    tables = frozenset(table.key for table in ASSET_TABLES)
    request = LoadRequest(stage.days, settings.projects, tables, str(uuid.uuid4()), NOW)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        runtime = Runtime(Lakehouse(spark, catalog), ledger, LandingStore.from_settings(settings), settings)
        started = time.perf_counter()
        outcomes = [outcome for report in run_load(runtime, request, lambda _: False) for outcome in report.outcomes]
        seconds = time.perf_counter() - started
        refused = [outcome for outcome in outcomes if outcome.fails_the_run]
        if refused:
            raise RuntimeError(f"the load refused {refused[0]}")
        slices = {table: ledger.slices(table, None) for table in sorted(tables)}
    rows = sum(record.digest.rows for record in slices["refined/events"].values())
    digests = {table: {str(key): str(one.digest) for key, one in of.items()} for table, of in slices.items()}
    return {"seconds": seconds, "rows": rows, "digests": json.dumps(digests, sort_keys=True)}


def page_of(measured: Sequence[Measured]) -> Table:
    """Return the medians of the rounds, and their ratio to the smallest number of cores."""
    page = Table(title=f"one load of all tables, medians; {cores_here()} cores here, which the driver uses as well")
    for name in ("worker cores", "seconds", "rows a second", "ratio", "JVM of the driver MB"):
        page.add_column(name, justify="right")
    by_cores: dict[int, list[Measured]] = {}
    for one in measured:
        by_cores.setdefault(one.cores, []).append(one)
    rates = {cores: statistics.median(one.rows_a_second for one in of) for cores, of in by_cores.items()}
    for cores, of in by_cores.items():
        seconds = statistics.median(one.seconds for one in of)
        memory = max(one.peak_mb.get("jvm", 0) for one in of)
        ratio = rates[cores] / rates[min(rates)]
        page.add_row(str(cores), f"{seconds:.1f}", f"{rates[cores]:,.0f}", f"{ratio:.2f}", f"{memory:.0f}")
    return page


def main() -> int:
    """Measure and report; returns 1 where two loads produced different tables."""
    parser = argparse.ArgumentParser(prog=f"python -m {_ME}", description=__doc__)
    parser.add_argument("--cores", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.drive is not None:
        drive(chosen.drive)
        return 0
    KEPT.mkdir(parents=True, exist_ok=True)
    console = Console(width=110)
    stage, warm_up = (one_day("day", events_per_day=events) for events in (chosen.events, _WARM_EVENTS))
    measured: list[Measured] = []
    for _ in range(chosen.rounds):
        for cores in chosen.cores:
            measured.append(measure(cores, stage, warm_up))
            one = measured[-1]
            console.print(f"{cores} cores: {one.rows:,} rows in {one.seconds:.1f} s", highlight=False)
    console.print(page_of(measured))
    is_same = len({one.digests for one in measured}) == 1
    console.print(f"digests of all tables {'equal' if is_same else 'DIFFER'}", highlight=False)
    return 0 if is_same else 1


if __name__ == "__main__":
    raise SystemExit(main())
