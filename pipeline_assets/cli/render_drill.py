"""What survived a drill, for people and machines.

Contains: how results look.
Add here: another figure of them.
Does not contain: the drill (drill.py), options and exit codes (cli/inspect.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.drill.drill import Result


def drill_json(results: Sequence[Result]) -> dict[str, Any]:
    """For `--json`."""
    return {
        "is_survived": all(one.is_survived for one in results),
        "trials": [
            {
                "event": one.trial.event.value,
                "point": one.trial.point.value,
                "at": one.trial.qualifier or None,
                "is_survived": one.is_survived,
                "conflicts": one.conflicts,
                "seconds": round(one.seconds, 1),
                "faults": list(one.faults),
            }
            for one in results
        ],
    }


def print_drill(console: Console, results: Sequence[Result]) -> None:
    """A line per trial, what did not survive, and the verdict."""
    table = Table("what happened", "point", "at", "conflicts", "seconds", "survived", box=None, pad_edge=False)
    for one in results:
        table.add_row(
            one.trial.event.value,
            one.trial.point.value,
            one.trial.qualifier or "-",
            str(one.conflicts or "-"),
            f"{one.seconds:.0f}",
            styled("yes", "green") if one.is_survived else styled("no", "bold red"),
        )
    console.print(table)
    for one in results:
        for fault in one.faults:
            console.print(line(styled(f"{one.trial.event} at {one.trial.armed}", "bold red"), f": {fault}"))
    survived = sum(one.is_survived for one in results)
    colour = "green" if survived == len(results) else "red"
    minutes = sum(one.seconds for one in results) / 60
    told = (
        f" in {minutes:.0f} minutes: same rows as undisturbed loads, no change twice or missing on record, no branch left, every "
        "day shown by Dagster"
    )
    console.print(line(styled(f"{survived} of {len(results)} survived", f"bold {colour}"), told))
