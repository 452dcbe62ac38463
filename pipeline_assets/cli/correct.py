"""Commands that correct what is published: exclude, include, rollback, release, split-landing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import typer
from dagster_aws.s3 import S3Resource
from rich.console import Console

from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, exit_code, print_failures, require_reasons
from pipeline_assets.cli.inspect import status_table
from pipeline_assets.cli.run import acceptances, config_of, open_runtime, run_operation
from pipeline_assets.cli.terminal import Parts, line, page, plainly, show, stacked, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_moment, stretches
from pipeline_assets.domain.deliveries import BatchKey, dimension_batch
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.report import Table
from pipeline_assets.domain.requests import (
    Exclude,
    Include,
    LoadSource,
    Release,
    ReleaseCommand,
    Rollback,
    SplitLanding,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.status import recorded_statuses
from pipeline_assets.operations import split_landing as split
from pipeline_assets.operations.decisions import Held, object_named, preview, touched_slices
from pipeline_assets.operations.recover import size_text
from pipeline_assets.operations.rollback import plan
from pipeline_assets.orchestration import operation_job as jobs
from pipeline_assets.orchestration.specs import DIMENSION_JOB, HEAL_JOB, JOB_OF_SOURCE, range_tags
from pipeline_assets.tables.registry import table_by_key, with_descendants
from resources.iceberg.lake_identity import Purpose
from resources.landing.store import LandingStore
from resources.ledger.store import own_ledger


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
        statuses = recorded_statuses(ledger, touched_slices(ledger, settings, keys), sources=tuple(Source))
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
        statuses = recorded_statuses(ledger, {hold.key for hold in held}, sources=())
    show(page(), status_table(statuses))
    return exit_code(statuses, failures)


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


def split_landing(request: SplitLanding) -> int:
    """Print what was found; move it if that is asked."""
    moments = ("--uploaded-after", request.uploaded_after), ("--uploaded-before", request.uploaded_before)
    after, before = (parse_moment(name, text) if text else None for name, text in moments)
    if request.keys is not None and (after or before):
        raise UsageError("--keys", "is given beside a time of upload", "Give the list or the time")
    if after and before and before < after:
        raise UsageError("--uploaded-before", "lies before --uploaded-after", "Swap the two")
    keys, (first, last), project = _listed(request.keys), request.bounds(), request.project
    settings = load_settings()
    settings.require_projects((project,))
    with terminal() as console:
        landing = LandingStore.from_settings(settings, S3Resource())
        say = plainly(console)
        found = split.find(
            project, landing, settings, say, keys=keys, after=after, before=before, first=first, last=last
        )
        done = _relocated(found, project, landing, settings, console) if request.apply else []
    errors: list[TidemarkError] = [*found.refusals, *(refusal for _, refusal in done if refusal is not None)]
    if request.as_json:
        write_json(_to_json(found, done, errors, is_applied=request.apply))
    else:
        show(page(), *_told(project, found, done, errors, is_applied=request.apply))
    return EXIT_INCOMPLETE if errors else EXIT_OK


def _listed(keys: Path | None) -> tuple[str, ...] | None:
    if keys is None:
        return None
    try:
        return split.parse_keys(keys.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        hint = "Give a text file, one key a line"
        raise UsageError(f"--keys {keys}", f"cannot be read ({error})", hint) from None


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
                plainly(console)(f"{len(done)} of {len(found.recovered)}: {told}")
    return done


def _told(
    project: str, found: split.Selection, done: Relocations, errors: Sequence[TidemarkError], *, is_applied: bool
) -> Parts:
    refused = {placed.upload.key for placed, refusal in done if refusal is not None}
    rows = []
    for one in found.recovered:
        upload = one.upload
        state = styled("refused", "bold red") if upload.key in refused else styled("moved", "green")
        when = f"{upload.uploaded_at:%Y-%m-%d %H:%M}", stacked(*one.evidence)
        what = one.target_key, state if is_applied else styled("to move", "dim")
        rows.append((upload.key, size_text(upload.size_bytes), *when, *what))
    yield Table(("object", "size", "uploaded", "evidence", "becomes", ""), rows)
    yield from found.notes
    for error in errors:
        yield line(styled(error.subject, "bold red"), f": {error.reason}")
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


def _to_json(
    found: split.Selection, done: Relocations, errors: Sequence[TidemarkError], *, is_applied: bool
) -> dict[str, Any]:
    moved = {placed.upload.key for placed, refusal in done if refusal is None}
    objects = [
        {
            "key": one.upload.key,
            "target": one.target_key,
            "size_bytes": one.upload.size_bytes,
            "uploaded_at": one.upload.uploaded_at.isoformat(),
            "evidence": list(one.evidence),
            "is_moved": one.upload.key in moved,
        }
        for one in found.recovered
    ]
    refusals = [{"subject": error.subject, "reason": error.reason, "fix": error.hint} for error in errors]
    return {"objects": objects, "refusals": refusals, "notes": list(found.notes), "is_applied": is_applied}
