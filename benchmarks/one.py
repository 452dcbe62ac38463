"""One contender in a separate process: start, warm up, load each stage, print the figures as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.workload import Stage, deliver, stage_of


def main(letter: str, work: Path, stages: list[Stage], warm_up: list[Stage], settings: dict[str, Any]) -> None:
    """Run one contender and print a JSON line per stage; `settings` override the product's usual ones."""
    _, make = CONTENDERS[letter]
    started = time.perf_counter()
    warm = make(work / "warm", work / "warm_landing", "warm")
    warm.start()
    _report(stage="start", seconds=time.perf_counter() - started)
    started = time.perf_counter()
    for stage in warm_up:
        warm.load(deliver(stage.objects, work / "warm_landing"), stage.days)
    _report(stage="warm up", seconds=time.perf_counter() - started)
    contender = make(work / "contender", work / "landing", "lake", **settings)
    contender.start()
    for stage in stages:
        objects = deliver(stage.objects, work / "landing")
        started = time.perf_counter()
        parts = contender.load(objects, stage.days)
        _report(stage=stage.name, seconds=time.perf_counter() - started, parts=parts, rows=contender.rows())


def _report(**figures: object) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    order = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    main(
        order["contender"],
        Path(order["work"]),
        [stage_of(stage) for stage in order["stages"]],
        [stage_of(stage) for stage in order["warm_up"]],
        order["settings"],
    )
