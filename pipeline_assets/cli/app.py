"""`tidemark`: the frame of every command (options from its request's fields, exit codes, errors), and which there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pipeline_assets.cli.terminal import VERBOSE, PlainConsole, line, print_trace, styled
from pipeline_assets.domain import requests as ask
from pipeline_assets.domain.checks import a_reason
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.requests import Request, Shell

if TYPE_CHECKING:
    from pipeline_assets.inspection.status import DayStatus


EXIT_OK, EXIT_INCOMPLETE, EXIT_USAGE = 0, 1, 2
_LOUD: Any = Annotated[bool, typer.Option("--verbose", help="Show logs and stack traces.")]
_VERBOSE = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_LOUD)


def command(request: type[Request], module: str) -> Callable[..., NoReturn]:
    """A typer command that calls the request's function; only the call imports its module, for a fast start."""

    def called(*, verbose: bool, **given: Any) -> NoReturn:
        token = VERBOSE.set(verbose or VERBOSE.get())
        error_console = PlainConsole(stderr=True, soft_wrap=True)
        try:
            function = getattr(import_module(f"pipeline_assets.cli.{module}"), request.command().replace("-", "_"))
            code = function(request.model_construct(**given))
        except TidemarkError as error:
            if VERBOSE.get():
                print_trace(error_console, error)
            error_console.print(line(styled(error.subject, "bold red"), f": {error.reason}"))
            error_console.print(f"  fix: {error.hint}")
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
        sides = [(side, name, one) for one in field.metadata for side, name in (("min", "ge"), ("max", "le"))]
        bounds = {side: getattr(one, name) for side, name, one in sides if hasattr(one, name)}
        common: dict[str, Any] = {"help": field.description, "metavar": shell.metavar, "show_default": bool(default)}
        if shell.is_argument:
            parameter = typer.Argument(**common, **bounds)
        else:
            option = shell.option or f"--{(field.alias or name).replace('_', '-')}"
            parameter = typer.Option(option, envvar=shell.variable, **common, **bounds)
        given = inspect.Parameter.empty if field.is_required() else default
        annotation: Any = Annotated[field.annotation, parameter]
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=annotation))
    return found


def require_reasons(reasons: Mapping[str, str | None]) -> None:
    """Raise UsageError for an option that was given with an empty reason."""
    for option, reason in reasons.items():
        if reason is not None:
            a_reason(option, reason)


def exit_code(statuses: Sequence[DayStatus], failures: Sequence[str]) -> int:
    """EXIT_OK if every day is good and nothing else failed."""
    return EXIT_OK if not failures and all(status.is_good for status in statuses) else EXIT_INCOMPLETE


_HELP = "An event pipeline that can recover: load days, see how each one is, correct it, and test that it holds."
app = typer.Typer(name="tidemark", no_args_is_help=True, pretty_exceptions_enable=False, help=_HELP)


def _print_version(is_asked: bool) -> None:
    if not is_asked:
        return
    try:
        typer.echo(f"tidemark {version('tidemark-pipeline')}")
    except PackageNotFoundError:
        typer.echo("tidemark (not installed)")
    raise typer.Exit(EXIT_OK)


_Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@app.callback()
def _root(_is_version: _Version = False) -> None:
    """Group the commands, so that one command alone keeps its name."""


_SEE, _CORRECT, _TEST = "See what is published, and why", "Correct what is published", "Test that it can recover"
COMMANDS: Sequence[tuple[str, str, tuple[type[Request], ...]]] = (
    ("Set up", "install", (ask.Init, ask.Setup)),
    ("Load", "run", (ask.LoadCommand,)),
    ("Load", "recover", (ask.RecoverCommand,)),
    (_SEE, "inspect", (ask.Status, ask.History, ask.Exclusions, ask.Changes, ask.Snapshots)),
    (_SEE, "explain", (ask.Explain,)),
    (_SEE, "prove", (ask.Diff,)),
    (_SEE, "report", (ask.Report, ask.Metrics, ask.Window)),
    ("Operate the lakehouse", "run", (ask.Maintenance, ask.Attach)),
    ("Operate the lakehouse", "report", (ask.Notify,)),
    ("Operate the lakehouse", "install", (ask.Dev,)),
    (_CORRECT, "correct", (ask.Exclude, ask.Include, ask.Rollback, ask.ReleaseCommand, ask.RebuildCommand)),
    (_CORRECT, "recover", (ask.SplitLanding,)),
    (_TEST, "prove", (ask.Verify, ask.Drill, ask.Replay, ask.Doctor)),
    (_TEST, "reconcile", (ask.ReconcileCommand,)),
)
"""Panel of the help, module with the commands' functions, their requests."""
for _panel, _module, _requests in COMMANDS:
    for _request in _requests:
        app.command(_request.command(), rich_help_panel=_panel)(command(_request, _module))
