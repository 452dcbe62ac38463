"""The `maintenance` job: upkeep of all tables, started by hand, from the CLI or every night."""

import dagster as dg

from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.scratch import sweep_scratch
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.maintenance import TableUpkeep, maintain, require_done, summary
from pipeline_assets.operations.notices import forget_notices
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.event_text import markdown_table
from pipeline_assets.orchestration.jobs import schedule
from pipeline_assets.orchestration.live_runs import liveness
from pipeline_assets.orchestration.operation_job import operation_job

JOB_NAME = "maintenance"
SCHEDULE_NAME = "maintenance_nightly"
_AT = "30 3 * * *"


class MaintenanceConfig(dg.Config):
    """Run config of the `maintain` op."""

    dry_run: bool = False
    """Only report what would be done."""


def maintenance_job(settings: Settings) -> dg.JobDefinition:
    """Return the job; it needs no pool, because it is safe beside a load."""

    def work(context: dg.OpExecutionContext, runtime: Runtime, config: MaintenanceConfig, clock: Clock) -> None:
        if not config.dry_run:
            read_back(runtime.ledger, runtime.log)
        is_live = liveness(context.instance, runtime.ledger, context.run_id)
        reports = list(maintain(runtime, context.run_id, clock.now(), is_live, is_dry_run=config.dry_run))
        forgotten = forget_notices(runtime.ledger, settings, clock.now(), is_dry_run=config.dry_run)
        if forgotten:
            would = "would go" if config.dry_run else "removed"
            runtime.log(f"ledger: {forgotten} old notices that every receiver was told of {would}")
        if not config.dry_run:
            sweep_scratch(runtime.spark, settings, runtime.ledger, runtime.log)
        context.add_output_metadata({"what was done": _table(reports, is_dry_run=config.dry_run)})
        require_done(reports)

    about = (
        "Remove what no reader, no rollback and no run needs any more.",
        "Expire, compact and clean up every table; with `dry_run` only report what is due.",
    )
    names = JOB_NAME, "maintain"
    return operation_job(settings, names, about, MaintenanceConfig, work, is_dry_run=lambda config: config.dry_run)


def maintenance_schedule(settings: Settings, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule, every night. It is on by default where `sensors_running` is set."""
    return schedule(SCHEDULE_NAME, job, _AT, settings)


def _table(reports: list[TableUpkeep], *, is_dry_run: bool) -> dg.MarkdownMetadataValue:
    rows = [(report.table, summary(report, is_dry_run=is_dry_run)) for report in reports]
    lists = {
        "Orphan files": [path for report in reports for path in report.orphans],
        "Old metadata files": [path for report in reports for path in report.metadata],
        "Files of others, which stay": [path for report in reports for path in report.others],
    }
    return markdown_table(("table", ""), rows, lists=lists)
