"""`python -m benchmarks.fixed_costs`: what a day of ten events costs on the shell, beside a bare Spark process."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.workload import FIRST_DAY, KEPT, PROJECT, export
from sample_export.spec import ExportSpec

_BARE = """
import sys
from pathlib import Path
from resources.spark import session
from benchmarks.contenders import NaiveAppend
# As anybody's Spark starts. Both names must be there, or the product's own start would be compared with itself.
assert session.jvm_options and session.remember_names
session.jvm_options = lambda jars_dir: ""
session.remember_names = lambda: None
contender = NaiveAppend(Path(sys.argv[1]), Path(sys.argv[2]).parent)
contender.start()
contender.load([Path(sys.argv[2])], [])
assert contender.rows() == int(sys.argv[3])
"""


def main() -> int:
    """Run the rounds and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fixed_costs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(chosen.rounds):
        for name, seconds in _round():
            found.setdefault(name, []).append(seconds)
    bare = statistics.median(found["bare Spark: start, append, count"])
    table = Table(title="wall seconds of a process, median of the rounds")
    for title in ("process", "seconds", "ratio"):
        table.add_column(title)
    for name, measured in found.items():
        middle = statistics.median(measured)
        table.add_row(name, f"{middle:.1f}", f"{middle / bare:.2f}")
    Console(width=100).print(table)
    (KEPT / "fixed_costs.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


def _round() -> Iterator[tuple[str, float]]:
    spec = ExportSpec(
        seed=11,
        projects=(PROJECT,),
        first_day=FIRST_DAY,
        days=1,
        events_per_day=10,
        people=5,
        late_share=0.0,
        tail_share=0.0,
        shards=1,
        hours=(10,),
    )
    (one,) = export(spec)
    with TemporaryDirectory(dir=KEPT) as name:
        folder = Path(name)
        landing = folder / "landing" / PROJECT
        landing.mkdir(parents=True)
        (folder / "home").mkdir()
        os.link(one, landing / one.name)
        lines = len(gzip.decompress(one.read_bytes()).splitlines())
        bare = [sys.executable, "-c", _BARE, str(folder / "bare"), str(one), str(lines)]
        yield "bare Spark: start, append, count", _seconds(bare, {})
        environment = {
            "TIDEMARK_LANDING_URL": str(landing.parent),
            "TIDEMARK_WAREHOUSE_URL": f"{folder}/warehouse",
            "TIDEMARK_CATALOG_URL": f"sqlite:///{folder}/catalog.db",
            "TIDEMARK_PROJECTS": PROJECT,
            "TIDEMARK_CALENDAR_START": str(FIRST_DAY),
            "DAGSTER_HOME": f"{folder}/home",
        }
        day = str(FIRST_DAY)
        shell = str(Path(sys.executable).parent / "tidemark")
        command = [shell, "load", "--source", "regular", "--from", day, "--to", day]
        yield "tidemark load: a new lake, a day of ten events", _seconds(command, environment)
        yield "tidemark load: the same day again", _seconds(command, environment)


def _seconds(command: list[str], environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(main())
