"""The job `reconcile`: compare published days with golden totals that arrived since they were loaded."""

from datetime import timedelta

import dagster as dg
from pydantic import Field

from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.golden import GOLDEN_TABLES, reconcile
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.repair_plan import plan_repairs
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.event_text import description, markdown_list, markdown_table
from pipeline_assets.orchestration.events import golden_evaluations
from pipeline_assets.orchestration.jobs import schedule
from pipeline_assets.orchestration.operation_job import operation_job

RECONCILE_JOB = "reconcile"
RECONCILE_OP = "compare_golden_totals"
SCHEDULE_NAME = "reconcile_daily"
_AT = "30 6 * * *"
_DAYS = timedelta(days=30)


class ReconcileConfig(dg.Config):
    """Run config of the op."""

    first: str = Field(default="", alias="from")
    """First day, YYYY-MM-DD; thirty days before the last when empty."""
    last: str = Field(default="", alias="to")
    """Last day; today when empty."""
    projects: list[str] = Field(default_factory=list)
    """Subset of the configured projects; all when empty."""


def reconcile_job(settings: Settings) -> dg.JobDefinition:
    """Return the job. It needs no pool: it writes only the totals that it read and the results of the comparison."""

    def work(context: dg.OpExecutionContext, runtime: Runtime, config: ReconcileConfig, clock: Clock) -> None:
        last = parse_day(config.last) if config.last else clock.now().date()
        first = parse_day(config.first) if config.first else max(settings.calendar_start, last - _DAYS)
        if last < first:
            raise UsageError(f"from {first} to {last}", "the range ends before it begins", "Swap the two days")
        projects = settings.require_projects(tuple(config.projects))
        found = reconcile(runtime.ledger, runtime.landing, settings, projects, first, last)
        repairs = plan_repairs(runtime.ledger, runtime.landing, settings, found.lacking, clock.now())
        days = {one.total.key.event_date for one in found.comparisons}
        for table in GOLDEN_TABLES:
            for event in golden_evaluations(context.instance, runtime.ledger, settings, table, days):
                # Log it as an event of this run: Dagster keeps one evaluation per day and run, and only one without a run.
                context.log_event(event)  # type: ignore[arg-type]  # it takes them, and its annotation leaves them out
        mismatches = [
            (str(one.total.key), one.total.measure.table, str(one), one.total.origin) for one in found.mismatches
        ]
        proposals = [(one.kind.value, len(one.slices), one.reason, one.command) for one in repairs]
        context.add_output_metadata(
            {
                "golden_totals": len(found.comparisons),
                "mismatch_count": len(found.mismatches),
                "mismatches": markdown_table(("day", "table", "", "told by"), mismatches),
                "not compared": markdown_list([str(fault) for fault in found.faults]),
                "proposed": markdown_table(("what", "days", "why", "command"), proposals),
            }
        )
        told = [f"{one.total.key} {one.total.measure.table}: {one}" for one in found.mismatches]
        told += [f"not compared: {fault}" for fault in found.faults]
        if told:
            raise dg.Failure(description(told, "\n"), allow_retries=False)

    about = (
        "Compare published days with golden totals; `tidemark reconcile --repair` repairs.",
        "Compare published days with the totals of outside systems; starts no Spark.",
    )
    names = RECONCILE_JOB, RECONCILE_OP
    return operation_job(settings, names, about, ReconcileConfig, work, is_dry_run=lambda _: True)


def reconcile_schedule(settings: Settings, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule, every morning, for totals that arrive after a load. It is on where `sensors_running` is set."""
    return schedule(SCHEDULE_NAME, job, _AT, settings)
