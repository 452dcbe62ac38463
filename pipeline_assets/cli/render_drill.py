"""Results of a drill, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.drill.drill import Result


def drill_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the results for `--json`."""
    return {
        "is_survived": all(result.is_survived for result in results),
        "trials": [
            {
                "event": result.trial.event.value,
                "point": result.trial.point.value,
                "at": result.trial.qualifier or None,
                "is_survived": result.is_survived,
                "conflicts": result.conflicts,
                "seconds": round(result.seconds, 1),
                "faults": list(result.faults),
            }
            for result in results
        ],
    }


def print_drill(console: Console, results: Sequence[Result]) -> None:
    """Print a line per trial, the trials that did not survive, and the verdict."""
    table = Table("what happened", "point", "at", "conflicts", "seconds", "survived", box=None, pad_edge=False)
    for result in results:
        table.add_row(
            result.trial.event.value,
            result.trial.point.value,
            result.trial.qualifier or "-",
            str(result.conflicts or "-"),
            f"{result.seconds:.0f}",
            styled("yes", "green") if result.is_survived else styled("no", "bold red"),
        )
    console.print(table)
    for result in results:
        for fault in result.faults:
            console.print(line(styled(f"{result.trial.event} at {result.trial.armed}", "bold red"), f": {fault}"))
    survived = sum(result.is_survived for result in results)
    colour = "green" if survived == len(results) else "red"
    minutes = sum(result.seconds for result in results) / 60
    summary = (
        f" in {minutes:.0f} minutes: same rows as undisturbed loads, no change twice or missing on record, no branch left, every "
        "day shown by Dagster"
    )
    console.print(line(styled(f"{survived} of {len(results)} survived", f"bold {colour}"), summary))
