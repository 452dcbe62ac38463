"""`python -m benchmarks.skew`: a day with most rows on one key and in one object, loaded with and without what divides it."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import NOW, a_session, settings_in
from benchmarks.measure import run_and_watch
from benchmarks.workload import FIRST_DAY, KEPT, PROJECT
from pipeline_assets.domain import skew
from pipeline_assets.domain.skew import HOT_KEY_ROWS, SPLIT_BYTES, StepSkew
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime, SkewLog
from pipeline_assets.tables.registry import ASSET_TABLES
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from sample_export.objects import write_export
from sample_export.spec import ExportSpec

ROWS, HOT_SHARE, NULL_SHARE = 500_000, 0.6, 0.1
_NEVER = 10**15
_TABLES = frozenset(table.key for table in ASSET_TABLES)
_HOT_HOUR = 3
_SPEC = ExportSpec(seed=31, projects=(PROJECT,), first_day=FIRST_DAY, days=1, shards=1, tail_share=0.0, late_share=0.0)
UNDIVIDED = {"SPLIT_BYTES": _NEVER, "HOT_KEY_ROWS": _NEVER}
"""Bounds (domain/skew.py) of a load that splits neither large objects nor hot keys."""


def write_skewed(landing: Path, rows: int) -> None:
    """Write a day of about this many rows: 60 % in one object with the same ids, 10 % without an insert id."""
    write_export(replace(_SPEC, events_per_day=rows), landing)
    lines: list[tuple[Path, dict[str, Any]]] = []
    for path in sorted(landing.rglob("*.json.gz")):
        lines += [(path, json.loads(line)) for line in gzip.decompress(path.read_bytes()).splitlines()]
    (hot_path,) = landing.rglob(f"*_{_HOT_HOUR}#*.json.gz")
    hot, unnamed = int(HOT_SHARE * len(lines)), int(NULL_SHARE * len(lines))
    bodies: dict[Path, list[bytes]] = {}
    for number, (path, event) in enumerate(lines):
        if number < hot:
            event |= {"device_id": "server-side", "$insert_id": "constant"}
        elif number < hot + unnamed:
            event["$insert_id"] = None
        bodies.setdefault(hot_path if number < hot else path, []).append(json.dumps(event).encode() + b"\n")
    for path in {path for path, _ in lines}:
        path.write_bytes(gzip.compress(b"".join(bodies.get(path, [])), 6))


class TaskTimes:
    """Seconds of Spark's tasks, by the step of the load that started them."""

    def __init__(self, spark: Any) -> None:
        """Measure jobs of a session from now on."""
        self._context = spark.sparkContext
        self._groups: list[str] = []
        # Unique per load, because other loads of the session have steps with the same names.
        self._own = uuid.uuid4().hex

    def begin(self, name: str) -> None:
        """Attribute all following jobs to the step of this name."""
        if name not in self._groups:
            self._groups.append(name)
        # Set the property instead of calling `setJobGroup`: adaptive queries run in other threads, which inherit it.
        self._context.setLocalProperty("spark.jobGroup.id", f"{self._own} {name}")

    def end(self) -> None:
        """Attribute following jobs to no step."""
        self._context._jsc.setLocalProperty("spark.jobGroup.id", None)

    def of_steps(self) -> dict[str, list[float]]:
        """Return step -> task seconds of its most skewed stage, in which tasks waited longest for the slowest."""
        store = self._context._jsc.sc().statusStore()
        tracker = self._context.statusTracker()
        found = {}
        for name in self._groups:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(f"{self._own} {name}")]
            stages = {stage for job in jobs if job is not None for stage in job.stageIds}
            times = [self._of_stage(store, stage) for stage in sorted(stages)]
            found[name] = max(filter(None, times), key=lambda seconds: max(seconds) - median(seconds), default=[])
        return found

    @staticmethod
    def _of_stage(store: Any, stage: int) -> list[float]:
        tasks = store.taskList(stage, 0, _NEVER_TASKS)
        metrics = [tasks.apply(at).taskMetrics() for at in range(tasks.size())]
        return [told.get().executorRunTime() / 1000 for told in metrics if told.isDefined()]


_NEVER_TASKS = 100_000


def load_skewed(
    work: Path, landing: Path, catalog: str, bounds: Mapping[str, int], tables: Collection[str] = _TABLES
) -> dict[str, Any]:
    """Load the day into a separate lake below `work`; returns seconds, task seconds, forecasts and digests."""
    with _bounded(bounds):
        return _loaded(work, landing, catalog, tables)


@contextmanager
def _bounded(bounds: Mapping[str, int]) -> Iterator[None]:
    usual = {name: getattr(skew, name) for name in bounds}
    vars(skew).update(bounds)
    try:
        yield
    finally:
        vars(skew).update(usual)


