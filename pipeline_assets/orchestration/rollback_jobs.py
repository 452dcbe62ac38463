"""The jobs `rollback` and `release`: restore published slices to an earlier state and hold them, and release them."""

from collections.abc import Iterable
from datetime import UTC, date, datetime

import dagster as dg
from pydantic import Field

from pipeline_assets.domain.acceptance import a_reason
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.release import Held, preview, release
from pipeline_assets.operations.rollback import roll_back
from pipeline_assets.operations.rollback_plan import RollbackRequest, SliceRestore, plan
from pipeline_assets.orchestration.assets import POOL, Clock
from pipeline_assets.orchestration.event_text import markdown_table
from pipeline_assets.orchestration.events import standing_evaluations
from pipeline_assets.orchestration.operation_job import operation_job
from pipeline_assets.tables.registry import table_by_key
from resources.iceberg.lake_identity import Purpose

ROLLBACK_JOB, RELEASE_JOB = "rollback", "release"
# An op and a job must not share a name within a code location.
ROLLBACK_OP, RELEASE_OP = "roll_back", "release_held"


class RollbackConfig(dg.Config):
    """Run config of the `roll_back` op."""

    first: str
    """First day, YYYY-MM-DD."""
    last: str
    """Last day."""
    back_to: str
    """A time (2026-02-05T10:00, UTC by default): the state at that time. Or a publication's number: the state after its run."""
    reason: str
    """Why; kept on record."""
    tables: list[str] = Field(default_factory=list)
    """Subset of refined and aggregate tables; all when empty."""
    projects: list[str] = Field(default_factory=list)
    """Subset of the configured projects; all when empty."""
    dry_run: bool = False
    """Only report what would change."""


class ReleaseConfig(dg.Config):
    """Run config of the `release_held` op."""

    first: str
    last: str
    reason: str
    """Why; kept on record."""
    tables: list[str] = Field(default_factory=list)
    projects: list[str] = Field(default_factory=list)
    dry_run: bool = False
    """Only report what will change."""


_DIGITS_OF_A_LONG = 19


def moment_of(text: str) -> datetime | int:
    """Parse a time or the number of a publication; a time without zone is UTC; raises UsageError."""
    if text.isdecimal() and len(text) < _DIGITS_OF_A_LONG:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"back to {text!r}",
            "is neither a time nor the number of a publication",
            "Write 2026-02-05T10:00, or a number that `tidemark history` shows",
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def rollback_request(config: RollbackConfig, settings: Settings, run_id: str) -> RollbackRequest:
    """Parse the request; raises UsageError or SettingsError."""
    first, last = parse_day(config.first), parse_day(config.last)
    projects = settings.require_projects(tuple(config.projects))
    reason = a_reason("reason", config.reason)
    return RollbackRequest(tuple(config.tables), projects, first, last, moment_of(config.back_to), reason, run_id)


def rollback_job(settings: Settings) -> dg.JobDefinition:
    """Return the job; it runs in the pool of loads, although it is safe beside a load."""

    def work(context: dg.OpExecutionContext, runtime: Runtime, config: RollbackConfig, _: Clock) -> None:
        request = rollback_request(config, settings, context.run_id)
        if not config.dry_run:
            read_back(runtime.ledger, runtime.log)
        restores = plan(runtime, request, is_preview=True) if config.dry_run else roll_back(runtime, request)
        if not config.dry_run:
            _tell(context, runtime, {(restore.table, restore.key.event_date) for restore in restores})
        context.add_output_metadata({"slices": _restores_table(restores)})

    about = (
        "Roll published days back, by metadata alone; held until they are released.",
        "Restore refined and aggregate slices to what they were, and hold them.",
    )
    # A dry run records what it finds in the tables, too.
    return operation_job(
        settings,
        (ROLLBACK_JOB, ROLLBACK_OP),
        about,
        RollbackConfig,
        work,
        is_dry_run=lambda config: config.dry_run,
        purpose=Purpose.KEEP,
        pool=POOL,
    )


def release_job(settings: Settings) -> dg.JobDefinition:
    """Return the job; the next load, or `heal_load`, builds the released slices again."""

    def work(context: dg.OpExecutionContext, runtime: Runtime, config: ReleaseConfig, clock: Clock) -> None:
        if not config.dry_run:
            read_back(runtime.ledger, runtime.log)
        projects = settings.require_projects(tuple(config.projects))
        days = parse_day(config.first), parse_day(config.last)
        held = preview(runtime.ledger, settings, config.tables, projects, *days, clock.now(), is_load_next=False)
        if not config.dry_run:
            release(runtime.ledger, held, a_reason("reason", config.reason), context.run_id)
        context.add_output_metadata({"slices": _held_table(held)})

    about = (
        "Release slices that were rolled back; loads treat them like any other again.",
        "Release rolled-back slices, and build those that are stale.",
    )
    names = RELEASE_JOB, RELEASE_OP
    return operation_job(settings, names, about, ReleaseConfig, work, is_dry_run=lambda config: config.dry_run)


def _tell(context: dg.OpExecutionContext, runtime: Runtime, places: Iterable[tuple[str, date]]) -> None:
    """Show held days as red in Dagster now, instead of with the next load."""
    days: dict[str, set[date]] = {}
    for table, day in places:
        days.setdefault(table, set()).add(day)
    for table, changed in days.items():
        for event in standing_evaluations(
            context.instance, runtime.ledger, runtime.settings, table_by_key(table), changed
        ):
            # Log it as an event of this run: Dagster keeps one evaluation per day and run, and only one without a run.
            context.log_event(event)  # type: ignore[arg-type]  # it takes them, and its annotation leaves them out


def _restores_table(restores: list[SliceRestore]) -> dg.MarkdownMetadataValue:
    rows = [
        (
            m.table,
            m.key.event_date,
            m.key.project_id,
            m.present.digest.rows,
            m.digest.rows,
            "held as it is" if m.is_there else "rolled back",
        )
        for m in restores
    ]
    return markdown_table(("table", "day", "project", "rows now", "rows then", ""), rows)


def _held_table(held: list[Held]) -> dg.MarkdownMetadataValue:
    rows = [(h.table, h.key.event_date, h.key.project_id, h.digest.rows, h.digest_before.rows, h.then) for h in held]
    return markdown_table(("table", "day", "project", "rows now", "rows before the rollback", "then"), rows)
