"""Results of comparing keys: counts by day, and samples of keys."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.inspection.keys.compare import KeyComparison
from pipeline_assets.transforms.key_presence import STATES

_MOST_DAYS = 60


def print_keys(console: Console, found: KeyComparison) -> None:
    """Print a row per day that differs, samples of each kind, then the sum."""
    differing = [day for day in _days(found) if any(_count(found, day, state) for state in STATES[1:])]
    table = RichTable("project", "day", *STATES, box=None, pad_edge=False)
    for day in differing[:_MOST_DAYS]:
        counts = [f"{_count(found, day, state):,}" for state in STATES]
        table.add_row(day[0], str(day[1] or "no day"), *counts)
    if differing:
        console.print(table)
    if len(differing) > _MOST_DAYS:
        console.print(f"and {len(differing) - _MOST_DAYS:,} more days; --json has them all")
    for state, names in found.samples.items():
        for name in names:
            console.print(line(styled(state, "bold red"), f" {name}"), soft_wrap=True)
        if found.total(state) > len(names):
            console.print(f"and {found.total(state) - len(names):,} more keys {state}")
    for fault in found.faults:
        console.print(line(styled("not compared", "yellow"), f": {fault}"), soft_wrap=True)
    if found.faulty_lines > len(found.faults):
        console.print(f"and {found.faulty_lines - len(found.faults):,} more lines that name no key")
    if found.outside:
        console.print(f"{found.outside:,} lines are of other days or projects")
    if found.nameless:
        console.print(f"{found.nameless:,} rows of {found.here} have no such id, and were not compared")
    sums = ", ".join(f"{found.total(state):,} {state}" for state in STATES)
    told = f"keys of {found.here} (here) and {found.there} (there), {found.range.first} to {found.range.last}: {sums}"
    console.print(told, soft_wrap=True)


def _days(found: KeyComparison) -> list[tuple[str, Any]]:
    days = {(project, day) for project, day, _ in found.counts}
    return sorted(days, key=lambda day: (day[0], str(day[1] or "")))


def _count(found: KeyComparison, day: tuple[str, Any], state: str) -> int:
    return found.counts.get((*day, state), 0)


def keys_json(found: KeyComparison) -> dict[str, Any]:
    """Return the comparison for `--json`."""
    return {
        "is_equal": found.is_equal,
        "here": found.here,
        "there": found.there,
        "first": found.range.first.isoformat(),
        "last": found.range.last.isoformat(),
        "totals": {state: found.total(state) for state in STATES},
        "days": [
            {"project": day[0], "day": str(day[1]) if day[1] else None}
            | {state: _count(found, day, state) for state in STATES}
            for day in _days(found)
        ],
        "samples": {state: list(names) for state, names in found.samples.items()},
        "rows_without_id": found.nameless,
        "lines_outside": found.outside,
        "faulty_lines": found.faulty_lines,
        "faults": list(found.faults),
    }
