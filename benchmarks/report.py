"""Report a comparison: medians, ratios to the naive contender and memory, as table, JSON and chart."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

import matplotlib as mpl
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import CONTENDERS
from benchmarks.measure import Measured
from benchmarks.workload import KEPT, Stage

BASE = "a"


def report(found: Sequence[Measured], stages: Sequence[Stage]) -> None:
    """Print the tables; save `comparison.json` and `comparison.svg`."""
    console = Console(width=160)
    names = [stage.name for stage in stages]
    medians = {
        contender: _medians([one for one in found if one.contender == contender])
        for contender in CONTENDERS
        if any(one.contender == contender for one in found)
    }
    rounds = max(sum(one.contender == contender for one in found) for contender in medians)
    console.print(_times(medians, names, rounds))
    console.print(_memory(medians))
    console.print(_parts(medians, names))
    saved = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "rounds": [{"contender": one.contender, "stages": one.stages, "peak_mb": one.peak_mb} for one in found],
        "medians": medians,
    }
    KEPT.mkdir(exist_ok=True)
    (KEPT / "comparison.json").write_text(json.dumps(saved, indent=1) + "\n", "utf-8")
    if BASE in medians:
        _chart(medians, names)
    console.print(f"saved to {KEPT}/comparison.json and comparison.svg")


def _medians(runs: Sequence[Measured]) -> dict[str, Any]:
    stages = {
        name: {
            "seconds": median(run.stages[name]["seconds"] for run in runs),
            "rows": runs[0].stages[name].get("rows"),
            "parts": {
                part: median(run.stages[name]["parts"][part] for run in runs)
                for part in runs[0].stages[name].get("parts", {})
            },
        }
        for name in runs[0].stages
    }
    kinds = {kind for run in runs for kind in run.peak_mb}
    return {
        "stages": stages,
        "peak_mb": {kind: max(run.peak_mb.get(kind, 0.0) for run in runs) for kind in sorted(kinds)},
    }


def load_seconds(stage: Mapping[str, Any]) -> float:
    """Return the seconds of a load, without Dagster's events where they were measured separately."""
    return float(stage["parts"].get("load", stage["seconds"]))


def seconds_of(medians: dict[str, Any], stage: str) -> float:
    """Return the median seconds of a contender's stage."""
    return load_seconds(medians["stages"][stage])


def _times(medians: dict[str, Any], names: Sequence[str], rounds: int) -> Table:
    table = Table(title=f"seconds, and the ratio to contender {BASE} (medians of {rounds} interleaved rounds)")
    for title in ("contender", *names, "Dagster's part", "start"):
        table.add_column(title, justify="left" if title == "contender" else "right")
    for contender, found in medians.items():
        cells = []
        for name in names:
            seconds = seconds_of(found, name)
            ratio = f" = {seconds / seconds_of(medians[BASE], name):.2f}" if BASE in medians else ""
            cells.append(f"{seconds:.1f}{ratio}")
        apart = [
            f"{one['seconds'] - one['parts']['load']:.1f}"
            for one in (found["stages"][name] for name in names)
            if "load" in one["parts"]
        ]
        start = f"{found['stages']['start']['seconds']:.1f}"
        table.add_row(f"{contender}  {CONTENDERS[contender][0]}", *cells, " ".join(apart), start)
    return table


def _memory(medians: dict[str, Any]) -> Table:
    table = Table(title="peak resident memory, MB; rows at the end of each stage")
    for title in ("contender", "JVM", "driver's Python", "Python workers", "rows"):
        table.add_column(title, justify="left" if title == "contender" else "right")
    for contender, found in medians.items():
        sizes = [f"{found['peak_mb'].get(kind, 0):.0f}" for kind in ("jvm", "driver", "workers")]
        rows = [str(one["rows"]) for one in found["stages"].values() if one["rows"] is not None]
        table.add_row(f"{contender}  {CONTENDERS[contender][0]}", *sizes, " ".join(rows))
    return table


def _parts(medians: dict[str, Any], names: Sequence[str]) -> Table:
    table = Table(title="seconds per table inside the load path")
    parts = sorted({part for found in medians.values() for name in names for part in found["stages"][name]["parts"]})
    for title in ("contender", "stage", *parts):
        table.add_column(title, justify="right")
    for contender, found in medians.items():
        for name in names:
            times = found["stages"][name]["parts"]
            if times:
                table.add_row(contender, name, *[f"{times[part]:.2f}" if part in times else "" for part in parts])
    return table


def _chart(medians: dict[str, Any], names: Sequence[str]) -> None:
    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(names), figsize=(4 * len(names), 2.8), sharey=True)
    contenders = list(reversed(medians))
    for axis, name in zip(axes, names, strict=True):
        ratios = [seconds_of(medians[contender], name) / seconds_of(medians[BASE], name) for contender in contenders]
        colours = ["#2a78b8" if contender in "bc" else "#b0b7bd" for contender in contenders]
        bars = axis.barh(
            [f"{contender}  {CONTENDERS[contender][0]}" for contender in contenders], ratios, color=colours
        )
        axis.bar_label(bars, fmt="%.2f", padding=3)
        axis.axvline(1.0, color="#555555", linewidth=0.8, linestyle=":")
        axis.set_title(f"{name}: time as a ratio to contender {BASE}", fontsize=9)
        axis.set_xlim(0, max(ratios) * 1.2)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(KEPT / "comparison.svg")
