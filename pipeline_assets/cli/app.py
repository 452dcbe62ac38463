"""`tidemark`: the command line for scripts and for operators outside the UI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from pipeline_assets.cli.attach import attach
from pipeline_assets.cli.changes import changes, notify
from pipeline_assets.cli.command import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    AcceptChangesOption,
    AcceptMissingOption,
    FromOption,
    JsonOption,
    LoadSource,
    ProjectOption,
    ReadAgainOption,
    SourceOption,
    ToOption,
    VerboseOption,
    command,
    exit_code,
    print_failures,
    require_one_meant,
    require_reasons,
)
from pipeline_assets.cli.correct import exclude, include, release, rollback
from pipeline_assets.cli.dev import dev
from pipeline_assets.cli.doctor import doctor
from pipeline_assets.cli.inspect import diff, drill, exclusions, history, verify
from pipeline_assets.cli.install import init, setup
from pipeline_assets.cli.rebuild import rebuild, rebuild_lines
from pipeline_assets.cli.reconcile import reconcile
from pipeline_assets.cli.recover import recover
from pipeline_assets.cli.render_tables import fault_lines, mismatch_lines, print_grid, print_statuses, process_lines
from pipeline_assets.cli.replay import replay
from pipeline_assets.cli.report import metrics, report
from pipeline_assets.cli.snapshots import snapshots
from pipeline_assets.cli.split import split_landing
from pipeline_assets.cli.terminal import PlainConsole, page, plainly, terminal, write_json
from pipeline_assets.cli.window import window
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import days_between, parse_day, requested_range
from pipeline_assets.domain.errors import LedgerUnavailableError, UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.questions import receiver_troubles
from pipeline_assets.inspection.status import DayStatus, day_statuses, dimension_statuses, joined_statuses
from pipeline_assets.load.golden import compare_recorded, faults_on_record
from pipeline_assets.load.staleness.finality import too_narrow
from resources.ledger.engine import OUT_OF_REACH
from resources.ledger.store import Ledger, own_ledger
from resources.publishing import promise_of

app = typer.Typer(
    name="tidemark",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An event pipeline that can recover: load days, see how each one is, correct it, and test that it holds.",
)


_DISTRIBUTION = "tidemark-pipeline"


def _print_version(is_asked: bool) -> None:
    if not is_asked:
        return
    try:
        typer.echo(f"tidemark {version(_DISTRIBUTION)}")
    except PackageNotFoundError:
        typer.echo("tidemark (not installed)")
    raise typer.Exit(EXIT_OK)


@app.callback()
def _root(
    _is_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Group the commands, so that one command alone keeps its name."""


