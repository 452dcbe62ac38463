"""`python -m benchmarks.replay`: three years of a project through Dagster, again unchanged, corrections to ten old days."""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sqlite3
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import OurLoad
from benchmarks.measure import run_and_watch
from benchmarks.workload import KEPT, PROJECT
from pipeline_assets.domain.days import stretches
from pipeline_assets.domain.places import local_path
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.maintenance import maintain, require_done
from pipeline_assets.tables.registry import ALL_TABLES, ASSET_TABLES
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from sample_export.objects import write_export
from sample_export.spec import ExportSpec

FIRST_DAY = date(2023, 1, 1)
DAYS = 1_095
CORRECTED_DAYS = 10
_SPEC = ExportSpec(
    seed=23,
    projects=(PROJECT,),
    first_day=FIRST_DAY,
    events_per_day=300,
    shards=1,
    hours=(3,),
    tail_share=0.003,
    has_markers=False,
)
LATER = timedelta(days=40)


@dataclass(frozen=True)
class Goal:
    """A figure and its allowed maximum."""

    title: str
    value: float
    most: float


def replay(work: Path, days: int) -> Iterator[dict[str, Any]]:
    """Load, load again, correct, run maintenance; yields the figures of each pass."""
    spec = replace(_SPEC, days=days)
    landing = work / "landing"
    write_export(spec, landing)
    settings: dict[str, Any] = {
        "calendar_start": FIRST_DAY - timedelta(days=120),
        "ledger_url": f"sqlite:///{work}/ledger.db",
        # Use half of the default heap, to test whether it is enough for three years.
        "spark_driver_memory": "1g",
    }
    contender = OurLoad(work / "contender", landing, "lake", **settings)
    started = time.perf_counter()
    contender.start()
    yield {"pass": "start", "wall": time.perf_counter() - started}
    last = spec.arrival_days[-1]
    yield _pass(contender, "first load", spec.arrival_days)
    yield _pass(contender, "again, unchanged", spec.arrival_days)
    corrected = [
        FIRST_DAY + timedelta(days=number * (days - 150) // CORRECTED_DAYS) for number in range(CORRECTED_DAYS)
    ]
    _deliver_corrections(landing, last + timedelta(days=1), corrected)
    found = _pass(contender, "corrections to old days", [last + timedelta(days=1)])
    yield found | {"corrected": [str(day) for day in corrected]}
    with closing(Ledger(contender.settings.ledger_database_url)) as ledger:
        runtime = Runtime(
            Lakehouse(contender.spark, contender.catalog),
            ledger,
            LandingStore.from_settings(contender.settings),
            contender.settings,
        )
        started = time.perf_counter()
        now = datetime.now(UTC) + LATER
        require_done(list(maintain(runtime, str(uuid.uuid4()), now, lambda _: False, is_dry_run=False)))
        yield {"pass": "maintenance", "load": time.perf_counter() - started, **_state(contender), "published": {}}


def _pass(contender: OurLoad, name: str, days: Sequence[date]) -> dict[str, Any]:
    """Load all days in stretches, one run of the job each."""
    with closing(Ledger(contender.settings.ledger_database_url)) as ledger:
        known = max((record.number for record in ledger.publications()), default=0)
        started, inside = time.perf_counter(), 0.0
        for chunk in stretches(tuple(days), contender.settings.days_per_run):
            inside += contender.load((), chunk)["load"]
            sys.stderr.write(f"{name} {chunk[-1]} {time.perf_counter() - started:.0f} s\n")
        wall = time.perf_counter() - started
        new = [record for record in ledger.publications() if record.number > known]
    published = {
        table.key: sorted({str(r.key.event_date) for r in new if r.table == table.key}) for table in ASSET_TABLES
    }
    figures = {
        "pass": name,
        "load": inside,
        "wall": wall,
        "runs": len(stretches(tuple(days), contender.settings.days_per_run)),
    }
    counts = {table: len(found) for table, found in published.items()}
    return {**figures, **_state(contender), "published": counts, "refined_days": published["refined/events"][:50]}


def _state(contender: OurLoad) -> dict[str, Any]:
    lakehouse = Lakehouse(contender.spark, contender.catalog)
    names = {table.key: lakehouse.identifier(table) for table in ALL_TABLES}
    files = {key: contender.spark.table(f"{name}.files").count() for key, name in names.items()}
    with closing(Ledger(contender.settings.ledger_database_url)) as ledger:
        slices = {
            table.key: sum(1 for record in ledger.slices(table.key, None).values() if record.digest.rows)
            for table in ASSET_TABLES
        }
    warehouse = local_path(contender.settings.warehouse_url)
    assert warehouse is not None
    database = Path(contender.settings.ledger_database_url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {
        "commits": sum(len(lakehouse.commits(table, None)) for table in ALL_TABLES),
        "files": sum(files.values()),
        "slices": sum(slices.values()),
        "files_per_slice": max(files[key] / count for key, count in slices.items() if count),
        "metadata_mb": sum(path.stat().st_size for path in warehouse.rglob("metadata/*")) / 1e6,
        "data_mb": sum(path.stat().st_size for path in warehouse.rglob("*.parquet")) / 1e6,
        "ledger_mb": database.stat().st_size / 1e6,
    }


def _deliver_corrections(landing: Path, arrival: date, days: Sequence[date]) -> None:
    """Deliver one object with an event of each of these days, sent again with another city."""
    lines = []
    for day in days:
        (path,) = landing.rglob(f"*_{day}_3#*.json.gz")
        rows = (json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines())
        row = next(row for row in rows if row["event_time"].startswith(str(day)) and row["$insert_id"])
        at = dict.fromkeys(("server_upload_time", "processed_time"), f"{arrival} 03:10:00.000000")
        lines.append(json.dumps({**row, **at, "uuid": str(uuid.uuid4()), "city": "Corrected"}).encode())
    target = landing / PROJECT / f"{PROJECT}_{arrival}_3#1.json.gz"
    target.write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines)))


