"""The job `reconcile`: compare published days with golden totals that arrived since they were loaded."""

from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
from pydantic import Field

from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.load.golden import GOLDEN_TABLES, reconcile
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.repair_plan import plan_repairs
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.event_text import description, markdown_list, markdown_table
from pipeline_assets.orchestration.events import golden_evaluations
from pipeline_assets.orchestration.operation_job import operation_job

RECONCILE_JOB = "reconcile"
RECONCILE_OP = "compare_golden_totals"
_DAYS = timedelta(days=30)


class ReconcileConfig(dg.Config):
    """Run config of the op."""

    first: str = Field(default="", alias="from")
    """First day, YYYY-MM-DD; thirty days before the last when empty."""
    last: str = Field(default="", alias="to")
    """Last day; today when empty."""
    projects: list[str] = Field(default_factory=list)
    """Subset of the configured projects; all when empty."""


@operation_job(
    RECONCILE_JOB,
    RECONCILE_OP,
    (
        "Compare published days with golden totals; `tidemark reconcile --repair` repairs.",
        "Compare published days with the totals of outside systems; starts no Spark.",
    ),
    is_told=False,
)
def reconcile_job(
    context: dg.OpExecutionContext, runtime: Runtime, config: ReconcileConfig, clock: Clock
) -> Iterator[dg.AssetCheckEvaluation]:
    """Compare; it needs no pool, because it writes only the totals that it read and the results of the comparison."""
    ledger, landing, settings = runtime.ledger, runtime.landing, runtime.settings
    last = parse_day(config.last) if config.last else clock.now().date()
    first = parse_day(config.first) if config.first else max(settings.calendar_start, last - _DAYS)
    if last < first:
        raise UsageError(f"from {first} to {last}", "the range ends before it begins", "Swap the two days")
    found = reconcile(ledger, landing, settings, settings.require_projects(tuple(config.projects)), first, last)
    repairs = plan_repairs(ledger, landing, settings, found.lacking, clock.now())
    days = {one.total.key.event_date for one in found.comparisons}
    for table in GOLDEN_TABLES:
        yield from golden_evaluations(context.instance, ledger, settings, table, days)
    mismatches = [(str(one.total.key), one.total.measure.table, str(one), one.total.origin) for one in found.mismatches]
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
    told = [f"{day} {table}: {text}" for day, table, text, _ in mismatches]
    told += [f"not compared: {fault}" for fault in found.faults]
    if told:
        raise dg.Failure(description(told, "\n"), allow_retries=False)