def load(
    source: SourceOption,
    first: FromOption,
    last: ToOption,
    project: ProjectOption = None,
    accept_changes: AcceptChangesOption = None,
    accept_missing: AcceptMissingOption = None,
    read_again: ReadAgainOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Run the load job of a source over a range of days, in this process.

    Exits 0 when every requested day is published or unchanged, 1 when one is refused, waiting or held, 2 on
    bad usage.
    """
    from pipeline_assets.cli.run import load_in_chunks  # noqa: PLC0415 - `status` starts without Dagster

    reasons = {"--accept-changes": accept_changes, "--accept-missing": accept_missing}
    projects = tuple(project or ())
    settings = load_settings()
    days = requested_range(first, last, settings)
    chosen = settings.require_projects(projects)
    require_reasons(reasons)
    require_one_meant(source, reasons, projects, settings.projects)
    with terminal(verbose=verbose) as console:
        failures = load_in_chunks(
            settings, source, days, projects, reasons, console, is_read_again=read_again, verbose=verbose
        )
        print_failures(console, failures, verbose)
    try:
        statuses = _of_load(settings, source, chosen, days)
    except LedgerUnavailableError:
        # The run may have failed for the same reason, or earlier for another one.
        if not any(OUT_OF_REACH in failure for failure in failures):
            raise
        return EXIT_INCOMPLETE
    if as_json:
        write_json([status.to_json() for status in statuses])
    else:
        print_statuses(page(), statuses)
    return exit_code(statuses, failures)


def status(
    first: Annotated[str | None, typer.Option("--from", help="First day; default two weeks ago.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last day; default today.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Show the status of days: one row per day, one column per table.

    Below: mismatches of golden totals, invalid golden totals, running and dead runs, open rebuilds, a window that is too
    narrow, receivers with unsent notices, and what readers may rely on while a load publishes.
    """
    settings = load_settings()
    projects = settings.require_projects()
    end = parse_day(last) if last else datetime.now(UTC).date()
    start = parse_day(first) if first else end - timedelta(days=13)
    if end < start:
        raise UsageError(f"--from {start} --to {end}", "the range ends before it begins", "Swap the two days")
    with own_ledger(settings) as ledger:
        days = days_between(start, end)
        statuses = day_statuses(ledger, projects, days, sources=tuple(Source))
        statuses += joined_statuses(ledger, projects, days, is_all_wanted=True)
        statuses += dimension_statuses(ledger, days)
        processes = [*process_lines(ledger), *rebuild_lines(ledger.rebuilds.open())]
        strays = list(ledger.strays.all(projects))
        troubles = receiver_troubles(ledger, settings)
        mismatches = [one for one in compare_recorded(ledger, settings, projects, start, end) if not one.is_good]
        faults = faults_on_record(ledger, settings)
        narrow = too_narrow(ledger, settings, Source.REGULAR, projects, datetime.now(UTC).date())
    if as_json:
        write_json([status.to_json() for status in statuses])
    else:
        print_grid(page(), statuses, strays)
    # Keep other lines out of the JSON that scripts parse.
    console = PlainConsole(stderr=True, soft_wrap=True) if as_json else page()
    others = (*processes, *narrow, *troubles, promise_of(settings).sentence)
    for line in (*mismatch_lines(mismatches), *fault_lines(faults), *others):
        console.print(str(line))
    return EXIT_OK


def explain(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The insert_id or uuid of an event.")],
    project: ProjectOption = None,
    first: Annotated[str | None, typer.Option("--from", help="First event day; default all.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last event day; default all.")] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Show where a row came from: every delivery of an event, which one won and why, and where it was published.

    Writes nothing. Exits 0 when something was found, 1 when nothing was, 2 on bad usage.
    """
    from pipeline_assets.cli.render_trace import print_explanation, to_json  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.cli.run import open_runtime  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.inspection.explain import explain as explain_event  # noqa: PLC0415 - `status` starts without Spark

    settings = load_settings()
    start, end = (parse_day(day) if day else None for day in (first, last))
    with (
        terminal(verbose=verbose) as console,
        open_runtime(settings, plainly(console)) as runtime,
    ):
        explanation = explain_event(runtime, identifier, projects=tuple(project or ()), first=start, last=end)
    if as_json:
        write_json(to_json(explanation))
    else:
        print_explanation(page(), explanation)
    return EXIT_OK if explanation.is_found else EXIT_INCOMPLETE


def maintenance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    verbose: VerboseOption = False,
) -> int:
    """Remove what no reader, no rollback and no run needs: dead branches, small files, old snapshots, orphan files.

    Safe beside a load. Exits 0 when every table was looked after, 1 when one could not be, 2 on bad usage.
    """
    from pipeline_assets.cli.run import run_operation  # noqa: PLC0415 - `status` starts without Dagster
    from pipeline_assets.orchestration.maintenance_job import JOB_NAME  # noqa: PLC0415 - `status` starts without Dagster

    settings = load_settings()
    with terminal(verbose=verbose) as console:
        failures = run_operation(settings, JOB_NAME, "maintain", {"dry_run": dry_run}, console, verbose=verbose)
        print_failures(console, failures, verbose)
    return EXIT_INCOMPLETE if failures else EXIT_OK


def _of_load(settings: Settings, source: LoadSource, projects: Sequence[str], days: Sequence[date]) -> list[DayStatus]:
    """The recorded status of each requested day; the load itself refuses a ledger that is not the lake's."""
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        if source is LoadSource.DIMENSIONS:
            statuses = dimension_statuses(ledger, days, is_all_wanted=True)
        else:
            statuses = day_statuses(ledger, projects, days, sources=(Source(source.value),))
        return [*statuses, *joined_statuses(ledger, projects, days)]


_COMMANDS: dict[str, tuple[Callable[..., int], ...]] = {
    "Set up": (init, setup),
    "Load": (load, recover),
    "See what is published, and why": (
        *(status, explain, history, diff, exclusions),
        *(report, metrics, changes, snapshots, window),
    ),
    "Operate the lakehouse": (maintenance, notify, attach, dev),
    "Correct what is published": (exclude, include, rollback, release, rebuild, split_landing),
    "Test that it can recover": (verify, drill, replay, reconcile, doctor),
}
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(command(_command))
