"""`tidemark rebuild`: build days again beside main, show the report, swap them in, abandon them or undo the swap."""

from __future__ import annotations

import getpass
from typing import Any

from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, print_failures, require_reasons
from pipeline_assets.cli.run import config_of, run_operation
from pipeline_assets.cli.terminal import Parts, line, page, show, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.report import Styled, Table
from pipeline_assets.domain.requests import Rebuild, RebuildAction, RebuildCommand
from pipeline_assets.operations.rebuild_choose import GreenSlices, asked_for
from pipeline_assets.orchestration.rebuild_job import REBUILD_JOB, in_order, rebuild_table
from resources.ledger.store import Ledger, own_ledger

_STYLES = {
    RebuildState.BUILDING: "yellow",
    RebuildState.READY: "bold yellow",
    RebuildState.SWAPPING: "bold red",
    RebuildState.SWAPPED: "green",
    RebuildState.ABANDONED: "dim",
    RebuildState.UNDONE: "magenta",
}
_HELP = "tidemark rebuild --help"


def rebuild(request: RebuildCommand) -> int:
    """Show rebuilds, or run the job that acts on one; then print it."""
    action, number = request.action, request.number
    _require_sense(request)
    settings = load_settings()
    require_reasons({"--reason": request.reason})
    failures: list[str] = []
    with own_ledger(settings) as ledger:
        if action is RebuildAction.SHOW and not number:
            _print_all(ledger, as_json=request.as_json)
            return EXIT_OK
        if action is RebuildAction.START:
            asked = asked_for(request, settings, _who())
            ledger.rebuilds.open_like(asked)
        else:
            asked = ledger.rebuilds.get(number)
    if action is not RebuildAction.SHOW:
        with terminal() as console:
            config = config_of(request, Rebuild) | {"who": _who()}
            failures = run_operation(settings, REBUILD_JOB, config, console)
            print_failures(console, failures)
    with own_ledger(settings) as ledger:
        begun = ledger.rebuilds.find(asked.number) if asked.number else ledger.rebuilds.open_like(asked)
        green = ledger.rebuilds.slices(begun) if begun is not None else {}
    if begun is None:
        return EXIT_INCOMPLETE
    if request.as_json:
        write_json(_to_json(begun, green))
    else:
        show(page(), *_report(begun, green))
    is_whole = all(one.goes for of_table in green.values() for one in of_table.values())
    is_done = is_whole or action is RebuildAction.SHOW or begun.state in (RebuildState.ABANDONED, RebuildState.UNDONE)
    return EXIT_OK if is_done and not failures else EXIT_INCOMPLETE


def _require_sense(request: RebuildCommand) -> None:
    action, number = request.action, request.number
    subject = f"rebuild {action}"
    if action is RebuildAction.START:
        if number:
            hint = "Name tables and days: those of an open rebuild go on with it"
            raise UsageError(f"{subject} {number}", "a start takes no id", hint)
        if not (request.first and request.last and request.reason):
            raise UsageError(subject, "needs --from, --to and --reason", _HELP)
    elif request.tables or request.projects or request.first or request.last:
        raise UsageError(subject, "takes the id of a rebuild and no tables or days", _HELP)
    elif not number and action is not RebuildAction.SHOW:
        raise UsageError(subject, "needs the id of a rebuild", "`tidemark rebuild show` lists them")


def _print_all(ledger: Ledger, *, as_json: bool) -> None:
    rebuilds = ledger.rebuilds.all()
    if as_json:
        write_json([_to_json(one, ledger.rebuilds.slices(one)) for one in rebuilds])
        return
    rows = [
        (
            *(
                str(one.number),
                Styled(one.state, _STYLES[one.state]),
                ", ".join(one.tables),
                f"{one.first} to {one.last}",
            ),
            *(one.started_at[:16], one.who, one.reason),
        )
        for one in rebuilds
    ]
    table = Table(("id", "state", "tables", "days", "started", "by", "reason"), rows)
    show(page(), table, None if rows else "no rebuild is on record")


def _report(rebuild: RebuildRecord, green: GreenSlices) -> Parts:
    yield line(f"{rebuild.title}: ", styled(rebuild.state.value, _STYLES[rebuild.state]))
    yield f"reason: {rebuild.reason} ({rebuild.who}, {rebuild.started_at[:16]})"
    if rebuild.answered_by is not None:
        yield f"answered by {rebuild.answered_by}{f': {rebuild.answer}' if rebuild.answer else ''}"
    yield rebuild_table(green)
    asked = len(rebuild.slices)
    for name in rebuild.tables:
        built = green.get(name, {})
        going = [one for one in built.values() if one.goes]
        changed, left_out, empty = sum(one.is_changed for one in going), len(built) - len(going), asked - len(built)
        parts = [f"{changed} slices change", f"{len(going) - changed} stay as they are"]
        parts += [f"{left_out} are left out"] if left_out else []
        parts += [f"{empty} hold nothing or are not built yet"] if empty > 0 else []
        yield f"{name}: {', '.join(parts)}"
    for name, key, one in in_order(green):
        if not one.goes:
            yield line("left out: ", styled(f"{key} {name}", "bold red"), f": {one.why_not}")
            if one.record.hint and not one.blocked_by:
                yield f"  fix: {one.record.hint}"
    yield rebuild.next_step


def _to_json(rebuild: RebuildRecord, green: GreenSlices) -> dict[str, Any]:
    names = ("state", "tables", "first", "last", "projects", "reason", "who", "started_at", "answered_by", "answer")
    slices = [
        {
            "table": name,
            "day": str(key.event_date),
            "project": key.project_id,
            "goes": one.goes,
            "is_changed": one.is_changed,
            "why_not": one.why_not or None,
            "difference": None if one.difference is None else one.difference.to_json(),
        }
        for name, key, one in in_order(green)
    ]
    return {"id": rebuild.number, **{name: getattr(rebuild, name) for name in names}, "slices": slices}


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # The process runs as a user without a name.
        return "somebody at a shell"
