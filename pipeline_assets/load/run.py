"""Stages tables in topological order and publishes them at once, for daily runs, retries, late data and backfills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import count
from typing import Any

from pipeline_assets.domain.errors import SliceConflictError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.load.build.rebuild import rebuild_stale
from pipeline_assets.load.deliveries.accept import accept_deliveries
from pipeline_assets.load.dimensions import (
    Listings,
    days_of_new_items,
    days_published,
    dimension_facts,
    list_dimensions,
    optional_tables,
    slices_joined_with,
)
from pipeline_assets.load.draft import Draft, LoadRuntime
from pipeline_assets.load.golden import record_comparison, take_golden
from pipeline_assets.load.runtime import LoadRequest, Runtime, TableReport, merged
from pipeline_assets.load.staleness.facts import Facts, slices_to_look_at
from pipeline_assets.load.staleness.finality import too_narrow
from pipeline_assets.tables.registry import (
    ALL_TABLES,
    AS_OF_TABLES,
    DERIVED,
    DIMENSION_TABLES,
    SOURCE_OF_TABLE,
    table_by_key,
)
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Purpose
from resources.iceberg.slice_changes import Published


def before_tables(runtime: Runtime, request: LoadRequest) -> None:
    """Hook: runs before a load pins a table."""
    if request.tables & SOURCE_OF_TABLE.keys():
        take_golden(runtime, request.days[0], request.days[-1])


def after_publish(runtime: Runtime, request: LoadRequest, reports: Collection[TableReport]) -> None:
    """Hook: runs once everything is visible."""
    if runtime.ledger.golden.is_in_use():
        days = {*request.days, *(day for report in reports for day in days_published(report))}
        record_comparison(runtime.ledger, runtime.settings, request.projects, min(days), max(days), request.run_id)
    for report in reports:
        source = SOURCE_OF_TABLE.get(report.table)
        if source is not None and days_published(report):
            for told in too_narrow(runtime.ledger, runtime.settings, source, request.projects, request.now.date()):
                runtime.log(f"{report.table}: {told}")


def run_load(runtime: Runtime, request: LoadRequest, is_live: Callable[[str], bool | None]) -> Iterator[TableReport]:
    """Load the requested days into the selected tables; publish everything at once, then yield one report per table.

    Raises PublishConflictError, with nothing published, if other writers keep changing the slices. `is_live`: attempt in a
    branch's name -> whether its run is alive (None: unknown); branches of dead runs are dropped.
    """
    runtime.skew.steps.clear()
    runtime.new_bytes.begin()
    listings = list_dimensions(runtime, request)
    tables = (*ALL_TABLES, *optional_tables(runtime, request, listings))
    with lakehouse_failures("tables"):
        # Before any write, so that no table is created in a warehouse of another catalog or ledger.
        runtime.lakehouse.require_own(runtime.settings, tables, Purpose.BEGIN, runtime.ledger.lake)
        for table in tables:
            runtime.lakehouse.ensure(table)
        swept = runtime.lakehouse.sweep(tables, is_live)
    if swept:
        runtime.log(f"dropped {len(swept)} branches that dead runs left: {few(swept, 10)}")
    before_tables(runtime, request)
    draft = Draft(runtime, request)
    try:
        reports, published = _published(runtime, request, tables, listings, draft)
    except BaseException:
        draft.abandon()
        raise
    after_publish(runtime, request, reports)
    for report in reports:
        own = published.get(report.table)
        with lakehouse_failures(report.table):
            head = own.snapshot_id if own is not None else runtime.lakehouse.head(table_by_key(report.table))
        yield replace(report, snapshot_id=head, pins=draft.published_pins(report.pins, published))


def _published(
    runtime: Runtime, request: LoadRequest, tables: Collection[Table], listings: Listings, draft: Draft
) -> tuple[Sequence[TableReport], Mapping[str, Published]]:
    reports: dict[str, TableReport] = {}
    # Over all passes, because a later pass sees accepted snapshots as unchanged.
    new_items: set[date] = set()
    for walk in count(1):
        try:
            try:
                for report in _staged(draft.runtime, request, tables, listings, new_items):
                    reports[report.table] = merged(reports.get(report.table), report, draft.slices_of(report.table))
            finally:
                runtime.folds.release()
            with lakehouse_failures("tables"):
                return list(reports.values()), draft.publish(_run_row(runtime, request, reports.values()))
        except SliceConflictError as conflict:
            if walk == runtime.settings.publish_attempts:
                raise
            runtime.log(f"{conflict.subject}: {conflict.reason}; nothing was published yet, and it is built again")
            draft.give_up(conflict)
            if listings.keys() & {table for table, _ in conflict.slices}:
                fresh = list_dimensions(runtime, request)
                listings = {key: listing for key, listing in fresh.items() if key in listings}
    raise AssertionError


def _staged(
    runtime: LoadRuntime, request: LoadRequest, tables: Collection[Table], listings: Listings, new_items: set[date]
) -> Iterator[TableReport]:
    """Stage each requested table on top of those before it; yield its report. Adds days of accepted snapshots to `new_items`."""
    for key, source in SOURCE_OF_TABLE.items():
        if key in request.tables:
            with lakehouse_failures(key):
                report = accept_deliveries(runtime, request, source)
            yield _told(runtime, report)
    for table in DIMENSION_TABLES:
        if table in tables and table.key in request.tables:
            with lakehouse_failures(table.key):
                facts = dimension_facts(runtime, request, table, listings, new_items)
                report = rebuild_stale(runtime, request, table, facts)
            new_items |= days_of_new_items(report, table, runtime.settings)
            yield _told(runtime, report)
    derived = [table for table in (*DERIVED, *AS_OF_TABLES) if table.key in request.tables and table in tables]
    if derived:
        slices = slices_to_look_at(runtime.ledger, runtime.settings, request.projects, request.days)
        slices |= runtime.draft.looked_at
        if new_items:
            slices |= slices_joined_with(new_items, request.projects, runtime.settings)
        facts = Facts.read(runtime.ledger, runtime.settings, slices, (), request.now)
        for table in derived:
            with lakehouse_failures(table.key):
                report = rebuild_stale(runtime, request, table, facts)
            published = {outcome.key for outcome in report.outcomes if outcome.verdict is Verdict.PUBLISHED}
            if not published <= facts.slices:
                facts = facts.extended(runtime.ledger, facts.slices | published, ())
            yield _told(runtime, report)


def _told(runtime: Runtime, report: TableReport) -> TableReport:
    counts = Counter(outcome.verdict.value for outcome in report.outcomes)
    runtime.log(
        f"{report.table}: {', '.join(f'{n} {verdict}' for verdict, n in sorted(counts.items())) or 'nothing to do'}"
        f" in {report.seconds:.1f} s, not visible yet"
    )
    failpoint(Failpoint.BETWEEN_TABLES, report.table)
    return report


def _run_row(runtime: Runtime, request: LoadRequest, reports: Collection[TableReport]) -> dict[str, Any]:
    verdicts = Counter(f"{report.table} {outcome.verdict.value}" for report in reports for outcome in report.outcomes)
    return {
        "tables": sorted(request.tables),
        "first_day": request.days[0],
        "last_day": request.days[-1],
        "started_at": request.now.isoformat(),
        "verdicts": dict(verdicts),
        "skew": [step.as_json() for step in runtime.skew.steps.values()],
        "finished_at": datetime.now(UTC).isoformat(),
    }