def _loaded(work: Path, landing: Path, catalog: str, tables: Collection[str]) -> dict[str, Any]:
    settings = settings_in(work, landing, catalog)
    spark = a_session(settings)
    times = TaskTimes(spark)

    def announced(step: StepSkew) -> None:
        times.begin(f"{step.table} {step.step}")

    with closing(Ledger(settings.ledger_database_url)) as ledger:
        runtime = Runtime(
            Lakehouse(spark, catalog), ledger, LandingStore.from_settings(settings), settings, skew=SkewLog(announced)
        )
        started = time.perf_counter()
        request = LoadRequest((FIRST_DAY,), settings.projects, frozenset(tables), str(uuid.uuid4()), NOW)
        for report in run_load(runtime, request, lambda _: False):
            times.begin(f"after {report.table}")
        seconds = time.perf_counter() - started
        digests = {
            table.key: {str(key): str(record.digest) for key, record in ledger.slices(table.key, None).items()}
            for table in ASSET_TABLES
        }
    steps = [step.as_json() for step in runtime.skew.steps.values()]
    tasks = times.of_steps()
    times.end()
    return {"seconds": seconds, "tasks": tasks, "steps": steps, "digests": digests}


STEPS = {
    "raw/regular_events read": "read objects, parse, write raw",
    "refined/events compare": "compare rows that share a key",
    "refined/events write": "write refined, audit it",
    "after refined/events": "aggregate: daily_revenue",
    "after aggregates/daily_revenue": "aggregate: event_counts",
    "after aggregates/event_counts": "aggregate: active_users",
}
"""Name of a step in `TaskTimes` -> what it does."""


def ratio(seconds: list[float]) -> float:
    """Return the ratio of the slowest task to the median one."""
    usual = median(seconds) if seconds else 0.0
    return max(seconds) / usual if usual else 1.0


def divided(rows: int) -> dict[str, int]:
    """Return bounds that split a day of this many rows: the usual ones, scaled down for a smaller day."""
    share = min(1.0, rows / ROWS)
    return {"SPLIT_BYTES": int(share * SPLIT_BYTES), "HOT_KEY_ROWS": int(share * HOT_KEY_ROWS)}


def compared(work: Path, rows: int) -> Iterator[dict[str, Any]]:
    """Load the same day both ways, in a warm session; yields the figures of each."""
    load_skewed(work / "warm", skewed_day(2_000), "warm", {}, ["raw/regular_events"])
    for name, bounds in (("before", UNDIVIDED), ("after", divided(rows))):
        yield {"name": name, **load_skewed(work / name, skewed_day(rows), name, bounds)}


def skewed_day(rows: int) -> Path:
    """Return a landing folder with the day, written once per machine."""
    folder = KEPT / "exports" / f"skew-{rows}"
    if not folder.is_dir():
        draft = folder.with_suffix(f".{os.getpid()}")
        write_skewed(draft, rows)
        draft.rename(folder)
    return folder


def main() -> int:
    """Run the benchmark in a separate process; prints each step before and after."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.skew", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--in", dest="work", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        for figures in compared(Path(chosen.work), chosen.rows):
            sys.stdout.write(json.dumps(figures) + "\n")
            sys.stdout.flush()
        return 0
    KEPT.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="skew-", dir=KEPT))
    said, peak_mb = run_and_watch(["benchmarks.skew", "--in", str(work), "--rows", str(chosen.rows)], work)
    before, after = ({one["name"]: one for one in said}[name] for name in ("before", "after"))
    title = f"{chosen.rows:,} rows, {HOT_SHARE:.0%} on one key and in one object, {NULL_SHARE:.0%} without insert_id"
    table = Table(title=f"{title}: seconds of the slowest task and of the median one")
    for name in ("step", "before", "ratio", "after", "ratio "):
        table.add_column(name, justify="left" if name == "step" else "right")
    for step, what in STEPS.items():
        cells = [_cells(load["tasks"].get(step, [])) for load in (before, after)]
        table.add_row(what, *cells[0], *cells[1])
    table.add_row("the whole load", f"{before['seconds']:.1f}", "", f"{after['seconds']:.1f}", "")
    console = Console(width=140)
    console.print(table)
    is_same = before["digests"] == after["digests"]
    console.print(f"digests of all tables {'unchanged' if is_same else 'DIFFER'}", highlight=False)
    console.print(
        "peak MB: " + ", ".join(f"{kind} {size:.0f}" for kind, size in sorted(peak_mb.items())), highlight=False
    )
    (KEPT / "skew.json").write_text(json.dumps({"loads": said, "peak_mb": peak_mb}, indent=1) + "\n", "utf-8")
    shutil.rmtree(work)
    return 0 if is_same else 1


def _cells(seconds: list[float]) -> tuple[str, str]:
    if not seconds:
        return "-", "-"
    return f"{max(seconds):.2f} / {median(seconds):.2f} of {len(seconds)}", f"{ratio(seconds):.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
