"""Commands that load, maintain or attach tables in this process, and functions that run a job or open the tables."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import typer
from dagster_aws.s3 import S3Resource
from rich.console import Console

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, exit_code, require_reasons
from pipeline_assets.cli.inspect import status_table
from pipeline_assets.config import dagster_home, load_settings
from pipeline_assets.definitions import run_job
from pipeline_assets.domain.days import requested_range, stretches
from pipeline_assets.domain.errors import LedgerUnavailableError, UsageError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.requests import Attach, LoadCommand, LoadSource, Maintenance, Request, Table
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.inspection.status import day_statuses, dimension_statuses, joined_statuses
from pipeline_assets.load.ledger_sync import UNKNOWN, attach_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.orchestration.operation_job import MAINTENANCE_JOB
from pipeline_assets.orchestration.runtime import production_ledger
from pipeline_assets.orchestration.specs import DIMENSION_JOB, JOB_OF_SOURCE, range_tags
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, DIMENSIONS, EVERY_TABLE
from resources.failpoints import Failpoint, failpoint
from resources.iceberg import lake_identity as catalog
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Mark, Purpose, read_mark
from resources.iceberg.lakehouse import Lakehouse
from resources.iceberg.metadata import JavaTables
from resources.landing.store import LandingStore
from resources.ledger.engine import OUT_OF_REACH
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog, spark_resource
from resources.spark.workers import naming_a_dead_engine

_MOST_LINES = 20
Reasons = Mapping[str, str | None]


def load(request: LoadCommand) -> int:
    """Run the load job over the days, and print the status of each afterwards."""
    reasons = {"accept_changes": request.accept_changes, "accept_missing": request.accept_missing}
    projects, source = tuple(request.projects), request.source
    settings = load_settings()
    days = requested_range(request.first, request.last, settings)
    chosen = settings.require_projects(projects)
    require_reasons(reasons)
    require_one_meant(source, reasons, projects, settings.projects)
    with jobs_of(settings) as jobs:
        load_in_chunks(jobs, source, days, projects, reasons, again=request.read_again)
    try:
        with closing(Ledger(settings.ledger_database_url)) as ledger:
            if source is LoadSource.DIMENSIONS:
                statuses = dimension_statuses(ledger, days, is_all_wanted=True)
            else:
                statuses = day_statuses(ledger, chosen, days, sources=(Source(source.value),))
            statuses += joined_statuses(ledger, chosen, days)
    except LedgerUnavailableError:
        # The run may have failed for the same reason.
        if not any(OUT_OF_REACH in failure for failure in jobs.failures):
            raise
        return EXIT_INCOMPLETE
    ui.answer(request, [status.to_json() for status in statuses], [status_table(statuses)])
    return exit_code(statuses, jobs.failures)


def maintenance(request: Maintenance) -> int:
    """Run the job of maintenance."""
    settings = load_settings()
    with jobs_of(settings) as jobs:
        jobs.run(MAINTENANCE_JOB, config_of(request, Maintenance))
    return EXIT_INCOMPLETE if jobs.failures else EXIT_OK


def require_one_meant(source: LoadSource, reasons: Reasons, asked: Sequence[str], configured: Sequence[str]) -> None:
    """Raise UsageError for an acceptance without a project, if several are configured and the source has projects."""
    given = [name for name, reason in reasons.items() if reason is not None]
    if given and source is not LoadSource.DIMENSIONS and not asked and len(configured) > 1:
        option, hint = given[0].replace("_", "-"), f"Name the projects that you checked: --project {configured[0]}"
        raise UsageError(f"--{option}", f"would apply to all projects ({', '.join(configured)})", hint)


def load_in_chunks(
    jobs: Jobs, source: LoadSource, days: tuple[date, ...], projects: tuple[str, ...], reasons: Reasons, *, again: bool
) -> None:
    """Run the load job over the days in chunks. `reasons`: by name in run config. `again`: bring back lost slices."""
    settings, job = jobs.settings, DIMENSION_JOB
    if source is not LoadSource.DIMENSIONS:
        job = JOB_OF_SOURCE[Source(source.value)]
    for chunk in stretches(days, settings.days_per_run):
        accepted = acceptances(settings, source, chunk, projects or settings.projects, reasons)
        jobs.run(job, {"projects": list(projects), "read_again": again, **accepted}, chunk)
        failpoint(Failpoint.BETWEEN_CHUNKS)


def acceptances(
    settings: Settings, source: LoadSource, days: tuple[date, ...], projects: Sequence[str], reasons: Reasons
) -> dict[str, dict[str, str]]:
    """The run config of acceptances: missing deliveries for raw, changes for the tables below."""
    if source is LoadSource.DIMENSIONS:
        delivered = [table for one in DIMENSIONS for table in one.tables if table.reads_landing(settings)]
        tables = {"accept_missing": [], "accept_changes": [*delivered, *AS_OF_TABLES]}
    else:
        raw = RAW_TABLES[Source(source.value)]
        tables = {"accept_missing": [raw], "accept_changes": [*DERIVED, *AS_OF_TABLES]}
    given: dict[str, dict[str, str]] = {}
    for option, reason in reasons.items():
        for table in tables[option] if reason is not None else ():
            keys = [
                Slice(table.kind.slice_day(day), project) for day in days for project in table.kind.projects(projects)
            ]
            given.setdefault(option, {}).update({f"{table.key}:{key}": reason or "" for key in keys})
    return given


def config_of(request: Request, kind: type[Request]) -> dict[str, Any]:
    """The run config of a job that takes requests of this kind."""
    return request.model_dump(mode="json", by_alias=True, include=set(kind.model_fields), exclude_none=True)


@dataclass
class Jobs:
    """Jobs that a command runs in this process, with their lines on its console."""

    settings: Settings
    console: Console
    failures: list[str] = field(default_factory=list)
    """Other than verdicts, which the ledger has."""

    def run(self, job: str, config: Mapping[str, Any], days: Sequence[date] = ()) -> None:
        """Run a job of one op, over the days from the first to the last."""
        console = self.console

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                meta = getattr(record, "dagster_meta", None) or {}
                if meta.get("orig_message") and not meta.get("dagster_event"):
                    clock = ui.styled(f"{datetime.now(UTC):%H:%M:%S}", "dim")
                    console.print(ui.line(clock, f" {meta['orig_message']}"))

        def progress(_: dg.InitLoggerContext) -> logging.Logger:
            logger = logging.Logger("tidemark", logging.INFO)
            logger.addHandler(Handler(logging.INFO))
            return logger

        logger = dg.colored_console_logger if ui.VERBOSE.get() else dg.LoggerDefinition(progress)
        tags = range_tags(days[0], days[-1]) if days else {}
        self.failures += run_job(
            self.settings, job, config, tags, logger, lambda text: console.print(text, style="yellow")
        )


@contextmanager
def jobs_of(settings: Settings) -> Iterator[Jobs]:
    """Yield the jobs of a command; prints their failures at the end."""
    with ui.terminal() as console:
        jobs = Jobs(settings, console)
        yield jobs
        for failure in dict.fromkeys(jobs.failures):
            # Further lines are indented to differ from those of the load.
            first, *rest = failure.splitlines() or [""]
            console.print(ui.styled(first, "bold red"))
            for text in rest[:_MOST_LINES]:
                console.print(ui.styled(f"  {text}", "red"))
            ui.show(console, ui.more(len(rest) - _MOST_LINES, "lines"))
        if jobs.failures and not ui.VERBOSE.get():
            console.print(f"  details: {dagster_home() / ui.LOG_NAME}, or run again with --verbose")


@contextmanager
def open_runtime(settings: Settings, log: Callable[[str], None], purpose: Purpose = Purpose.LOOK) -> Iterator[Runtime]:
    """Yield the runtime of the load path in a process without Dagster; starts Spark."""
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        landing = LandingStore.from_settings(settings, S3Resource())
        lakehouse = Lakehouse(session, settings.catalog_name)
        dead = naming_a_dead_engine(lambda: session, log, settings.spark_driver_memory)
        with dead as said, lakehouse_failures("tables"):
            lakehouse.require_own(settings, EVERY_TABLE, purpose, ledger.lake)
            yield Runtime(lakehouse, ledger, landing, settings, said)


def attach(request: Attach) -> int:
    """Print whose lake it is and what can be attached; attach it if requested."""
    settings = load_settings()
    with ui.terminal() as console, lakehouse_failures("tables"):
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        tables = JavaTables(session, settings.catalog_name)
        # A ledger alone is attached whatever a killed publish left beside the tables.
        is_of_ledger = request.ledger and not request.apply
        candidates = [] if is_of_ledger else catalog.attachable(tables, settings, EVERY_TABLE)
        mark, is_ours = read_mark(settings), catalog.taken_from(tables, settings) is None
        ui.show(ui.page(), *_owner(mark, candidates, is_ours=is_ours))
        if mark is not None and (request.ledger or (request.apply and not is_ours)):
            _require_meant(mark, request.take)
        done = catalog.attach(tables, settings, candidates) if request.apply else []
        if candidates:
            ui.show(ui.page(), *_attached(candidates, done, is_applied=request.apply, is_ours=is_ours))
        if request.ledger:
            with closing(production_ledger(settings)) as ledger:
                landing = LandingStore.from_settings(settings, S3Resource())
                lakehouse = Lakehouse(session, settings.catalog_name)
                attach_ledger(Runtime(lakehouse, ledger, landing, settings, ui.plainly(console)), str(uuid.uuid4()))
            own = f"{masked(settings.ledger_database_url)} is the ledger of this lake. It does not know:"
            ui.show(ui.page(), own, *(f"  - {unknown}" for unknown in UNKNOWN))
    return EXIT_OK


def _owner(mark: Mark | None, candidates: Sequence[catalog.Attachable], *, is_ours: bool) -> ui.Parts:
    if mark is None:
        yield "the warehouse has no mark: nobody is known to own this lake"
        return
    last = max((one.updated_at for one in candidates if one.updated_at is not None), default=None)
    committed = "" if last is None else f", last commit {last:%Y-%m-%d %H:%M:%S}"
    also = ", which is this one" if is_ours else ""
    yield f"the lake is of {mark.owner}{also}: marked {(mark.made_at or 'long ago')[:19]}{committed}"
    yield f"its ledger is {mark.ledger_url or 'not on record'}"


def _require_meant(mark: Mark, take: str | None) -> None:
    """Raise UsageError unless the operator names the catalog whose lake or ledger is replaced."""
    name = mark.catalog or "unknown"
    if take is None and sys.stdin.isatty():
        take = typer.prompt(f"Who uses it is refused from then on. Type {name} to go on", err=True)
    if take != name:
        reason = f"is {take or 'not given'}, and the lake is of {mark.owner}; nothing was touched"
        hint = f"Check that what is replaced is lost, and not only mistyped here; then add --take {name}"
        raise UsageError("--take", reason, hint)


def _attached(
    candidates: Sequence[catalog.Attachable], done: Sequence[catalog.Attachable], *, is_applied: bool, is_ours: bool
) -> ui.Parts:
    rows: list[tuple[object, ...]] = []
    for one in candidates:
        if one.metadata_file is None:
            rows.append((one.table.key, "", "", None, "nothing there: the next load creates it"))
            continue
        behind = "changed since" if one.known_at is not None else "to attach"
        state = "known already" if one.is_attached else "attached" if one in done else behind
        rows.append((one.table.key, f"{one.updated_at:%Y-%m-%d %H:%M:%S}", str(one.snapshot_id), one.rows, state))
    yield Table(("table", "written", "snapshot", "rows", ""), rows)
    there = [one for one in candidates if one.metadata_file is not None]
    # A line of its own is never cut, so that the path can be copied.
    yield from (f"{one.table.key}: {one.metadata_file}" for one in there)
    reason = "ahead of this machine's clock, or of a commit that failed, see docs/operations.md"
    yield from (
        f"{one.table.key}: {one.left_out} newer files are left out: {reason}" for one in candidates if one.left_out
    )
    waiting = sum(not one.is_attached for one in there)
    if is_applied:
        yield f"{len(done)} tables attached; go on with tidemark load"
    elif waiting or not is_ours:
        yield f"{waiting} tables can be attached, and the lake is then this catalog's: tidemark attach --apply"
    else:
        yield "the catalog knows all of them: nothing to attach"
