"""`tidemark`: the same jobs and looks from the shell, for scripts and for people who are not in the UI.

Lives here: commands, their options and exit codes. Put here: a new command. Keep out: what a command does beyond calling
the job or the ledger (cli_load.py, load_path/), and how it looks (cli_tables.py, cli_explain.py, cli_terminal.py).
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from pipeline_assets.cli_tables import day_lines, print_lines, print_status
from pipeline_assets.cli_terminal import LOG_NAME, dagster_home, page, terminal
from pipeline_assets.domain.days import days_between, parse_day, requested_range
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.settings import load_settings
from pipeline_assets.domain.slices import Source
from resources.ledger import Ledger

app = typer.Typer(
    name="tidemark", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="An event pipeline that can recover: load, look, and know where every day stands.",
)  # fmt: skip

EXIT_OK, EXIT_NOT_STANDING, EXIT_USAGE = 0, 1, 2

SourceOption = Annotated[Source, typer.Option("--source", help="Which exports to load.")]
FromOption = Annotated[str, typer.Option("--from", help="First day, YYYY-MM-DD.")]
ToOption = Annotated[str, typer.Option("--to", help="Last day, YYYY-MM-DD.")]
ProjectOption = Annotated[list[str] | None, typer.Option("--project", help="Only this project; may be repeated.")]
AcceptChangesOption = Annotated[
    str | None,
    typer.Option("--accept-changes", metavar="REASON", help="Let refined days change beyond bounds, for this reason."),
]
AcceptMissingOption = Annotated[
    str | None,
    typer.Option("--accept-missing", metavar="REASON", help="Let go what landing lost and raw holds, for this reason."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show logs and stack traces.")]


@app.callback()
def _root() -> None:
    """Group the commands, so that one command alone keeps its name."""


@app.command()
def load(
    source: SourceOption,
    first: FromOption,
    last: ToOption,
    project: ProjectOption = None,
    accept_changes: AcceptChangesOption = None,
    accept_missing: AcceptMissingOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run the load job of a source over a range of days, in this process.

    Exits 0 when every requested day stands published or unchanged, 1 when one stands refused, waiting or held, 2 on
    bad usage.
    """
    reasons = {"--accept-changes": accept_changes, "--accept-missing": accept_missing}
    _run(lambda: _load(source, first, last, tuple(project or ()), reasons, as_json, verbose), verbose)


@app.command()
def status(
    first: Annotated[str | None, typer.Option("--from", help="First day; default two weeks ago.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last day; default today.")] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show where days stand: one row per day, one column per table."""
    _run(lambda: _status(first, last, as_json), verbose)


@app.command()
def explain(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The insert_id or uuid of an event.")],
    project: ProjectOption = None,
    first: Annotated[str | None, typer.Option("--from", help="First event day; default all.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last event day; default all.")] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show where a row came from: every delivery of an event, which one won and why, and where it was published.

    Writes nothing. Exits 0 when something was found, 1 when nothing was, 2 on bad usage.
    """
    _run(lambda: _explain(identifier, tuple(project or ()), first, last, as_json, verbose), verbose)


def main() -> None:
    """Entry point of the `tidemark` script."""
    app()


def _run(command: Callable[[], int], verbose: bool) -> NoReturn:
    error_console = Console(stderr=True, soft_wrap=True)
    try:
        code = command()
    except (UsageError, SettingsError) as error:
        _print_error(error_console, error, verbose)
        code = EXIT_USAGE
    except TidemarkError as error:
        _print_error(error_console, error, verbose)
        code = EXIT_NOT_STANDING
    raise typer.Exit(code)


def _print_error(console: Console, error: TidemarkError, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    console.print(f"[bold red]{error.subject}[/]: {error.reason}", highlight=False)
    console.print(f"  cure: {error.cure}", highlight=False)


def _load(
    source: Source,
    first: str,
    last: str,
    projects: tuple[str, ...],
    reasons: Mapping[str, str | None],
    as_json: bool,
    verbose: bool,
) -> int:
    # Dagster is slow to import; `status` and `--help` start without it.
    from pipeline_assets.cli_load import load_in_chunks  # noqa: PLC0415 - see above

    settings = load_settings()
    days = requested_range(first, last, settings)
    chosen = settings.require_projects(projects)
    for option, reason in reasons.items():
        if reason is not None and not reason.strip():
            raise UsageError(option, "needs a reason", "Say why it is right; it stays on record")
    with terminal(verbose=verbose) as console:
        failures = load_in_chunks(settings, source, days, projects, reasons, console, verbose=verbose)
        for failure in failures:
            console.print(f"[bold red]{failure}[/]", highlight=False)
        if failures and not verbose:
            console.print(f"  details: {dagster_home() / LOG_NAME}, or run again with --verbose", highlight=False)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        lines = day_lines(ledger, chosen, days, sources=(source,))
    if as_json:
        sys.stdout.write(json.dumps([line.to_json() for line in lines], indent=2) + "\n")
    else:
        print_lines(page(), lines)
    is_standing = all(line.verdict is not None and line.verdict.is_good for line in lines)
    return EXIT_OK if is_standing and not failures else EXIT_NOT_STANDING


def _status(first: str | None, last: str | None, as_json: bool) -> int:
    settings = load_settings()
    projects = settings.require_projects()
    end = parse_day(last) if last else datetime.now(UTC).date()
    start = parse_day(first) if first else end - timedelta(days=13)
    if end < start:
        raise UsageError(f"--from {start} --to {end}", "the range ends before it begins", "Swap the two days")
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        lines = day_lines(ledger, projects, days_between(start, end), sources=tuple(Source))
    if as_json:
        sys.stdout.write(json.dumps([line.to_json() for line in lines], indent=2) + "\n")
    else:
        print_status(page(), lines)
    return EXIT_OK


def _explain(
    identifier: str, projects: tuple[str, ...], first: str | None, last: str | None, as_json: bool, verbose: bool
) -> int:
    # Spark is slow to import; `status` and `--help` start without it.
    from pipeline_assets.cli_explain import print_explanation, to_json, workbench  # noqa: PLC0415 - see above
    from pipeline_assets.load_path.explain.explain import explain as explain_event  # noqa: PLC0415 - see above

    settings = load_settings()
    start, end = (parse_day(day) if day else None for day in (first, last))
    with (
        terminal(verbose=verbose) as console,
        workbench(settings, lambda text: console.print(f"[dim]{text}[/]", highlight=False)) as bench,
    ):
        explanation = explain_event(bench, identifier, projects=projects, first=start, last=end)
    if as_json:
        sys.stdout.write(json.dumps(to_json(explanation), indent=2) + "\n")
    else:
        print_explanation(page(), explanation)
    return EXIT_OK if explanation.is_found else EXIT_NOT_STANDING


if __name__ == "__main__":
    main()
