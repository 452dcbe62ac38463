"""The jobs `rollback` and `release`: restore published slices to an earlier state and hold them, and release them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import Field

from pipeline_assets.domain.acceptance import a_reason
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.release import preview, release
from pipeline_assets.operations.rollback import RollbackRequest, plan, roll_back
from pipeline_assets.orchestration.assets import POOL, Clock
from pipeline_assets.orchestration.event_text import markdown_table
from pipeline_assets.orchestration.events import standing_events
from pipeline_assets.orchestration.operation_job import operation_job
from resources.iceberg.lake_identity import Purpose

ROLLBACK_JOB, RELEASE_JOB = "rollback", "release"
# An op and a job must not share a name within a code location.
ROLLBACK_OP, RELEASE_OP = "roll_back", "release_held"


class ReleaseConfig(dg.Config):
    """Run config of the `release_held` op."""

    first: str
    """First day, YYYY-MM-DD."""
    last: str
    """Last day."""
    reason: str
    """Why; kept on record."""
    tables: list[str] = Field(default_factory=list)
    """Subset of refined and aggregate tables; all when empty."""
    projects: list[str] = Field(default_factory=list)
    """Subset of the configured projects; all when empty."""
    dry_run: bool = False
    """Only report what would change."""


class RollbackConfig(ReleaseConfig):
    """Run config of the `roll_back` op."""

    back_to: str
    """A time (2026-02-05T10:00, UTC by default): the state at that time. Or a publication's number: the state after its run."""


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


@operation_job(
    ROLLBACK_JOB,
    ROLLBACK_OP,
    (
        "Roll published days back, by metadata alone; held until they are released.",
        "Restore refined and aggregate slices to what they were, and hold them.",
    ),
    # A dry run records what it finds in the tables, too.
    purpose=Purpose.KEEP,
    pool=POOL,
)
def rollback_job(context: dg.OpExecutionContext, runtime: Runtime, config: RollbackConfig, _: Clock) -> Iterator[Any]:
    """Roll back; runs in the pool of loads, although it is safe beside a load."""
    request = rollback_request(config, runtime.settings, context.run_id)
    if config.dry_run:
        restores = plan(runtime, request, is_preview=True)
    else:
        read_back(runtime.ledger, runtime.log)
        restores = roll_back(runtime, request)
        yield from standing_events(context.instance, runtime, {(one.table, one.key.event_date) for one in restores})
    rows = [
        (
            *(one.table, one.key.event_date, one.key.project_id, one.present.digest.rows, one.digest.rows),
            "held as it is" if one.is_there else "rolled back",
        )
        for one in restores
    ]
    headings = ("table", "day", "project", "rows now", "rows then", "")
    context.add_output_metadata({"slices": markdown_table(headings, rows)})


@operation_job(
    RELEASE_JOB,
    RELEASE_OP,
    (
        "Release slices that were rolled back; loads treat them like any other again.",
        "Release rolled-back slices, and build those that are stale.",
    ),
)
def release_job(context: dg.OpExecutionContext, runtime: Runtime, config: ReleaseConfig, clock: Clock) -> None:
    """Release; the next load, or `heal_load`, builds the released slices again."""
    ledger, settings = runtime.ledger, runtime.settings
    if not config.dry_run:
        read_back(ledger, runtime.log)
    projects = settings.require_projects(tuple(config.projects))
    days = parse_day(config.first), parse_day(config.last)
    held = preview(ledger, settings, config.tables, projects, *days, clock.now(), is_load_next=False)
    if not config.dry_run:
        release(ledger, held, a_reason("reason", config.reason), context.run_id)
    rows = [(h.table, h.key.event_date, h.key.project_id, h.digest.rows, h.digest_before.rows, h.then) for h in held]
    headings = ("table", "day", "project", "rows now", "rows before the rollback", "then")
    context.add_output_metadata({"slices": markdown_table(headings, rows)})
