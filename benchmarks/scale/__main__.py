"""`python -m benchmarks.scale`: fill ledgers of growing sizes, take every look in a fresh process, print what it took."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.scale.fill import fill
from benchmarks.scale.looks import LOOKS
from benchmarks.scale.sizes import HOURS, SHARDS, SIZES, Size
from benchmarks.workload import KEPT
from pipeline_assets.domain.settings import PROJECT_ROOT
from resources.ledger.store import Ledger

TICK_SECONDS = 60
"""Dagster's default time limit of a sensor evaluation."""
MOST_MB = 2_000
_SENSORS = ("arrivals", "recoveries", "heal")
_SNAPSHOTS, _PROJECTS_OF_METADATA = (50, 150), 20
_RUNS, _PARTITIONS = 20, (100, 400)


@dataclass(frozen=True)
class Look:
    """The figures of one look."""

    size: Size
    name: str
    seconds: float
    cpu: float
    mb: float
    found: dict[str, Any]

    @property
    def breaks(self) -> str:
        """The limits that it exceeds; empty where it exceeds none."""
        told = []
        if "cut off" in self.found:
            told.append("cut off")
        if self.name.startswith(_SENSORS) and self.seconds > TICK_SECONDS:
            told.append(f"a tick may take {TICK_SECONDS} s")
        if self.mb > MOST_MB:
            told.append(f"over {MOST_MB} MB")
        return ", ".join(told)


def main() -> int:
    """Measure the chosen sizes and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=["hundredth", "tenth"], help=", ".join(SIZES))
    parser.add_argument("--looks", nargs="*", default=list(LOOKS), help=", ".join(LOOKS))
    parser.add_argument("--limit", type=int, default=300, help="seconds after which a look is cut off")
    parser.add_argument("--keep", type=Path, help="folder whose ledgers are used again, and kept")
    parser.add_argument(
        "--growth", action="store_true", help="measure Iceberg's metadata and Dagster's storage as well"
    )
    chosen = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="scale-", dir=KEPT))
    console = Console(width=150)
    try:
        sizes = [_filled(folder, SIZES[name], console) for name in chosen.sizes]
        looks = list(_looks(folder, sizes, chosen.looks, chosen.limit, console))
        (KEPT / "scale.json").write_text(json.dumps([_as_json(one) for one in looks], indent=1) + "\n", "utf-8")
        console.print(_table(looks))
        if chosen.growth:
            for line in _growth(folder):
                console.print(line)
    finally:
        if chosen.keep is None:
            shutil.rmtree(folder)
    return 0


def _filled(folder: Path, size: Size, console: Console) -> Size:
    """Fill a folder for the size unless it is filled already."""
    own = folder / size.name
    if not (own / "ledger.db").exists():
        own.mkdir(parents=True, exist_ok=True)
        settings = size.settings(own)
        with closing(Ledger(settings.ledger_database_url)) as ledger:
            written = fill(ledger, size, settings)
        told = ", ".join(f"{name.removeprefix('tidemark_')} {rows:,}" for name, rows in written.items())
        console.print(f"{size.name}: {told}")
    _forget_statistics(own / "ledger.db")
    mb = (own / "ledger.db").stat().st_size / 1e6
    on_record = size.projects * size.days_with_deliveries * HOURS * SHARDS
    console.print(
        f"{size.name}: {size.projects} projects, {size.days} days, {size.objects:,} objects in landing, {on_record:,} of them on "
        f"record; ledger {mb:,.0f} MB"
    )
    return size


def _forget_statistics(ledger: Path) -> None:
    """Remove SQLite's statistics: deployments never run ANALYZE, and with statistics SQLite would choose other indexes."""
    with closing(sqlite3.connect(ledger)) as connection:
        for name in ("sqlite_stat1", "sqlite_stat4"):
            connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.commit()


def _looks(folder: Path, sizes: Sequence[Size], names: Sequence[str], limit: int, console: Console) -> Iterator[Look]:
    for size in sizes:
        for name in names:
            words = ["benchmarks.scale.one", size.name, str(folder / size.name), name, str(limit)]
            said = _said(words)
            look = Look(size, name, said["seconds"], said["cpu"], said["mb"], said["found"])
            console.print(f"{size.name}, {name}: {look.seconds:.1f} s, {look.mb:.0f} MB, {look.found} {look.breaks}")
            yield look


def _said(words: Sequence[str]) -> dict[str, Any]:
    """Run a module in a separate process and parse its last line; raises RuntimeError with its errors."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=PROJECT_ROOT,
        env={**os.environ, "DAGSTER_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _table(looks: Sequence[Look]) -> Table:
    """One row per look and size, with the seconds that a year adds, from the size before with as many projects."""
    table = Table(title="looks, each in a fresh process")
    for title in ("look", "size", "seconds", "CPU s", "MB", "seconds more a year", "breaks"):
        table.add_column(title, justify="left" if title in ("look", "size", "breaks") else "right")
    before: dict[tuple[str, int], Look] = {}
    for one in sorted(looks, key=lambda one: (list(LOOKS).index(one.name), one.size.objects)):
        smaller = before.get((one.name, one.size.projects))
        growth = ""
        if smaller is not None and one.size.years > smaller.size.years:
            growth = f"{(one.cpu - smaller.cpu) / (one.size.years - smaller.size.years):+.2f}"
        before[one.name, one.size.projects] = one
        seconds = (f"{one.seconds:.1f}", f"{one.cpu:.1f}", f"{one.mb:.0f}")
        table.add_row(one.name, one.size.name, *seconds, growth, one.breaks)
    return table


def _growth(folder: Path) -> Iterator[str]:
    for snapshots in _SNAPSHOTS:
        place = tempfile.mkdtemp(dir=folder)
        found = _said(["benchmarks.scale.metadata", f"{place}/lake", str(snapshots), str(_PROJECTS_OF_METADATA)])
        yield f"iceberg: {json.dumps(found)}"
    for days in _PARTITIONS:
        place = tempfile.mkdtemp(dir=folder)
        yield f"dagster: {json.dumps(_said(['benchmarks.scale.dagster_storage', f'{place}/home', str(_RUNS), str(days)]))}"


def _as_json(look: Look) -> dict[str, Any]:
    return {**vars(look), "size": look.size.name}


if __name__ == "__main__":
    raise SystemExit(main())
