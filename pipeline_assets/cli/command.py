"""What every command shares: options, exit codes, errors as one line with their fix.

Contains: the frame of a command.
Add here: an option that several commands take.
Does not contain: any one command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from pipeline_assets.cli.terminal import LOG_NAME, PlainConsole, line, print_trace, styled
from pipeline_assets.config import dagster_home
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.reasons import a_reason
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.status import DayStatus

EXIT_OK, EXIT_INCOMPLETE, EXIT_USAGE = 0, 1, 2


class Panel(StrEnum):
    """How `tidemark` groups what it can do."""

    INSTALL = "Set up"
    LOAD = "Load"
    INSPECT = "See what is published, and why"
    CORRECT = "Correct what is published"
    TEST = "Test that it can recover"
    OPERATE = "Operate the lakehouse"


_MOST_LINES = 20


class LoadSource(StrEnum):
    """What `load` reads from landing."""

    REGULAR = Source.REGULAR.value
    BACKFILL = Source.BACKFILL.value
    DIMENSIONS = "dimensions"
    """The snapshots of all dimensions."""


SourceOption = Annotated[
    LoadSource, typer.Option("--source", help="Which exports to load, or the snapshots of dimensions.")
]
FromOption = Annotated[str, typer.Option("--from", help="First day, YYYY-MM-DD.")]
ToOption = Annotated[str, typer.Option("--to", help="Last day, YYYY-MM-DD.")]
ProjectOption = Annotated[list[str] | None, typer.Option("--project", help="Only this project; may be repeated.")]
AcceptChangesOption = Annotated[
    str | None,
    typer.Option(
        "--accept-changes",
        metavar="REASON",
        help="Accept changes beyond bounds in the named project's published days, for this reason.",
    ),
]
AcceptMissingOption = Annotated[
    str | None,
    typer.Option(
        "--accept-missing",
        metavar="REASON",
        help="Accept that landing lost objects of the named project, for this reason.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show logs and stack traces.")]


def run(command: Callable[[], int], verbose: bool) -> NoReturn:
    """Run it and leave with its exit code; errors of ours are printed without a stack trace."""
    error_console = PlainConsole(stderr=True, soft_wrap=True)
    try:
        code = command()
    except (UsageError, SettingsError) as error:
        _print_error(error_console, error, verbose)
        code = EXIT_USAGE
    except TidemarkError as error:
        _print_error(error_console, error, verbose)
        code = EXIT_INCOMPLETE
    except Exception as error:
        # A defect is printed in full, but as text, and without what the interpreter would repeat of a URL.
        print_trace(error_console, error)
        code = EXIT_INCOMPLETE
    raise typer.Exit(code)


def _print_error(console: Console, error: TidemarkError, verbose: bool) -> None:
    if verbose:
        print_trace(console, error)
    console.print(line(styled(error.subject, "bold red"), f": {error.reason}"))
    console.print(f"  fix: {error.hint}")


def require_reasons(reasons: Mapping[str, str | None]) -> None:
    """Options that were given must say something; raises UsageError."""
    for option, reason in reasons.items():
        if reason is not None:
            a_reason(option, reason)


def require_one_meant(
    source: LoadSource, reasons: Mapping[str, str | None], asked: Sequence[str], configured: Sequence[str]
) -> None:
    """What is let through is let through for projects that were named, where there are several; raises UsageError.

    A snapshot of a dimension belongs to no project, so none has to be named for it.
    """
    if source is LoadSource.DIMENSIONS:
        return
    for option, reason in reasons.items():
        if reason is not None and not asked and len(configured) > 1:
            raise UsageError(
                option,
                f"would apply to all projects ({', '.join(configured)})",
                f"Name the projects that you checked: --project {configured[0]}",
            )


def exit_code(statuses: Sequence[DayStatus], failures: Sequence[str]) -> int:
    """Of a command that loads: whether every day is good and nothing else went wrong."""
    return EXIT_OK if not failures and all(status.is_good for status in statuses) else EXIT_INCOMPLETE


def print_failures(console: Console, failures: Sequence[str], verbose: bool) -> None:
    """What went wrong in a run beyond verdicts."""
    # A range that is loaded in parts may fail for the same reason in each.
    for failure in dict.fromkeys(failures):
        # What broke without a name of ours tells pages; a line of it never begins like one of the load's.
        first, *more = failure.splitlines() or [""]
        console.print(styled(first, "bold red"))
        for text in more[:_MOST_LINES]:
            console.print(styled(f"  {text}", "red"))
        if len(more) > _MOST_LINES:
            console.print(f"  and {len(more) - _MOST_LINES:,} more lines")
    if failures and not verbose:
        console.print(f"  details: {dagster_home() / LOG_NAME}, or run again with --verbose")
