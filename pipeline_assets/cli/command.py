"""The frame of every command: options, exit codes, errors printed with their fix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from pipeline_assets.cli.terminal import LOG_NAME, PlainConsole, line, print_trace, styled
from pipeline_assets.config import dagster_home
from pipeline_assets.domain.acceptance import a_reason
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.status import DayStatus

EXIT_OK, EXIT_INCOMPLETE, EXIT_USAGE = 0, 1, 2


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
ReadAgainOption = Annotated[
    bool,
    typer.Option(
        "--read-again", help="Bring back days of which a data file is gone: raw from landing, others from their inputs."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show logs and stack traces.")]


def command(function: Callable[..., int]) -> Callable[..., NoReturn]:
    """Return a command for typer: it exits with the function's code, and prints our errors with their fix and no stack trace.

    `--verbose` is added to the options; a function has a parameter for it only where it needs it for more than errors.
    """
    signature = inspect.signature(function, eval_str=True)
    is_wanted = "verbose" in signature.parameters
    option = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=VerboseOption)

    def called(**given: Any) -> NoReturn:
        verbose = given["verbose"] if is_wanted else given.pop("verbose")
        error_console = PlainConsole(stderr=True, soft_wrap=True)
        try:
            code = function(**given)
        except TidemarkError as error:
            _print_error(error_console, error, verbose)
            code = EXIT_USAGE if isinstance(error, UsageError | SettingsError) else EXIT_INCOMPLETE
        except Exception as error:
            # Print a defect with its stack trace, as plain text and without the secrets that a URL may contain.
            print_trace(error_console, error)
            code = EXIT_INCOMPLETE
        raise typer.Exit(code)

    parameters = [*signature.parameters.values(), *([] if is_wanted else [option])]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what typer reads
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__name__, called.__doc__ = function.__name__, function.__doc__
    return called


def _print_error(console: Console, error: TidemarkError, verbose: bool) -> None:
    if verbose:
        print_trace(console, error)
    console.print(line(styled(error.subject, "bold red"), f": {error.reason}"))
    console.print(f"  fix: {error.hint}")


def require_reasons(reasons: Mapping[str, str | None]) -> None:
    """Raise UsageError for an option that was given with an empty reason."""
    for option, reason in reasons.items():
        if reason is not None:
            a_reason(option, reason)


def require_one_meant(
    source: LoadSource, reasons: Mapping[str, str | None], asked: Sequence[str], configured: Sequence[str]
) -> None:
    """Raise UsageError where a change is accepted without naming a project, although several are configured.

    Dimensions belong to no project and need none.
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
    """Return the exit code of a load: EXIT_OK if every day is good and nothing else failed."""
    return EXIT_OK if not failures and all(status.is_good for status in statuses) else EXIT_INCOMPLETE


def print_failures(console: Console, failures: Sequence[str], verbose: bool) -> None:
    """Print the failures of a run that are not verdicts."""
    # Each part of a range may fail for the same reason; print it once.
    for failure in dict.fromkeys(failures):
        # The text of an unknown error may have many lines; they are indented to differ from lines of the load.
        first, *more = failure.splitlines() or [""]
        console.print(styled(first, "bold red"))
        for text in more[:_MOST_LINES]:
            console.print(styled(f"  {text}", "red"))
        if len(more) > _MOST_LINES:
            console.print(f"  and {len(more) - _MOST_LINES:,} more lines")
    if failures and not verbose:
        console.print(f"  details: {dagster_home() / LOG_NAME}, or run again with --verbose")
