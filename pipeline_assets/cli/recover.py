"""Recovered hours: `recover` downloads them from the vendor again, `split-landing` finds and moves those among regular ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from dagster_aws.s3 import S3Resource
from rich.console import Console

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, exit_code
from pipeline_assets.cli.inspect import status_table
from pipeline_assets.cli.run import jobs_of, load_in_chunks
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_moment, stretches
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.requests import LoadSource, RecoverCommand, SplitLanding, Table
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.status import recorded_statuses
from pipeline_assets.operations import split_landing as split
from pipeline_assets.operations.recover import HourOutcome, Recovery, in_lines, size_text, whole_days
from pipeline_assets.operations.recover_plan import RecoveryPlan, plan_recovery, recovery_request
from pipeline_assets.orchestration.operation_job import outcome_table, plan_table
from resources.export_api import ExportApi
from resources.landing.store import LandingStore
from resources.ledger.store import own_ledger


def recover(request: RecoverCommand) -> int:
    """Plan, then fetch what is lacking, then load it if requested."""
    settings = load_settings()
    parsed = recovery_request(settings, request)
    landing = LandingStore.from_settings(settings, S3Resource())
    with own_ledger(settings) as ledger:
        plan = plan_recovery(ledger, landing, settings, parsed, datetime.now(UTC))
    if request.dry_run:
        names = {"project": "project_id", "hour": "hour", "state": "state"}
        hours = [ui.members(one, "is_fetched", "is_exported", "reason", **names) for one in plan.asked]
        ui.answer(request, hours, _planned(plan))
        return EXIT_OK
    with ui.terminal() as console:
        ui.show(console, *_warnings(plan))
        api = ExportApi(settings, ui.plainly(console))
        with own_ledger(settings) as ledger:
            progress = in_lines(plan, ui.plainly(console))
            outcomes = Recovery(api, landing, settings, ledger.recoveries, progress).run(plan)
    names = {"project": "project_id", "hour": "hour", "outcome": "fate", "bytes": "size_bytes", "reason": "error"}
    ui.answer(request, [ui.members(one, "objects", **names) for one in outcomes], _outcomes(outcomes))
    days, short = whole_days(outcomes)
    if not request.load:
        return EXIT_INCOMPLETE if short else EXIT_OK
    with jobs_of(settings) as jobs:
        if short:
            ui.plainly(jobs.console)(f"not loaded, because hours of them are not recovered: {few(short)}")
        projects = tuple(dict.fromkeys(key.project_id for key in days))
        for part in stretches(sorted({key.event_date for key in days}), settings.days_per_run):
            load_in_chunks(jobs, LoadSource.BACKFILL, part, projects, {}, again=False)
    with own_ledger(settings) as ledger:
        statuses = recorded_statuses(ledger, set(days), sources=(Source.BACKFILL,)) if days else []
    if not request.as_json:
        ui.show(ui.page(), status_table(statuses))
    return EXIT_INCOMPLETE if short else exit_code(statuses, jobs.failures)


def _planned(plan: RecoveryPlan) -> ui.Parts:
    yield plan_table(plan)
    yield from _warnings(plan)
    fetched = sum(one.is_fetched for one in plan.asked)
    bad = sum(one.state.is_bad and one.is_exported for one in plan.asked)
    yield f"{bad:,} of {len(plan.asked):,} hours are missing or refused; {fetched:,} would be fetched"


def _warnings(plan: RecoveryPlan) -> ui.Parts:
    yield from (ui.line(ui.styled("warning", "yellow"), f": {warning}") for warning in plan.warnings)


def _outcomes(outcomes: Sequence[HourOutcome]) -> ui.Parts:
    headings, rows = outcome_table(outcomes)
    yield Table(headings[:-1], [row[:-1] for row in rows])
    for error in dict.fromkeys(str(one.error) for one in outcomes if one.error is not None):
        yield ui.line(ui.styled("not recovered", "bold red"), f": {error}")
    if not outcomes:
        yield "Nothing is to be recovered: no day of the range is refused, or lacks an hour"
        return
    good = sum(one.fate.is_good for one in outcomes)
    yield f"{good:,} of {len(outcomes):,} hours are whole below the backfill prefix"


def split_landing(request: SplitLanding) -> int:
    """Print what was found; move it if that is asked."""
    moments = ("--uploaded-after", request.uploaded_after), ("--uploaded-before", request.uploaded_before)
    after, before = (parse_moment(name, text) if text else None for name, text in moments)
    if request.keys is not None and (after or before):
        raise UsageError("--keys", "is given beside a time of upload", "Give the list or the time")
    if after and before and before < after:
        raise UsageError("--uploaded-before", "lies before --uploaded-after", "Swap the two")
    try:
        keys = None if request.keys is None else split.parse_keys(request.keys.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        hint = "Give a text file, one key a line"
        raise UsageError(f"--keys {request.keys}", f"cannot be read ({error})", hint) from None
    (first, last), project = request.bounds(), request.project
    settings = load_settings()
    settings.require_projects((project,))
    with ui.terminal() as console:
        landing = LandingStore.from_settings(settings, S3Resource())
        of = project, landing, settings, ui.plainly(console)
        found = split.find(*of, keys=keys, after=after, before=before, first=first, last=last)
        done = _relocated(found, project, landing, settings, console) if request.apply else []
    errors: list[TidemarkError] = [*found.refusals, *(refusal for _, refusal in done if refusal is not None)]
    moved = {placed.upload.key for placed, refusal in done if refusal is None}
    place = {"key": "upload.key", "target": "target_key", "size_bytes": "upload.size_bytes"}
    objects = []
    for one in found.recovered:
        object_ = ui.members(one, "evidence", **place, uploaded_at="upload.uploaded_at")
        objects.append(object_ | {"is_moved": one.upload.key in moved})
    refusals = [ui.members(error, "subject", "reason", fix="hint") for error in errors]
    value = {"objects": objects, "refusals": refusals, "notes": found.notes, "is_applied": request.apply}
    ui.answer(request, value, _split(project, found, done, errors, is_applied=request.apply))
    return EXIT_INCOMPLETE if errors else EXIT_OK


Relocations = Sequence[tuple[split.Placed, TidemarkError | None]]


def _relocated(
    found: split.Selection, project: str, landing: LandingStore, settings: Settings, console: Console
) -> Relocations:
    if not found.recovered:
        return []
    grammar, done = EXPORT_FORMAT.keys(settings.marker_pattern), []
    with own_ledger(settings) as ledger:
        every = ledger.interventions.all_exclusions([project])
        excluded = {one.object_key for one in every if one.lifted_at is None}
        is_claimed = partial(ledger.recoveries.is_open, project)
        for placed, refusal in split.relocate(found.recovered, project, landing, grammar, excluded, is_claimed):
            done.append((placed, refusal))
            if refusal is None:
                told = f"{placed.upload.key} is {placed.target_key} now"
                ui.plainly(console)(f"{len(done)} of {len(found.recovered)}: {told}")
    return done


def _split(
    project: str, found: split.Selection, done: Relocations, errors: Sequence[TidemarkError], *, is_applied: bool
) -> ui.Parts:
    refused = {placed.upload.key for placed, refusal in done if refusal is not None}
    rows = []
    for one in found.recovered:
        upload = one.upload
        state = ui.styled("refused", "bold red") if upload.key in refused else ui.styled("moved", "green")
        when = f"{upload.uploaded_at:%Y-%m-%d %H:%M}", ui.stacked(*one.evidence)
        what = one.target_key, state if is_applied else ui.styled("to move", "dim")
        rows.append((upload.key, size_text(upload.size_bytes), *when, *what))
    yield Table(("object", "size", "uploaded", "evidence", "becomes", ""), rows)
    yield from found.notes
    for error in errors:
        yield ui.line(ui.styled(error.subject, "bold red"), f": {error.reason}")
        yield f"  fix: {error.hint}"
    count = len(found.recovered)
    if not count:
        yield f"nothing was recovered among the regular objects of {project}, as far as this search tells"
    elif not is_applied:
        total = size_text(sum(one.upload.size_bytes for one in found.recovered))
        yield f"{count:,} objects ({total}) can be moved: add --apply"
    else:
        moved = [placed.arrival_date for placed, refusal in done if refusal is None]
        yield f"{len(moved):,} of {count:,} objects were moved"
        for source in ("backfill", "regular") if moved else ():
            yield f"  next: tidemark load --source {source} --from {moved[0]} --to {moved[-1]}; or the sensor does it"
