"""Output of a reconciliation: totals by measure, each mismatch, proposed repairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.domain.golden import GoldenComparison, GoldenMeasure, plain, signed
from pipeline_assets.domain.golden_tolerance import GoldenTolerance
from pipeline_assets.domain.repairs import Repair
from pipeline_assets.domain.settings import Settings
from pipeline_assets.operations.reconcile import Reconciliation

_MOST_LINES = 40


def print_reconciliation(console: Console, found: Reconciliation, settings: Settings) -> None:
    """Print a row per measure, a line per mismatch and fault, then the sum."""
    by_measure: dict[GoldenMeasure, list[GoldenComparison]] = {}
    for one in found.comparisons:
        by_measure.setdefault(one.total.measure, []).append(one)
    headings = ("measure", "totals", "agree", "mismatches", "largest difference", "tolerance")
    table = RichTable(*headings, box=None, pad_edge=False)
    for measure, comparisons in sorted(by_measure.items()):
        bad = sum(not one.is_good for one in comparisons)
        shares = [one.relative for one in comparisons if one.relative is not None]
        tolerance = _tolerance(settings.golden_tolerance_of(str(measure)))
        table.add_row(
            str(measure),
            f"{len(comparisons):,}",
            f"{len(comparisons) - bad:,}",
            styled(f"{bad:,}", "bold red" if bad else ""),
            f"{max(shares):.4%}" if shares else "",
            tolerance,
        )
    if by_measure:
        console.print(table)
    for one in found.mismatches[:_MOST_LINES]:
        place = f" {one.total.key} {one.total.measure.table}: {one} [{one.total.origin}]"
        console.print(line(styled(one.agreement.value, "bold red"), place), soft_wrap=True)
    if len(found.mismatches) > _MOST_LINES:
        console.print(f"and {len(found.mismatches) - _MOST_LINES:,} more mismatches; --json has them all")
    for fault in found.faults:
        console.print(line(styled("not compared", "yellow"), f": {fault}"), soft_wrap=True)
    console.print(_sum(found))


def _sum(found: Reconciliation) -> str:
    span = f"{found.first} to {found.last}"
    if not found.comparisons:
        return f"there is nothing to compare: no golden totals of {span}"
    days = len({one.total.key for one in found.comparisons})
    bad = len(found.mismatches)
    told = f"{len(found.comparisons):,} golden totals of {days:,} days and projects ({span})"
    return f"{told}: {f'{bad:,} of them do not agree' if bad else 'all agree'}"


def _tolerance(within: GoldenTolerance) -> str:
    parts = [f"{float(within.relative):.4%}"] if within.relative else []
    parts += [plain(within.absolute)] if within.absolute else []
    return " or ".join(parts) or "exact"


def print_repairs(console: Console, repairs: Sequence[Repair]) -> None:
    """Print a paragraph per repair: kind, days, reason and command."""
    for one in repairs:
        style = "cyan" if one.kind.is_run and one.obstacle is None else "yellow"
        who = " (for a person)" if one.kind.is_for_a_person else ""
        days = f"{len(one.slices):,} day{'s' if len(one.slices) > 1 else ''} of {one.project_id}"
        console.print(line(styled(f"{one.kind.value}{who}", style), f", {days}: {one.reason}"), soft_wrap=True)
        console.print(f"  {one.command}", soft_wrap=True)
        if one.obstacle is not None:
            console.print(line("  ", styled("cannot be run", "bold red"), f": {one.obstacle}"), soft_wrap=True)


def reconciliation_json(found: Reconciliation, repairs: Sequence[Repair]) -> dict[str, Any]:
    """Return the result for `--json`; numbers are text, because JSON numbers cannot hold every decimal."""
    return {
        "is_good": found.is_good,
        "first": found.first.isoformat(),
        "last": found.last.isoformat(),
        "totals": [_comparison_json(one) for one in found.comparisons],
        "faults": [str(fault) for fault in found.faults],
        "repairs": repairs_json(repairs),
    }


def _comparison_json(one: GoldenComparison) -> dict[str, Any]:
    return {
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