def goals(passes: dict[str, dict[str, Any]], peak_mb: dict[str, float]) -> list[Goal]:
    """Return the goals with the measured values."""
    first = passes["first load"]["load"]
    corrections = passes["corrections to old days"]
    unexpected = set(corrections["refined_days"]) ^ set(corrections["corrected"])
    return [
        Goal("unchanged pass, share of the first", passes["again, unchanged"]["load"] / first, 0.05),
        Goal("corrections, share of the first", corrections["load"] / first, 0.03),
        Goal("slices of refined republished that are not those corrected, or missing", len(unexpected), 0),
        Goal("driver, GB (JVM and Python)", (peak_mb.get("jvm", 0) + peak_mb.get("driver", 0)) / 1000, 2.0),
        Goal("files per slice after maintenance, worst table", passes["maintenance"]["files_per_slice"], 3.0),
    ]


def main() -> int:
    """Run the benchmark in a watched process; prints figures and goals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS, help="fewer for a quick look; at least 200")
    parser.add_argument("--in", dest="work", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        for figures in replay(Path(chosen.work), chosen.days):
            sys.stdout.write(json.dumps(figures) + "\n")
            sys.stdout.flush()
        return 0
    KEPT.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="replay-", dir=KEPT))
    said, peak_mb = run_and_watch(["benchmarks.replay", "--in", str(work), "--days", str(chosen.days)], work)
    passes = {one["pass"]: one for one in said}
    console = Console(width=170)
    table = Table(title=f"{chosen.days} days of one project")
    names = (
        "pass",
        "runs",
        "load",
        "wall",
        "commits",
        "files",
        "slices",
        "metadata_mb",
        "data_mb",
        "ledger_mb",
        "published",
    )
    for name in names:
        table.add_column(name, justify="left" if name in ("pass", "published") else "right")
    for one in said:
        shown = {
            **one,
            "published": ", ".join(f"{key.split('/')[1]} {n}" for key, n in one.get("published", {}).items() if n),
        }
        table.add_row(*(_text(shown.get(name, "")) for name in names))
    console.print(table)
    console.print(
        "peak MB: " + ", ".join(f"{kind} {size:.0f}" for kind, size in sorted(peak_mb.items())), highlight=False
    )
    for goal in goals(passes, peak_mb):
        reached = "reached" if goal.value <= goal.most else "missed"
        console.print(f"{goal.title}: {goal.value:.3g}, goal at most {goal.most:g}: {reached}", highlight=False)
    (KEPT / "replay.json").write_text(json.dumps({"passes": said, "peak_mb": peak_mb}, indent=1) + "\n", "utf-8")
    shutil.rmtree(work)
    return 0


def _text(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
