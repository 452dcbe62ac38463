"""`tidemark recover`: download hours from the vendor again, and load them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from dagster_aws.s3 import S3Resource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, print_failures
from pipeline_assets.cli.inspect import status_table
from pipeline_assets.cli.run import load_in_chunks
from pipeline_assets.cli.terminal import line, page, plainly, show, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import stretches
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.report import Table
from pipeline_assets.domain.requests import LoadSource, RecoverCommand
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.inspection.status import recorded_statuses
from pipeline_assets.operations.recover import HourOutcome, Progress, Recovery, in_lines, size_text, whole_days
from pipeline_assets.operations.recover_plan import RecoveryPlan, plan_recovery, recovery_request
from pipeline_assets.orchestration.operation_job import outcome_table, plan_table
from resources.export_api import ExportApi
from resources.landing.store import LandingStore
from resources.ledger.store import own_ledger


def recover(request: RecoverCommand) -> int:
    """Plan, then fetch what is lacking, then load it if requested."""
    settings = load_settings()
    parsed = recovery_request(settings, request)
    landing = LandingStore.from_settings(settings, S3Resource())
    with own_ledger(settings) as ledger:
        plan = plan_recovery(ledger, landing, settings, parsed, datetime.now(UTC))
    if request.dry_run:
        _print_plan(plan, as_json=request.as_json)
        return EXIT_OK
    with terminal() as console:
        _print_warnings(console, plan)
        api = ExportApi(settings, plainly(console))
        with progress_on(console, plan) as progress, own_ledger(settings) as ledger:
            outcomes = Recovery(api, landing, settings, ledger.recoveries, progress).run(plan)
    _print_outcomes(outcomes, as_json=request.as_json)
    days, short = whole_days(outcomes)
    if not request.load:
        return EXIT_INCOMPLETE if short else EXIT_OK
    with terminal() as console:
        if short:
            plainly(console)(f"not loaded, because hours of them are not recovered: {few(short)}")
        failures = _load(settings, days, console)
        print_failures(console, failures)
    with own_ledger(settings) as ledger:
        statuses = recorded_statuses(ledger, set(days), sources=(Source.BACKFILL,)) if days else []
    if not request.as_json:
        show(page(), status_table(statuses))
    is_good = not failures and all(status.is_good for status in statuses)
    return EXIT_OK if is_good and not short else EXIT_INCOMPLETE


def _load(settings: Settings, recovered: Sequence[Slice], console: Console) -> list[str]:
    days = sorted({key.event_date for key in recovered})
    projects = tuple(dict.fromkeys(key.project_id for key in recovered))
    failures: list[str] = []
    for part in stretches(days, settings.days_per_run):
        failures += load_in_chunks(settings, LoadSource.BACKFILL, part, projects, {}, console)
    return failures


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


def _print_warnings(console: Console, plan: RecoveryPlan) -> None:
    show(console, *(line(styled("warning", "yellow"), f": {warning}") for warning in plan.warnings))


def _print_plan(plan: RecoveryPlan, *, as_json: bool) -> None:
    if as_json:
        names = ("is_fetched", "is_exported", "reason")
        hours = [
            {"project": one.project_id, "hour": str(one.hour), "state": one.state.value}
            | {name: getattr(one, name) for name in names}
            for one in plan.asked
        ]
        write_json(hours)
        return
    show(page(), plan_table(plan))
    _print_warnings(page(), plan)
    fetched = sum(one.is_fetched for one in plan.asked)
    bad = sum(one.state.is_bad and one.is_exported for one in plan.asked)
    show(page(), f"{bad:,} of {len(plan.asked):,} hours are missing or refused; {fetched:,} would be fetched")


def _print_outcomes(outcomes: Sequence[HourOutcome], *, as_json: bool) -> None:
    if as_json:
        hours = [
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
        write_json(hours)
        return
    headings, rows = outcome_table(outcomes)
    show(page(), Table(headings[:-1], [row[:-1] for row in rows]))
    for error in dict.fromkeys(str(one.error) for one in outcomes if one.error is not None):
        show(page(), line(styled("not recovered", "bold red"), f": {error}"))
    if not outcomes:
        show(page(), "Nothing is to be recovered: no day of the range is refused, or lacks an hour")
        return
    good = sum(one.fate.is_good for one in outcomes)
    show(page(), f"{good:,} of {len(outcomes):,} hours are whole below the backfill prefix")
