"""Output of a reconciliation: totals by measure, each mismatch, proposed repairs; keys that differ by day, with samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.domain.golden import plain, signed
from pipeline_assets.domain.repairs import Repair
from pipeline_assets.inspection.key_comparison import KeyComparison
from pipeline_assets.load.golden import Reconciliation
from pipeline_assets.transforms.key_changes import STATES

_MOST_LINES = 40


def print_comparison(console: Console, found: Reconciliation | KeyComparison) -> None:
    """Print what was compared: of golden totals a row per measure, a line per mismatch and fault, then the sum."""
    if isinstance(found, KeyComparison):
        print_keys(console, found)
        return
    headings = ("measure", "totals", "agree", "mismatches", "largest difference")
    table = RichTable(*headings, box=None, pad_edge=False)
    for measure in sorted({one.total.measure for one in found.comparisons}):
        of_measure = [one for one in found.comparisons if one.total.measure == measure]
        bad = sum(not one.is_good for one in of_measure)
        largest = max((one.relative for one in of_measure if one.relative is not None), default=None)
        counts = f"{len(of_measure):,}", f"{len(of_measure) - bad:,}", styled(f"{bad:,}", "bold red" if bad else "")
        table.add_row(str(measure), *counts, f"{largest:.4%}" if largest is not None else "")
    if found.comparisons:
        console.print(table)
    for one in found.mismatches[:_MOST_LINES]:
        place = f" {one.total.key} {one.total.measure.table}: {one} [{one.total.origin}]"
        console.print(line(styled(one.agreement.value, "bold red"), place), soft_wrap=True)
    if len(found.mismatches) > _MOST_LINES:
        console.print(f"and {len(found.mismatches) - _MOST_LINES:,} more mismatches; --json has them all")
    for fault in found.faults:
        console.print(line(styled("not compared", "yellow"), f": {fault}"), soft_wrap=True)
    span = f"{found.first} to {found.last}"
    if not found.comparisons:
        console.print(f"there is nothing to compare: no golden totals of {span}")
        return
    days = len({one.total.key for one in found.comparisons})
    result = f"{len(found.mismatches):,} of them do not agree" if found.mismatches else "all agree"
    console.print(f"{len(found.comparisons):,} golden totals of {days:,} days and projects ({span}): {result}")


def print_repairs(console: Console, repairs: Sequence[Repair]) -> None:
    """Print a paragraph per repair: kind, days, reason and command."""
    for one in repairs:
        who = " (for a person)" if one.kind.is_for_a_person else ""
        kind = styled(f"{one.kind.value}{who}", "cyan" if one.is_runnable else "yellow")
        days = f"{len(one.slices):,} day{'s' if len(one.slices) > 1 else ''} of {one.project_id}"
        console.print(line(kind, f", {days}: {one.reason}"), soft_wrap=True)
        console.print(f"  {one.command}", soft_wrap=True)
        if one.obstacle is not None:
            console.print(line("  ", styled("cannot be run", "bold red"), f": {one.obstacle}"), soft_wrap=True)


def comparison_json(found: Reconciliation | KeyComparison) -> dict[str, Any]:
    """Return the result for `--json`; numbers are text, because JSON numbers cannot hold every decimal."""
    if isinstance(found, KeyComparison):
        return keys_json(found)
    return {
        "is_good": found.is_good,
        "first": found.first.isoformat(),
        "last": found.last.isoformat(),
        "totals": [
            {
                "day": one.total.key.event_date.isoformat(),
                "project": one.total.key.project_id,
                "measure": str(one.total.measure),
                "golden": plain(one.total.value),
                "published": None if one.published is None else plain(one.published),
                "difference": None if one.difference is None else signed(one.difference),
                "relative": one.relative,
                "agreement": one.agreement.value,
                "source": one.total.source.value,
                "origin": one.total.origin,
            }
            for one in found.comparisons
        ],
        "faults": [str(fault) for fault in found.faults],
    }


def repairs_json(repairs: Sequence[Repair]) -> list[dict[str, Any]]:
    """Return the proposed repairs for `--json`."""
    return [
        {
            "kind": one.kind.value,
            "is_run": one.kind.is_run,
            "days": [str(key) for key in one.slices],
            "reason": one.reason,
            "command": one.command,
            "obstacle": one.obstacle,
        }
        for one in repairs
    ]


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
        "is_equal": found.is_good,
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
