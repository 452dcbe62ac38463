"""Commands that correct what is published: exclude, include, rollback, release, rebuild."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence, Set
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, exit_code, print_failures, require_reasons
from pipeline_assets.cli.inspect import status_table
from pipeline_assets.cli.run import acceptances, config_of, open_runtime, run_operation
from pipeline_assets.cli.terminal import Parts, answer, line, members, page, plainly, show, styled, terminal
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import stretches
from pipeline_assets.domain.deliveries import BatchKey, dimension_batch
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from pipeline_assets.domain.report import Table
from pipeline_assets.domain.requests import (
    Exclude,
    Include,
    LoadSource,
    Rebuild,
    RebuildAction,
    RebuildCommand,
    Release,
    ReleaseCommand,
    Rollback,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source
from pipeline_assets.inspection.status import recorded_statuses
from pipeline_assets.operations.decisions import Held, object_named, preview, touched_slices
from pipeline_assets.operations.rebuild_build import GreenSlices, asked_for
from pipeline_assets.operations.rollback import plan
from pipeline_assets.orchestration import operation_job as jobs
from pipeline_assets.orchestration.specs import DIMENSION_JOB, HEAL_JOB, JOB_OF_SOURCE, range_tags
from pipeline_assets.tables.registry import table_by_key, with_descendants
from resources.iceberg.lake_identity import Purpose
from resources.ledger.store import Ledger, own_ledger


def exclude(request: Exclude) -> int:
    """Exclude objects, and load their days of arrival."""
    return _decide("exclude", request, is_even_if_gone=request.even_if_gone)


def include(request: Include) -> int:
    """Include excluded objects again, and load their days of arrival."""
    return _decide("include", request)


def _decide(verb: str, request: Include, *, is_even_if_gone: bool = False) -> int:
    settings, keys = load_settings(), request.keys
    settings.require_projects()
    require_reasons({"--reason": request.reason, "--accept-changes": request.accept_changes})
    by_batch: dict[BatchKey, list[str]] = {}
    failures: list[str] = []
    with terminal() as console:
        for key in keys:
            by_batch.setdefault(object_named(key, settings)[0], []).append(key)
        for batch, named in sorted(by_batch.items()):
            with own_ledger(settings) as ledger:
                touched = sorted({key.event_date for key in touched_slices(ledger, settings, named)})
            is_of_dimension = batch == dimension_batch(batch.arrival_date)
            source = LoadSource.DIMENSIONS if is_of_dimension else LoadSource(batch.source.value)
            # The acceptance covers only the project of these objects.
            projects = list(settings.projects) if is_of_dimension else [batch.project_id]
            reasons = {"accept_changes": request.accept_changes}
            config = {
                "projects": projects,
                verb: dict.fromkeys(named, request.reason),
                "exclude_even_if_gone": is_even_if_gone,
                **acceptances(settings, source, tuple(touched), projects, reasons),
            }
            tags = range_tags(batch.arrival_date, batch.arrival_date)
            job = DIMENSION_JOB if is_of_dimension else JOB_OF_SOURCE[batch.source]
            failures += run_operation(settings, job, config, console, tags=tags)
        print_failures(console, failures)
    with own_ledger(settings) as ledger:
        return _outcome(ledger, touched_slices(ledger, settings, keys), tuple(Source), failures)


def _outcome(ledger: Ledger, slices: Set[Slice], sources: Sequence[Source], failures: Sequence[str]) -> int:
    statuses = recorded_statuses(ledger, slices, sources)
    show(page(), status_table(statuses))
    return exit_code(statuses, failures)


def rollback(request: Rollback) -> int:
    """Show what is rolled back, and do it unless it is a dry run."""
    settings = load_settings()
    require_reasons({"--reason": request.reason})
    parsed = jobs.rollback_request(request, settings, "preview")
    with (
        terminal() as console,
        # The plan records what it finds in the tables.
        open_runtime(settings, plainly(console), Purpose.KEEP) as runtime,
    ):
        restores = plan(runtime, parsed, is_preview=True)
        if not request.dry_run:
            failures = run_operation(settings, jobs.ROLLBACK_JOB, config_of(request, Rollback), console)
            print_failures(console, failures)
            if failures:
                return EXIT_INCOMPLETE
    show(page(), jobs.restores_table(restores))
    return EXIT_OK


def release(request: ReleaseCommand) -> int:
    """Show what is held, release it once confirmed, and build what is stale."""
    settings = load_settings()
    require_reasons({"--reason": request.reason, "--accept-changes": request.accept_changes})
    projects = settings.require_projects(tuple(request.projects))
    with own_ledger(settings) as ledger:
        now = datetime.now(UTC)
        held = preview(ledger, settings, request.tables, projects, *request.range(), now, is_load_next=True)
    show(page(), jobs.held_table(held))
    if request.dry_run:
        return EXIT_OK
    if not request.yes and not (sys.stdin.isatty() and typer.confirm("Release them?")):
        show(page(), "Nothing was released; repeat the command with --yes to release them.")
        return EXIT_INCOMPLETE
    with terminal() as console:
        failures = run_operation(settings, jobs.RELEASE_JOB, config_of(request, Release), console)
        failures = failures or _load_released(settings, held, request.accept_changes, console)
        print_failures(console, failures)
    with own_ledger(settings) as ledger:
        return _outcome(ledger, {hold.key for hold in held}, (), failures)


def _load_released(settings: Settings, held: Sequence[Held], accepted: str | None, console: Console) -> list[str]:
    failures: list[str] = []
    for project in sorted({hold.key.project_id for hold in held}):
        released = [hold for hold in held if hold.key.project_id == project]
        is_shared = project == ALL_PROJECTS
        of_load = {
            "projects": [] if is_shared else [project],
            "accept_changes": {} if accepted is None else acceptances_of(released, settings.projects, accepted),
        }
        # A slice that covers several days may be filed under a day before the calendar.
        days = {max(hold.key.event_date, settings.calendar_start) for hold in released}
        for part in stretches(sorted(days), settings.days_per_run):
            tags = range_tags(part[0], part[-1])
            job = DIMENSION_JOB if is_shared else HEAL_JOB
            failures += run_operation(settings, job, of_load, console, tags=tags)
    return failures


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


def rebuild(request: RebuildCommand) -> int:
    """Show rebuilds, or run the job that acts on one; then print it."""
    action, number = request.action, request.number
    _require_sense(request)
    settings = load_settings()
    require_reasons({"--reason": request.reason})
    failures: list[str] = []
    with own_ledger(settings) as ledger:
        if action is RebuildAction.SHOW and not number:
            rebuilds = ledger.rebuilds.all()
            listed = [_to_json(one, ledger.rebuilds.slices(one)) for one in rebuilds if request.as_json]
            answer(request, listed, _listed(rebuilds))
            return EXIT_OK
        if action is RebuildAction.START:
            asked = asked_for(request, settings, _who())
            ledger.rebuilds.open_like(asked)
        else:
            asked = ledger.rebuilds.get(number)
    if action is not RebuildAction.SHOW:
        with terminal() as console:
            config = config_of(request, Rebuild) | {"who": _who()}
            failures = run_operation(settings, jobs.REBUILD_JOB, config, console)
            print_failures(console, failures)
    with own_ledger(settings) as ledger:
        begun = ledger.rebuilds.find(asked.number) if asked.number else ledger.rebuilds.open_like(asked)
        green = ledger.rebuilds.slices(begun) if begun is not None else {}
    if begun is None:
        return EXIT_INCOMPLETE
    answer(request, _to_json(begun, green), _report(begun, green))
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


def _listed(rebuilds: Sequence[RebuildRecord]) -> Parts:
    rows = []
    for one in rebuilds:
        what = str(one.number), _state(one), ", ".join(one.tables), f"{one.first} to {one.last}"
        rows.append((*what, one.started_at[:16], one.who, one.reason))
    yield Table(("id", "state", "tables", "days", "started", "by", "reason"), rows)
    yield None if rows else "no rebuild is on record"


def _state(rebuild: RebuildRecord) -> Text:
    return styled(rebuild.state, "bold yellow" if rebuild.state.is_open else "dim")


def _report(rebuild: RebuildRecord, green: GreenSlices) -> Parts:
    yield line(f"{rebuild.title}: ", _state(rebuild))
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
            yield line("left out: ", styled(f"{key} {name}", "bold red"), f": {one.why_not}")
            if one.record.hint and not one.blocked_by:
                yield f"  fix: {one.record.hint}"
    yield rebuild.next_step


def _to_json(rebuild: RebuildRecord, green: GreenSlices) -> dict[str, Any]:
    names = ("state", "tables", "first", "last", "projects", "reason", "who", "started_at", "answered_by", "answer")
    slices = [
        {"table": name, "day": key.event_date, "project": key.project_id, "why_not": one.why_not or None}
        | members(one, "goes", "is_changed")
        | {"difference": None if one.difference is None else one.difference.to_json()}
        for name, key, one in jobs.in_order(green)
    ]
    return members(rebuild, *names, id="number") | {"slices": slices}


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # The process runs as a user without a name.
        return "somebody at a shell"
