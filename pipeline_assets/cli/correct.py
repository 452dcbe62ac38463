"""Commands that correct what is published: exclude, include, rollback, release, rebuild."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence, Set
from datetime import UTC, datetime
from typing import Any

import typer
from rich.text import Text

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, exit_code, require_reasons
from pipeline_assets.cli.inspect import status_table
from pipeline_assets.cli.run import Jobs, acceptances, config_of, jobs_of, open_runtime
from pipeline_assets.config import load_settings
from pipeline_assets.domain import requests as ask
from pipeline_assets.domain.days import stretches
from pipeline_assets.domain.deliveries import BatchKey, dimension_batch
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.requests import Table
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source
from pipeline_assets.inspection.status import recorded_statuses
from pipeline_assets.operations.decisions import Held, object_named, preview, touched_slices
from pipeline_assets.operations.rebuild_build import GreenSlices, asked_for
from pipeline_assets.operations.rollback import plan
from pipeline_assets.orchestration import operation_job as jobs
from pipeline_assets.orchestration.specs import DIMENSION_JOB, HEAL_JOB, JOB_OF_SOURCE
from pipeline_assets.tables.registry import table_by_key, with_descendants
from resources.iceberg.lake_identity import Purpose
from resources.ledger.store import Ledger, own_ledger


def exclude(request: ask.Exclude) -> int:
    """Exclude objects, and load their days of arrival."""
    return _decide("exclude", request, is_even_if_gone=request.even_if_gone)


def include(request: ask.Include) -> int:
    """Include excluded objects again, and load their days of arrival."""
    return _decide("include", request)


def _decide(verb: str, request: ask.Include, *, is_even_if_gone: bool = False) -> int:
    settings, keys = load_settings(), request.keys
    settings.require_projects()
    require_reasons({"--reason": request.reason, "--accept-changes": request.accept_changes})
    by_batch: dict[BatchKey, list[str]] = {}
    with jobs_of(settings) as runs:
        for key in keys:
            by_batch.setdefault(object_named(key, settings)[0], []).append(key)
        for batch, named in sorted(by_batch.items()):
            with own_ledger(settings) as ledger:
                touched = tuple(sorted({key.event_date for key in touched_slices(ledger, settings, named)}))
            # The acceptance covers only the project of these objects.
            source, projects, job = ask.LoadSource(batch.source.value), [batch.project_id], JOB_OF_SOURCE[batch.source]
            if batch == dimension_batch(batch.arrival_date):
                source, projects, job = ask.LoadSource.DIMENSIONS, list(settings.projects), DIMENSION_JOB
            accepted = acceptances(settings, source, touched, projects, {"accept_changes": request.accept_changes})
            decided = {verb: dict.fromkeys(named, request.reason), "exclude_even_if_gone": is_even_if_gone}
            runs.run(job, {"projects": projects, **decided, **accepted}, [batch.arrival_date])
    with own_ledger(settings) as ledger:
        return _outcome(ledger, touched_slices(ledger, settings, keys), tuple(Source), runs.failures)


def _outcome(ledger: Ledger, slices: Set[Slice], sources: Sequence[Source], failures: Sequence[str]) -> int:
    statuses = recorded_statuses(ledger, slices, sources)
    ui.show(ui.page(), status_table(statuses))
    return exit_code(statuses, failures)


def rollback(request: ask.Rollback) -> int:
    """Show what is rolled back, and do it unless it is a dry run."""
    settings = load_settings()
    require_reasons({"--reason": request.reason})
    parsed = jobs.rollback_request(request, settings, "preview")
    # The plan records what it finds in the tables.
    with jobs_of(settings) as runs, open_runtime(settings, ui.plainly(runs.console), Purpose.KEEP) as runtime:
        restores = plan(runtime, parsed, is_preview=True)
        if not request.dry_run:
            runs.run(jobs.ROLLBACK_JOB, config_of(request, ask.Rollback))
    if runs.failures:
        return EXIT_INCOMPLETE
    ui.show(ui.page(), jobs.restores_table(restores))
    return EXIT_OK


def release(request: ask.ReleaseCommand) -> int:
    """Show what is held, release it once confirmed, and build what is stale."""
    settings = load_settings()
    require_reasons({"--reason": request.reason, "--accept-changes": request.accept_changes})
    projects = settings.require_projects(tuple(request.projects))
    with own_ledger(settings) as ledger:
        now = datetime.now(UTC)
        held = preview(ledger, settings, request.tables, projects, *request.range(), now, is_load_next=True)
    ui.show(ui.page(), jobs.held_table(held))
    if request.dry_run:
        return EXIT_OK
    if not request.yes and not (sys.stdin.isatty() and typer.confirm("Release them?")):
        ui.show(ui.page(), "Nothing was released; repeat the command with --yes to release them.")
        return EXIT_INCOMPLETE
    with jobs_of(settings) as runs:
        runs.run(jobs.RELEASE_JOB, config_of(request, ask.Release))
        if not runs.failures:
            _load_released(runs, held, request.accept_changes)
    with own_ledger(settings) as ledger:
        return _outcome(ledger, {hold.key for hold in held}, (), runs.failures)


def _load_released(runs: Jobs, held: Sequence[Held], accepted: str | None) -> None:
    settings = runs.settings
    for project in sorted({hold.key.project_id for hold in held}):
        released = [hold for hold in held if hold.key.project_id == project]
        job, projects = (DIMENSION_JOB, []) if project == ALL_PROJECTS else (HEAL_JOB, [project])
        changes = {} if accepted is None else acceptances_of(released, settings.projects, accepted)
        # A slice that covers several days may be filed under a day before the calendar.
        days = {max(hold.key.event_date, settings.calendar_start) for hold in released}
        for part in stretches(sorted(days), settings.days_per_run):
            runs.run(job, {"projects": projects, "accept_changes": changes}, part)


def acceptances_of(released: Sequence[Held], configured: Sequence[str], reason: str) -> dict[str, str]:
    """Acceptances of changes of released slices and those built from them; dimension tables have one per project."""
    accepted: dict[str, str] = {}
    for hold in released:
        own = configured if hold.key.project_id == ALL_PROJECTS else (hold.key.project_id,)
        for table in with_descendants(table_by_key(hold.table)):
            day = table.kind.slice_day(hold.key.event_date)
            accepted |= {f"{table.key}:{Slice(day, project)}": reason for project in table.kind.projects(own)}
    return accepted


_HELP = "tidemark rebuild --help"


def rebuild(request: ask.RebuildCommand) -> int:
    """Show rebuilds, or run the job that acts on one; then print it."""
    action, number = request.action, request.number
    _require_sense(request)
    settings = load_settings()
    require_reasons({"--reason": request.reason})
    failures: Sequence[str] = ()
    with own_ledger(settings) as ledger:
        if action is ask.RebuildAction.SHOW and not number:
            rebuilds = ledger.rebuilds.all()
            listed = [_to_json(one, ledger.rebuilds.slices(one)) for one in rebuilds if request.as_json]
            ui.answer(request, listed, _listed(rebuilds))
            return EXIT_OK
        if action is ask.RebuildAction.START:
            asked = asked_for(request, settings, _who())
            ledger.rebuilds.open_like(asked)
        else:
            asked = ledger.rebuilds.get(number)
    if action is not ask.RebuildAction.SHOW:
        with jobs_of(settings) as runs:
            runs.run(jobs.REBUILD_JOB, config_of(request, ask.Rebuild) | {"who": _who()})
        failures = runs.failures
    with own_ledger(settings) as ledger:
        begun = ledger.rebuilds.find(asked.number) if asked.number else ledger.rebuilds.open_like(asked)
        green = ledger.rebuilds.slices(begun) if begun is not None else {}
    if begun is None:
        return EXIT_INCOMPLETE
    ui.answer(request, _to_json(begun, green), _report(begun, green))
    is_whole = all(one.goes for of_table in green.values() for one in of_table.values())
    is_done = (
        is_whole or action is ask.RebuildAction.SHOW or begun.state in (RebuildState.ABANDONED, RebuildState.UNDONE)
    )
    return EXIT_OK if is_done and not failures else EXIT_INCOMPLETE


def _require_sense(request: ask.RebuildCommand) -> None:
    action, number = request.action, request.number
    subject = f"rebuild {action}"
    if action is ask.RebuildAction.START:
        if number:
            hint = "Name tables and days: those of an open rebuild go on with it"
            raise UsageError(f"{subject} {number}", "a start takes no id", hint)
        if not (request.first and request.last and request.reason):
            raise UsageError(subject, "needs --from, --to and --reason", _HELP)
    elif request.tables or request.projects or request.first or request.last:
        raise UsageError(subject, "takes the id of a rebuild and no tables or days", _HELP)
    elif not number and action is not ask.RebuildAction.SHOW:
        raise UsageError(subject, "needs the id of a rebuild", "`tidemark rebuild show` lists them")


def _listed(rebuilds: Sequence[RebuildRecord]) -> ui.Parts:
    rows = []
    for one in rebuilds:
        what = str(one.number), _state(one), ", ".join(one.tables), f"{one.first} to {one.last}"
        rows.append((*what, one.started_at[:16], one.who, one.reason))
    yield Table(("id", "state", "tables", "days", "started", "by", "reason"), rows)
    yield None if rows else "no rebuild is on record"


def _state(rebuild: RebuildRecord) -> Text:
    return ui.styled(
        rebuild.state,
        "bold red" if rebuild.state is RebuildState.SWAPPING else "bold yellow" if rebuild.state.is_open else "dim",
    )


def _report(rebuild: RebuildRecord, green: GreenSlices) -> ui.Parts:
    yield ui.line(f"{rebuild.title}: ", _state(rebuild))
    yield f"reason: {rebuild.reason} ({rebuild.who}, {rebuild.started_at[:16]})"
    if rebuild.answered_by is not None:
        yield f"answered by {rebuild.answered_by}{f': {rebuild.answer}' if rebuild.answer else ''}"
    yield jobs.rebuild_table(green)
    asked = len(rebuild.slices)
    for name in rebuild.tables:
        built = green.get(name, {})
        going = [one for one in built.values() if one.goes]
        changed, left_out, empty = sum(one.is_changed for one in going), len(built) - len(going), asked - len(built)
        parts = [f"{changed} slices change", f"{len(going) - changed} stay as they are"]
        parts += [f"{left_out} are left out"] if left_out else []
        parts += [f"{empty} hold nothing or are not built yet"] if empty > 0 else []
        yield f"{name}: {', '.join(parts)}"
    for name, key, one in jobs.in_order(green):
        if not one.goes:
            yield ui.line("left out: ", ui.styled(f"{key} {name}", "bold red"), f": {one.why_not}")
            if one.record.hint and not one.blocked_by:
                yield f"  fix: {one.record.hint}"
    yield rebuild.next_step


def _to_json(rebuild: RebuildRecord, green: GreenSlices) -> dict[str, Any]:
    names = ("state", "tables", "first", "last", "projects", "reason", "who", "started_at", "answered_by", "answer")
    slices = [
        {"table": name, "day": key.event_date, "project": key.project_id, "why_not": one.why_not or None}
        | ui.members(one, "goes", "is_changed")
        | {"difference": None if one.difference is None else one.difference.to_json()}
        for name, key, one in jobs.in_order(green)
    ]
    return ui.members(rebuild, *names, id="number") | {"slices": slices}


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # The process runs as a user without a name.
        return "somebody at a shell"
