"""`python -m benchmarks.cases`: how the cost of a load grows, and what odd shapes of deliveries cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import measure
from benchmarks.report import load_seconds
from benchmarks.workload import KEPT, Stage, five_days_and_one, late_events, one_day

_WORKERS = {"local_bytes": 0}
"""Spark places every task, however small."""
PROJECTS = tuple(str(number) for number in range(10001, 10021))


@dataclass(frozen=True)
class Case:
    """A shape of deliveries; its last stage is measured."""

    title: str
    stages: Callable[[int], tuple[Stage, ...]]
    """Number of events -> stages of deliveries."""
    events: int
    settings: dict[str, Any] = field(default_factory=dict)


def _day(**knobs: Any) -> Callable[[int], tuple[Stage, ...]]:
    return lambda events: (one_day("day", events_per_day=events, **knobs),)


CASES = {
    "1M": Case("a day of 1 million events", _day(), 1_000_000),
    "4M": Case("a day of 4 million events", _day(), 4_000_000),
    "16M": Case("a day of 16 million events", _day(shards=8), 16_000_000),
    "hot": Case("a hot day: 24 large objects", _day(shards=1), 1_000_000),
    "tiny": Case("10,000 tiny objects", _day(shards=417), 100_000),
    "tail": Case("a batch with a tail of 100 days", _day(tail_share=0.05), 200_000),
    "projects": Case(
        "20 projects",
        lambda events: (one_day("day", events_per_day=events // 20, projects=PROJECTS),),
        200_000,
        {"projects": PROJECTS},
    ),
    "late": Case("ten late events, ten days before", partial(late_events, 10), 200_000, _WORKERS),
    "late-empty": Case("ten late events, an empty lake", partial(late_events, 0), 200_000, _WORKERS),
    "late-here": Case("ten late events, ten days before, in the driver", partial(late_events, 10), 200_000),
    "late-corrects": Case(
        "the same and a correction", partial(late_events, 10, is_correction_beside=True), 200_000, _WORKERS
    ),
}


def main() -> int:
    """Measure the chosen cases and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cases", description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of events, for a quick look")
    chosen = parser.parse_args()
    table = Table(title="one load of all tables")
    for title in ("case", "objects", "rows", "seconds", "µs per row", "JVM MB", "driver MB", "workers MB"):
        table.add_column(title, justify="left" if title == "case" else "right")
    saved = {}
    for name in chosen.cases:
        case = CASES[name]
        stages = case.stages(int(case.events * chosen.scale))
        found = measure("c", stages, five_days_and_one(2_000), case.settings)
        last = stages[-1]
        seconds, rows = load_seconds(found.stages[last.name]), found.stages[last.name]["rows"]
        memory = [f"{found.peak_mb.get(kind, 0):.0f}" for kind in ("jvm", "driver", "workers")]
        objects = str(len(last.objects))
        table.add_row(case.title, objects, str(rows), f"{seconds:.1f}", f"{1e6 * seconds / rows:.0f}", *memory)
        saved[name] = {"stages": found.stages, "peak_mb": found.peak_mb}
        (KEPT / "cases.json").write_text(json.dumps(saved, indent=1) + "\n", "utf-8")
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
