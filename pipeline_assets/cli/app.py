"""`tidemark`: the frame of every command (options from its request's fields, exit codes, errors), and which there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from pipeline_assets.cli.terminal import LOG_NAME, VERBOSE, PlainConsole, line, print_trace, styled
from pipeline_assets.config import dagster_home
from pipeline_assets.domain import requests as ask
from pipeline_assets.domain.checks import a_reason
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.requests import Request, Shell

if TYPE_CHECKING:
    from pipeline_assets.inspection.status import DayStatus


EXIT_OK, EXIT_INCOMPLETE, EXIT_USAGE = 0, 1, 2
_MOST_LINES = 20
_VERBOSE = inspect.Parameter(
    "verbose",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--verbose", help="Show logs and stack traces.")],
)


def command(request: type[Request], module: str) -> Callable[..., NoReturn]:
    """A typer command that calls the request's function; only the call imports its module, for a fast start."""

    def called(*, verbose: bool, **given: Any) -> NoReturn:
        token = VERBOSE.set(verbose or VERBOSE.get())
        error_console = PlainConsole(stderr=True, soft_wrap=True)
        try:
            function = getattr(import_module(f"pipeline_assets.cli.{module}"), request.command().replace("-", "_"))
            code = function(request.model_construct(**given))
        except TidemarkError as error:
            _print_error(error_console, error)
            code = EXIT_USAGE if isinstance(error, UsageError | SettingsError) else EXIT_INCOMPLETE
        except Exception as error:
            # A defect: print its stack trace without markup and secrets.
            print_trace(error_console, error)
            code = EXIT_INCOMPLETE
        finally:
            VERBOSE.reset(token)
        raise typer.Exit(code)

    parameters = [*_parameters(request), _VERBOSE]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__doc__ = request.__doc__
    return called


def _parameters(request: type[Request]) -> list[inspect.Parameter]:
    """The parameters for typer, of the request's fields; `--json` comes last."""
    found = []
    for name, field in sorted(request.model_fields.items(), key=lambda one: one[0] == "as_json"):
        extra: Any = field.json_schema_extra
        shell: Shell = extra["shell"]
        if shell.is_hidden:
            continue
        default = field.get_default(call_default_factory=True)
        bounds = {
            side: getattr(one, name) for one in field.metadata for side, name in _BOUNDS.items() if hasattr(one, name)
        }
        told: dict[str, Any] = {
            "help": field.description,
            "metavar": shell.metavar,
            "show_default": bool(default),
            **bounds,
        }
        if shell.is_argument:
            parameter = typer.Argument(**told)
        else:
            option = shell.option or f"--{(field.alias or name).replace('_', '-')}"
            parameter = typer.Option(option, envvar=shell.variable, **told)
        found.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else default,
                annotation=Annotated[field.annotation, parameter],
            )
        )
    return found


_BOUNDS = {"min": "ge", "max": "le"}


def _print_error(console: Console, error: TidemarkError) -> None:
    if VERBOSE.get():
        print_trace(console, error)
    console.print(line(styled(error.subject, "bold red"), f": {error.reason}"))
    console.print(f"  fix: {error.hint}")


def require_reasons(reasons: Mapping[str, str | None]) -> None:
    """Raise UsageError for an option that was given with an empty reason."""
    for option, reason in reasons.items():
        if reason is not None:
            a_reason(option, reason)


def exit_code(statuses: Sequence[DayStatus], failures: Sequence[str]) -> int:
    """EXIT_OK if every day is good and nothing else failed."""
    return EXIT_OK if not failures and all(status.is_good for status in statuses) else EXIT_INCOMPLETE


def print_failures(console: Console, failures: Sequence[str]) -> None:
    """Print the failures of a run that are not verdicts."""
    for failure in dict.fromkeys(failures):
        # Further lines are indented to differ from those of the load.
        first, *more = failure.splitlines() or [""]
        console.print(styled(first, "bold red"))
        for text in more[:_MOST_LINES]:
            console.print(styled(f"  {text}", "red"))
        if len(more) > _MOST_LINES:
            console.print(f"  and {len(more) - _MOST_LINES:,} more lines")
    if failures and not VERBOSE.get():
        console.print(f"  details: {dagster_home() / LOG_NAME}, or run again with --verbose")


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


COMMANDS: Mapping[str, Mapping[type[ask.Request], str]] = {
    "Set up": {ask.Init: "install", ask.Setup: "install"},
    "Load": {ask.LoadCommand: "run", ask.RecoverCommand: "recover"},
    "See what is published, and why": {
        ask.Status: "inspect",
        ask.Explain: "explain",
        ask.History: "inspect",
        ask.Diff: "prove",
        ask.Exclusions: "inspect",
        ask.Report: "report",
        ask.Metrics: "report",
        ask.Changes: "inspect",
        ask.Snapshots: "inspect",
        ask.Window: "report",
    },
    "Operate the lakehouse": {
        ask.Maintenance: "run",
        ask.Notify: "report",
        ask.Attach: "run",
        ask.Dev: "install",
    },
    "Correct what is published": {
        ask.Exclude: "correct",
        ask.Include: "correct",
        ask.Rollback: "correct",
        ask.ReleaseCommand: "correct",
        ask.RebuildCommand: "correct",
        ask.SplitLanding: "recover",
    },
    "Test that it can recover": {
        ask.Verify: "prove",
        ask.Drill: "prove",
        ask.Replay: "prove",
        ask.ReconcileCommand: "reconcile",
        ask.Doctor: "prove",
    },
}
"""Panel of the help -> request -> the module with the command's function."""
for _panel, _commands in COMMANDS.items():
    for _request, _module in _commands.items():
        app.command(_request.command(), rich_help_panel=_panel)(command(_request, _module))
