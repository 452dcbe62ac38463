"""Walk the tables in topological order: the one load path that daily runs, retries, late data and backfills share.

Contains: the order of steps of a run.
Add here: a step between tables.
Does not contain: any step's content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.load.build.rebuild import rebuild_stale
from pipeline_assets.load.deliveries.accept import accept_deliveries
from pipeline_assets.load.request import LoadRequest, TableReport, Workbench
from pipeline_assets.load.staleness.facts import Ground, ground_of, read_ground
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import ALL_TABLES, DERIVED, SOURCE_OF_TABLE
from resources.failpoints import CrashPoint, crash_point
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Purpose


def load(bench: Workbench, request: LoadRequest, is_live: Callable[[str], bool | None]) -> Iterator[TableReport]:
    """Load the requested days into the selected tables; yields one report per table as soon as it is done.

    `is_live` tells whether the attempt a staged branch is named for still runs; the branches of dead ones are dropped.
    """
    tables = ALL_TABLES
    with lakehouse_failures("tables"):
        # Before anything is written, and before a table is created in a warehouse that another catalog may own.
        bench.lakehouse.require_own(bench.settings, tables, Purpose.BEGIN)
        # A lake that has begun just now takes its ledger.
        bench.ledger.lake.require(bench.lakehouse.lake(bench.settings), may_take=True)
        for table in tables:
            bench.lakehouse.ensure(table)
        swept = bench.lakehouse.sweep(tables, is_live)
    if swept:
        bench.say(f"dropped {len(swept)} branches that dead runs left: {few(swept, 10)}")
    started_at = request.now.isoformat()
    verdicts: Counter[str] = Counter()
    snapshots: dict[str, int | None] = {}

    def seen(report: TableReport) -> TableReport:
        verdicts.update(f"{report.table} {outcome.verdict.value}" for outcome in report.outcomes)
        snapshots[report.table] = report.snapshot_id
        counts = Counter(outcome.verdict.value for outcome in report.outcomes)
        bench.say(
            f"{report.table}: {', '.join(f'{n} {verdict}' for verdict, n in sorted(counts.items())) or 'nothing to do'}"
            f" in {report.seconds:.1f} s"
        )
        crash_point(CrashPoint.BETWEEN_TABLES, report.table)
        return report

    for key, source in SOURCE_OF_TABLE.items():
        if key in request.tables:
            with lakehouse_failures(key):
                report = accept_deliveries(bench, request, source)
            yield seen(report)
    derived = [table for table in DERIVED if table.key in request.tables]
    if derived:
        ground = read_ground(bench, request)
        try:
            for table in derived:
                with lakehouse_failures(table.key):
                    report = rebuild_stale(bench, request, table, ground)
                if table == REFINED_EVENTS:
                    ground = _with_what_changed(bench, ground, report)
                yield seen(report)
        finally:
            bench.facts.release()
    bench.ledger.record_run(
        request.run_id,
        tables=sorted(request.tables),
        first_day=request.first_day,
        last_day=request.last_day,
        started_at=started_at,
        verdicts=dict(verdicts),
        snapshots=snapshots,
        finished_at=datetime.now(UTC).isoformat(),
    )


def _with_what_changed(bench: Workbench, ground: Ground, report: TableReport) -> Ground:
    """Days that were built because they lie near a stale one are looked at in the aggregates as well."""
    candidates = {project: set(days) for project, days in ground.candidates.items()}
    for outcome in report.outcomes:
        if outcome.verdict is Verdict.PUBLISHED:
            candidates.setdefault(outcome.key.project_id, set()).add(outcome.key.event_date)
    found = {project: frozenset(days) for project, days in candidates.items()}
    return ground if found == ground.candidates else ground_of(bench, found, ground.first_arrivals)
