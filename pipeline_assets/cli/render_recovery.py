"""Output of a recovery: plan, progress bar and outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table as RichTable

from pipeline_assets.cli.terminal import line, plainly, styled
from pipeline_assets.operations.recover import HourFate, HourOutcome, Progress, grouped, in_lines, size_text
from pipeline_assets.operations.recover_plan import HourState, PlannedHour, RecoveryPlan, hours_text

_STATES = {HourState.REFUSED: "bold red", HourState.LOST: "bold red"}
_STATES |= dict.fromkeys((HourState.MISSING, HourState.UNFINISHED), "yellow")
_FATES = {HourFate.FAILED: "bold red", HourFate.NOT_EXPORTED: "yellow"}


@contextmanager
def progress_on(console: Console, plan: RecoveryPlan) -> Iterator[Progress]:
    """Show a progress bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield in_lines(plan, plainly(console))
        return
    columns = (TextColumn("  {task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, transient=True, console=console) as bar:
        task = bar.add_task("asking the vendor", total=sum(one.is_fetched for one in plan.asked))
        total = 0

        def received(size: int) -> None:
            nonlocal total
            total += size
            bar.update(task, description=f"hours, {size_text(total)}")

        yield Progress(received, lambda _: bar.advance(task))


def print_plan(console: Console, plan: RecoveryPlan) -> None:
    """Print rows of hours in the same state, then warnings, then what would be fetched."""
    table = RichTable("project", "day", "hours", "state", "a recovery", "reason", box=None, pad_edge=False)
    groups: dict[tuple[str, date, HourState, str, str], list[int]] = {}
    for one in plan.asked:
        place = (one.project_id, one.hour.day, one.state, _then(one), one.reason or "")
        groups.setdefault(place, []).append(one.hour.hour)
    for (project, day, state, then, reason), hours in groups.items():
        table.add_row(project, str(day), hours_text(hours), styled(state, _STATES.get(state, "")), then, reason)
    if groups:
        console.print(table)
    print_warnings(console, plan)
    fetched = sum(one.is_fetched for one in plan.asked)
    bad = sum(one.state.is_bad and one.is_exported for one in plan.asked)
    console.print(f"{bad:,} of {len(plan.asked):,} hours are missing or refused; {fetched:,} would be fetched")


def _then(one: PlannedHour) -> str:
    if one.is_fetched:
        return "fetches them"
    return "waits for the vendor" if one.is_waited_for else "has them"


def print_warnings(console: Console, plan: RecoveryPlan) -> None:
    """Print what an operator should know before the days are loaded."""
    for warning in plan.warnings:
        console.print(line(styled("warning", "yellow"), f": {warning}"), soft_wrap=True)


def print_outcomes(console: Console, outcomes: Sequence[HourOutcome]) -> None:
    """Print rows of hours with the same outcome, then each reason once."""
    table = RichTable("project", "day", "hours", "", "objects", "size", box=None, pad_edge=False)
    found = grouped(list(outcomes))
    for one in found:
        table.add_row(
            one.project_id,
            str(one.day),
            hours_text(one.hours),
            styled(one.fate, _FATES.get(one.fate, "green")),
            f"{one.objects:,}" if one.objects else "",
            size_text(one.size_bytes) if one.objects else "",
        )
    if found:
        console.print(table)
    for error in dict.fromkeys(str(one.error) for one in found if one.error is not None):
        console.print(line(styled(HourFate.FAILED.value, "bold red"), f": {error}"), soft_wrap=True)
    if not outcomes:
        console.print("Nothing is to be recovered: no day of the range is refused, or lacks an hour")
        return
    good = sum(one.fate.is_good for one in outcomes)
    console.print(f"{good:,} of {len(outcomes):,} hours are whole below the backfill prefix")


def plan_json(plan: RecoveryPlan) -> list[dict[str, Any]]:
    """Return the plan for `--dry-run --json`."""
    return [
        {
            "project": one.project_id,
            "hour": str(one.hour),
            "state": one.state.value,
            "is_fetched": one.is_fetched,
            "is_exported": one.is_exported,
            "reason": one.reason,
        }
        for one in plan.asked
    ]


def outcomes_json(outcomes: Sequence[HourOutcome]) -> list[dict[str, Any]]:
    """Return the outcomes for `--json`."""
    return [
        {
            "project": one.project_id,
            "hour": str(one.hour),
            "outcome": one.fate.value,
            "objects": one.objects,
            "bytes": one.size_bytes,
            "reason": None if one.error is None else str(one.error),
        }
        for one in outcomes
    ]
