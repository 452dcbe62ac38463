"""Load the tables in topological order: the one load path that daily runs, retries, late data and backfills share.

Contains: the order of steps of a run.
Add here: a step between tables.
Does not contain: any step's content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime

from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.load.build.rebuild import rebuild_stale
from pipeline_assets.load.deliveries.accept import accept_deliveries
from pipeline_assets.load.dimensions import (
    days_of_new_items,
    dimension_facts,
    list_dimensions,
    optional_tables,
    slices_joined_with,
)
from pipeline_assets.load.golden import take_golden
from pipeline_assets.load.late_arrivals import too_narrow
from pipeline_assets.load.request import LoadRequest, TableReport
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.facts import Facts, slices_to_look_at
from pipeline_assets.tables.registry import ALL_TABLES, AS_OF_TABLES, DERIVED, DIMENSION_TABLES, SOURCE_OF_TABLE
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Purpose


def run_load(runtime: Runtime, request: LoadRequest, is_live: Callable[[str], bool | None]) -> Iterator[TableReport]:
    """Load the requested days into the selected tables; yields one report per table as soon as it is done.

    `is_live` tells whether the attempt a staged branch is named for still runs; the branches of dead ones are dropped.
    """
    listings = list_dimensions(runtime, request)
    tables = (*ALL_TABLES, *optional_tables(runtime, request, listings))
    runtime.skew.begin()
    with lakehouse_failures("tables"):
        # Before anything is written, and before a table is created in a warehouse that another catalog may own.
        runtime.lakehouse.require_own(runtime.settings, tables, Purpose.BEGIN)
        # A lake that has begun just now takes its ledger.
        runtime.ledger.lake.require(runtime.lakehouse.lake(runtime.settings), may_take=True)
        for table in tables:
            runtime.lakehouse.ensure(table)
        swept = runtime.lakehouse.sweep(tables, is_live)
    if swept:
        runtime.log(f"dropped {len(swept)} branches that dead runs left: {few(swept, 10)}")
    if request.tables & SOURCE_OF_TABLE.keys():
        take_golden(runtime, request.first_day, request.last_day)
    started_at = request.now.isoformat()
    verdicts: Counter[str] = Counter()
    snapshots: dict[str, int | None] = {}

    def seen(report: TableReport) -> TableReport:
        verdicts.update(f"{report.table} {outcome.verdict.value}" for outcome in report.outcomes)
        snapshots[report.table] = report.snapshot_id
        counts = Counter(outcome.verdict.value for outcome in report.outcomes)
        runtime.log(
            f"{report.table}: {', '.join(f'{n} {verdict}' for verdict, n in sorted(counts.items())) or 'nothing to do'}"
            f" in {report.seconds:.1f} s"
        )
        failpoint(Failpoint.BETWEEN_TABLES, report.table)
        return report

    for key, source in SOURCE_OF_TABLE.items():
        if key in request.tables:
            with lakehouse_failures(key):
                report = accept_deliveries(runtime, request, source)
            if any(outcome.verdict is Verdict.PUBLISHED for outcome in report.outcomes):
                for told in too_narrow(runtime.ledger, runtime.settings, source, request.projects, request.now.date()):
                    runtime.log(f"{key}: {told}")
            yield seen(report)
    new_items: set[date] = set()
    for table in DIMENSION_TABLES:
        if table in tables and table.key in request.tables:
            with lakehouse_failures(table.key):
                report = rebuild_stale(runtime, request, table, dimension_facts(runtime, request, table, listings))
            new_items |= days_of_new_items(report, table, runtime.settings)
            yield seen(report)
    derived = [table for table in (*DERIVED, *AS_OF_TABLES) if table.key in request.tables and table in tables]
    if derived:
        slices = slices_to_look_at(runtime.ledger, runtime.settings, request.projects, request.days)
        slices |= slices_joined_with(new_items, request.projects, runtime.settings)
        facts = Facts.read(runtime.ledger, runtime.settings, slices, (), request.now)
        try:
            for table in derived:
                with lakehouse_failures(table.key):
                    report = rebuild_stale(runtime, request, table, facts)
                facts = _with_what_changed(runtime, facts, report)
                yield seen(report)
        finally:
            runtime.narrow_events.release()
    runtime.ledger.record_run(
        request.run_id,
        tables=sorted(request.tables),
        first_day=request.first_day,
        last_day=request.last_day,
        started_at=started_at,
        verdicts=dict(verdicts),
        snapshots=snapshots,
        skew=[step.as_json() for step in runtime.skew.steps],
        finished_at=datetime.now(UTC).isoformat(),
    )


def _with_what_changed(runtime: Runtime, facts: Facts, report: TableReport) -> Facts:
    """Days that were built because they lie near a stale one are looked at in the tables that follow as well."""
    published = {outcome.key for outcome in report.outcomes if outcome.verdict is Verdict.PUBLISHED}
    return facts if published <= facts.slices else facts.extended(runtime.ledger, facts.slices | published, ())
