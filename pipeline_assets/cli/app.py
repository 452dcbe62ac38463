"""`tidemark`: the command line for scripts and for operators outside the UI."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from pipeline_assets.cli.command import EXIT_OK, command
from pipeline_assets.domain import requests as ask

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
        ask.RebuildCommand: "rebuild",
        ask.SplitLanding: "correct",
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
