"""The `maintenance` job: upkeep of all tables, started by hand, from the CLI or every night."""

import dagster as dg

from pipeline_assets.inspection.scratch import sweep_scratch
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.maintenance import TableUpkeep, maintain, require_done, summary
from pipeline_assets.operations.notices import forget_notices
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.event_text import markdown_table
from pipeline_assets.orchestration.live_runs import liveness
from pipeline_assets.orchestration.operation_job import operation_job

JOB_NAME = "maintenance"


class MaintenanceConfig(dg.Config):
    """Run config of the `maintain` op."""

    dry_run: bool = False
    """Only report what would be done."""


@operation_job(
    JOB_NAME,
    "maintain",
    (
        "Remove what no reader, no rollback and no run needs any more.",
        "Expire, compact and clean up every table; with `dry_run` only report what is due.",
    ),
)
def maintenance_job(context: dg.OpExecutionContext, runtime: Runtime, config: MaintenanceConfig, clock: Clock) -> None:
    """Maintain all tables; it needs no pool, because it is safe beside a load."""
    if not config.dry_run:
        read_back(runtime.ledger, runtime.log)
    is_live = liveness(context.instance, runtime.ledger, context.run_id)
    reports = list(maintain(runtime, context.run_id, clock.now(), is_live, is_dry_run=config.dry_run))
    forgotten = forget_notices(runtime.ledger, runtime.settings, clock.now(), is_dry_run=config.dry_run)
    if forgotten:
        would = "would go" if config.dry_run else "removed"
        runtime.log(f"ledger: {forgotten} old notices that every receiver was told of {would}")
    if not config.dry_run:
        sweep_scratch(runtime.spark, runtime.settings, runtime.ledger, runtime.log)
    context.add_output_metadata({"what was done": _table(reports, is_dry_run=config.dry_run)})
    require_done(reports)


def _table(reports: list[TableUpkeep], *, is_dry_run: bool) -> dg.MarkdownMetadataValue:
    rows = [(report.table, summary(report, is_dry_run=is_dry_run)) for report in reports]
    lists = {
        "Orphan files": [path for report in reports for path in report.orphans],
        "Old metadata files": [path for report in reports for path in report.metadata],
        "Files of others, which stay": [path for report in reports for path in report.others],
    }
    return markdown_table(("table", ""), rows, lists=lists)
