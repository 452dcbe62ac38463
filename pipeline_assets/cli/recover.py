"""Recovered hours: `recover` downloads them from the vendor again, `split-landing` finds and moves those among regular ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from dagster_aws.s3 import S3Resource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, print_failures
from pipeline_assets.cli.inspect import status_table
from pipeline_assets.cli.run import load_in_chunks
from pipeline_assets.cli.terminal import Parts, answer, line, members, page, plainly, show, stacked, styled, terminal
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_moment, stretches
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.report import Table
from pipeline_assets.domain.requests import LoadSource, RecoverCommand, SplitLanding
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.status import recorded_statuses
from pipeline_assets.operations import split_landing as split
from pipeline_assets.operations.recover import HourOutcome, Progress, Recovery, in_lines, size_text, whole_days
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
        hours = [members(one, "is_fetched", "is_exported", "reason", **names) for one in plan.asked]
        answer(request, hours, _planned(plan))
        return EXIT_OK
    with terminal() as console:
        show(console, *_warnings(plan))
        api = ExportApi(settings, plainly(console))
        with progress_on(console, plan) as progress, own_ledger(settings) as ledger:
            outcomes = Recovery(api, landing, settings, ledger.recoveries, progress).run(plan)
    names = {"project": "project_id", "hour": "hour", "outcome": "fate", "bytes": "size_bytes", "reason": "error"}
    answer(request, [members(one, "objects", **names) for one in outcomes], _outcomes(outcomes))
    days, short = whole_days(outcomes)
    if not request.load:
        return EXIT_INCOMPLETE if short else EXIT_OK
    with terminal() as console:
        if short:
            plainly(console)(f"not loaded, because hours of them are not recovered: {few(short)}")
        projects, failures = tuple(dict.fromkeys(key.project_id for key in days)), list[str]()
        for part in stretches(sorted({key.event_date for key in days}), settings.days_per_run):
            failures += load_in_chunks(settings, LoadSource.BACKFILL, part, projects, {}, console)
        print_failures(console, failures)
    with own_ledger(settings) as ledger:
        statuses = recorded_statuses(ledger, set(days), sources=(Source.BACKFILL,)) if days else []
    if not request.as_json:
        show(page(), status_table(statuses))
    is_good = not failures and all(status.is_good for status in statuses)
    return EXIT_OK if is_good and not short else EXIT_INCOMPLETE


@contextmanager
def progress_on(console: Console, plan: RecoveryPlan) -> Iterator[Progress]:
    """Show a progress bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield in_lines(plan, plainly(console))
        return
    columns = (TextColumn("  {task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, transient=True, console=console) as bar:
        task = bar.add_task("asking the vendor", total=sum(one.is_fetched for one in plan.asked))
        total = 0

        def received(size: int) -> None:
            nonlocal total
            total += size
            bar.update(task, description=f"hours, {size_text(total)}")

        yield Progress(received, lambda _: bar.advance(task))


def _planned(plan: RecoveryPlan) -> Parts:
    yield plan_table(plan)
    yield from _warnings(plan)
    fetched = sum(one.is_fetched for one in plan.asked)
    bad = sum(one.state.is_bad and one.is_exported for one in plan.asked)
    yield f"{bad:,} of {len(plan.asked):,} hours are missing or refused; {fetched:,} would be fetched"


def _warnings(plan: RecoveryPlan) -> Parts:
    yield from (line(styled("warning", "yellow"), f": {warning}") for warning in plan.warnings)


def _outcomes(outcomes: Sequence[HourOutcome]) -> Parts:
    headings, rows = outcome_table(outcomes)
    yield Table(headings[:-1], [row[:-1] for row in rows])
    for error in dict.fromkeys(str(one.error) for one in outcomes if one.error is not None):
        yield line(styled("not recovered", "bold red"), f": {error}")
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
    with terminal() as console:
        landing = LandingStore.from_settings(settings, S3Resource())
        say = plainly(console)
        found = split.find(
            project, landing, settings, say, keys=keys, after=after, before=before, first=first, last=last
        )
        done = _relocated(found, project, landing, settings, console) if request.apply else []
    errors: list[TidemarkError] = [*found.refusals, *(refusal for _, refusal in done if refusal is not None)]
    moved = {placed.upload.key for placed, refusal in done if refusal is None}
    place = {"key": "upload.key", "target": "target_key", "size_bytes": "upload.size_bytes"}
    value = {
        "objects": [
            members(one, "evidence", **place, uploaded_at="upload.uploaded_at") | {"is_moved": one.upload.key in moved}
            for one in found.recovered
        ],
        "refusals": [members(error, "subject", "reason", fix="hint") for error in errors],
        "notes": found.notes,
        "is_applied": request.apply,
    }
    answer(request, value, _split(project, found, done, errors, is_applied=request.apply))
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
                plainly(console)(f"{len(done)} of {len(found.recovered)}: {told}")
    return done


def _split(
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
