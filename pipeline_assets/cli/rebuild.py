"""`tidemark rebuild`: build days again beside main, show the report, swap them in, abandon them or undo the swap."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from pipeline_assets.cli.command import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    JsonOption,
    Panel,
    ProjectOption,
    VerboseOption,
    print_failures,
    require_reasons,
    run,
)
from pipeline_assets.cli.render_rebuild import GreenSlices, print_rebuild, print_rebuilds, rebuild_json
from pipeline_assets.cli.terminal import page, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.settings import Settings
from resources.ledger.store import own_ledger


class Verb(StrEnum):
    """What the command does with a rebuild."""

    START = "start"
    SHOW = "show"
    SWAP = "swap"
    ABANDON = "abandon"
    UNDO = "undo"


def rebuild(
    verb: Annotated[
        Verb, typer.Argument(metavar="start|show|swap|abandon|undo", help="What to do.", show_default=False)
    ],
    number: Annotated[
        int | None, typer.Argument(metavar="ID", help="Of the rebuild, as `start` prints it; not of a start.")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="start: only this table, such as refined/events; may be repeated."),
    ] = None,
    first: Annotated[str | None, typer.Option("--from", help="start: first day, YYYY-MM-DD.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="start: last day, YYYY-MM-DD.")] = None,
    project: ProjectOption = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; it stays on record. A start needs one.")] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Rebuild published days with the present code and settings beside main, while loads go on.

    `start` builds and reports what would change, and goes on with a rebuild that was interrupted. `show` prints the
    report, or lists all rebuilds. `swap` publishes all of its tables at once; `abandon` forgets it; `undo` takes a swap
    back and holds its days. Exits 0 when all of it is done, 1 when a slice is left out or something failed,
    2 on bad usage.
    """
    given = {"table": table, "first": first, "last": last, "project": project}
    if verb is Verb.START:
        run(lambda: _start(number, given, reason, as_json, verbose), verbose)
    elif verb is Verb.SHOW:
        run(lambda: _show(number, given, as_json), verbose)
    else:
        run(lambda: _answer(verb, number, given, reason, as_json, verbose), verbose)


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(rich_help_panel=Panel.CORRECT)(rebuild)


def _start(number: int | None, given: Mapping[str, Any], reason: str | None, as_json: bool, verbose: bool) -> int:
    from pipeline_assets.operations.rebuild.begin import asked_for  # noqa: PLC0415 - `show` starts without Spark
    from pipeline_assets.orchestration.rebuild_job import RebuildConfig, rebuild_request  # noqa: PLC0415 - `show` starts without Dagster

    if number is not None:
        hint = "Name tables and days: those of an open rebuild go on with it"
        raise UsageError(f"rebuild start {number}", "a start takes no id", hint)
    if given["first"] is None or given["last"] is None or reason is None:
        raise UsageError("rebuild start", "needs --from, --to and --reason", "tidemark rebuild --help")
    settings = load_settings()
    require_reasons({"--reason": reason})
    config = {
        "tables": list(given["table"] or ()),
        "first": given["first"],
        "last": given["last"],
        "projects": list(given["project"] or ()),
        "reason": reason,
        "who": _who(),
    }
    asked = asked_for(rebuild_request(RebuildConfig(**config), settings, _who()))
    with own_ledger(settings) as ledger:
        ledger.rebuilds.open_like(asked)
    return _carry_out(settings, {"action": "start", **config}, asked, as_json, verbose)


def _show(number: int | None, given: Mapping[str, Any], as_json: bool) -> int:
    _require_nothing_else(Verb.SHOW, given)
    settings = load_settings()
    with own_ledger(settings) as ledger:
        if number is None:
            rebuilds = ledger.rebuilds.all()
            if as_json:
                write_json([rebuild_json(one, ledger.rebuilds.slices(one)) for one in rebuilds])
            else:
                print_rebuilds(page(), rebuilds)
            return EXIT_OK
        found = ledger.rebuilds.get(number)
        green = ledger.rebuilds.slices(found)
    _print(found, green, as_json)
    return EXIT_OK


def _answer(
    verb: Verb, number: int | None, given: Mapping[str, Any], reason: str | None, as_json: bool, verbose: bool
) -> int:
    _require_nothing_else(verb, given)
    if number is None:
        raise UsageError(f"rebuild {verb}", "needs the id of a rebuild", "`tidemark rebuild show` lists them")
    settings = load_settings()
    require_reasons({"--reason": reason})
    with own_ledger(settings) as ledger:
        found = ledger.rebuilds.get(number)
    config = {"action": verb.value, "number": number, "reason": reason or "", "who": _who()}
    return _carry_out(settings, config, found, as_json, verbose)


def _carry_out(
    settings: Settings, config: Mapping[str, Any], asked: RebuildRecord, as_json: bool, verbose: bool
) -> int:
    """Run the job and show the resulting rebuild; returns the exit code."""
    from pipeline_assets.cli.run import run_rebuild  # noqa: PLC0415 - `show` starts without Dagster

    with terminal(verbose=verbose) as console:
        failures = run_rebuild(settings, config, console, verbose=verbose)
        with own_ledger(settings) as ledger:
            begun = ledger.rebuilds.find(asked.number) if asked.number else ledger.rebuilds.open_like(asked)
            green = ledger.rebuilds.slices(begun) if begun is not None else {}
        print_failures(console, failures, verbose)
    if begun is None:
        return EXIT_INCOMPLETE
    _print(begun, green, as_json)
    is_whole = all(one.goes for of_table in green.values() for one in of_table.values())
    is_answer_of_all = begun.state in (RebuildState.ABANDONED, RebuildState.UNDONE)
    return EXIT_OK if not failures and (is_whole or is_answer_of_all) else EXIT_INCOMPLETE


def _print(found: RebuildRecord, green: GreenSlices, as_json: bool) -> None:
    console: Console = page()
    if as_json:
        write_json(rebuild_json(found, green))
    else:
        print_rebuild(console, found, green)


def _require_nothing_else(verb: Verb, given: Mapping[str, Any]) -> None:
    if any(given.values()):
        raise UsageError(
            f"rebuild {verb}", "takes the id of a rebuild and no tables or days", "tidemark rebuild --help"
        )


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # The process runs as a user without a name.
        return "somebody at a shell"
