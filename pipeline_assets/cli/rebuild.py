"""`tidemark rebuild`: build days again beside main, show the report, swap them in, abandon them or undo the swap."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.command import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    JsonOption,
    ProjectOption,
    VerboseOption,
    print_failures,
    require_reasons,
)
from pipeline_assets.cli.terminal import line, page, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, measure_texts
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from resources.ledger.store import own_ledger

_STYLES = {
    RebuildState.BUILDING: "yellow",
    RebuildState.READY: "bold yellow",
    RebuildState.SWAPPING: "bold red",
    RebuildState.SWAPPED: "green",
    RebuildState.ABANDONED: "dim",
    RebuildState.UNDONE: "magenta",
}
_NEXT = {
    RebuildState.BUILDING: "go on with it: tidemark rebuild start, with the same tables and days",
    RebuildState.READY: "answer it: tidemark rebuild swap {0}, or tidemark rebuild abandon {0}",
    RebuildState.SWAPPING: "complete it: tidemark rebuild swap {0}; or take it back: tidemark rebuild undo {0}",
    RebuildState.SWAPPED: "take it back: tidemark rebuild undo {0}",
    RebuildState.ABANDONED: "main never saw it",
    RebuildState.UNDONE: "its days are held until somebody releases them: tidemark release",
}
GreenSlices = Mapping[str, Mapping[Slice, RebuiltSlice]]


def rebuild_lines(rebuilds: Sequence[RebuildRecord]) -> list[str]:
    """Return a line per rebuild, as `tidemark status` shows open ones."""
    return [f"{_title(one)}: {one.state.value}; {_NEXT[one.state].format(one.number)}" for one in rebuilds]


def print_rebuilds(console: Console, rebuilds: Sequence[RebuildRecord]) -> None:
    """Print one row per recorded rebuild, oldest first."""
    table = RichTable("id", "state", "tables", "days", "started", "by", "reason", box=None, pad_edge=False)
    for one in rebuilds:
        table.add_row(
            str(one.number),
            styled(one.state.value, _STYLES[one.state]),
            ", ".join(one.tables),
            f"{one.first} to {one.last}",
            one.started_at[:16],
            one.who,
            one.reason,
        )
    console.print(table)


def print_rebuild(console: Console, rebuild: RebuildRecord, green: GreenSlices) -> None:
    """Print the rebuild's state, the changes by day, and what is left out."""
    console.print(line(f"{_title(rebuild)}: ", styled(rebuild.state.value, _STYLES[rebuild.state])))
    console.print(f"reason: {rebuild.reason} ({rebuild.who}, {rebuild.started_at[:16]})")
    if rebuild.answered_by is not None:
        told = f": {rebuild.answer}" if rebuild.answer else ""
        console.print(f"answered by {rebuild.answered_by}{told}")
    columns = ("day", "table", "project", "rows", "measures", "keys only rebuilt", "only published", "different")
    report = RichTable(*columns, box=None, pad_edge=False)
    listed = [(key, name, one) for name, of_table in green.items() for key, one in of_table.items()]
    order = list(rebuild.tables)
    for key, name, one in sorted(listed, key=lambda entry: (entry[0], order.index(entry[1]))):
        if one.difference is not None and (one.is_changed or not one.goes):
            report.add_row(str(key.event_date), name, key.project_id, *_cells(one))
    if report.row_count:
        console.print(report)
    for name in rebuild.tables:
        console.print(_summary(name, green.get(name, {}), len(rebuild.slices)))
    for key, name, one in sorted(listed, key=lambda entry: (entry[0], order.index(entry[1]))):
        if not one.goes:
            console.print(line("left out: ", styled(f"{key} {name}", "bold red"), f": {one.why_not}"))
            if one.record.hint and not one.blocked_by:
                console.print(f"  fix: {one.record.hint}")
    console.print(_NEXT[rebuild.state].format(rebuild.number))


def rebuild_json(rebuild: RebuildRecord, green: GreenSlices) -> dict[str, Any]:
    """Return the report for `--json`, including unchanged slices."""
    return {
        "id": rebuild.number,
        "state": rebuild.state.value,
        "tables": list(rebuild.tables),
        "first": str(rebuild.first),
        "last": str(rebuild.last),
        "projects": list(rebuild.projects),
        "reason": rebuild.reason,
        "who": rebuild.who,
        "started_at": rebuild.started_at,
        "answered_by": rebuild.answered_by,
        "answer": rebuild.answer,
        "slices": [
            {
                "table": name,
                "day": str(key.event_date),
                "project": key.project_id,
                "goes": one.goes,
                "is_changed": one.is_changed,
                "why_not": one.why_not or None,
                "difference": None if one.difference is None else one.difference.to_json(),
            }
            for name, of_table in green.items()
            for key, one in sorted(of_table.items())
        ],
    }


def _title(rebuild: RebuildRecord) -> str:
    days = f"{rebuild.first} to {rebuild.last}"
    return f"rebuild {rebuild.number} of {', '.join(rebuild.tables)}, {days}"


def _cells(one: RebuiltSlice) -> tuple[str, ...]:
    assert one.difference is not None
    (old, new), keys = one.difference.rows, one.difference.keys
    totals = keys.totals if keys is not None else {}
    parts = (f"{totals.get(name, 0):,}" for name in ("keys_added", "keys_removed", "keys_changed"))
    return (f"{old:,} -> {new:,}", ", ".join(measure_texts(one)), *parts)


def _summary(name: str, of_table: Mapping[Slice, RebuiltSlice], asked: int) -> str:
    going = [one for one in of_table.values() if one.goes]
    changed = sum(one.is_changed for one in going)
    left_out = len(of_table) - len(going)
    parts = [f"{changed} slices change", f"{len(going) - changed} stay as they are"]
    parts += [f"{left_out} are left out"] if left_out else []
    parts += [f"{asked - len(of_table)} hold nothing or are not built yet"] if asked > len(of_table) else []
    return f"{name}: {', '.join(parts)}"


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
) -> int:
    """Rebuild published days with the present code and settings beside main, while loads go on.

    `start` builds and reports what would change, and goes on with a rebuild that was interrupted. `show` prints the
    report, or lists all rebuilds. `swap` publishes all of its tables at once; `abandon` forgets it; `undo` takes a swap
    back and holds its days. Exits 0 when all of it is done, 1 when a slice is left out or something failed,
    2 on bad usage.
    """
    given = {"table": table, "first": first, "last": last, "project": project}
    if verb is Verb.START:
        return _start(number, given, reason, as_json, verbose)
    if verb is Verb.SHOW:
        return _show(number, given, as_json)
    return _answer(verb, number, given, reason, as_json, verbose)


def _start(number: int | None, given: Mapping[str, Any], reason: str | None, as_json: bool, verbose: bool) -> int:
    from pipeline_assets.operations.rebuild_choose import asked_for  # noqa: PLC0415 - `show` starts without Spark
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
    from pipeline_assets.cli.run import run_operation  # noqa: PLC0415 - `show` starts without Dagster
    from pipeline_assets.orchestration.rebuild_job import REBUILD_JOB, REBUILD_OP  # noqa: PLC0415 - `show` starts without Dagster

    with terminal(verbose=verbose) as console:
        failures = run_operation(settings, REBUILD_JOB, REBUILD_OP, config, console, verbose=verbose)
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
