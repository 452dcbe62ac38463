"""A load's preparation for dimensions: listings, the delivered history, tables, affected slices."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial

import pyspark.sql.functions as F

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Digest, Slice, Verdict
from pipeline_assets.formats.snapshot_lines import folder_of_intervals
from pipeline_assets.load.build.snapshot import judge_doubled, judge_history, judge_unread, parsed_objects
from pipeline_assets.load.deliveries.snapshots import (
    SnapshotListing,
    by_bytes,
    exclusions_of_dimensions,
    is_ruled_out,
    list_snapshots,
    log_odd_objects,
)
from pipeline_assets.load.draft import LoadRuntime
from pipeline_assets.load.runtime import LoadRequest, Runtime, TableReport
from pipeline_assets.load.staleness.as_of import (
    EXCLUDED,
    History,
    days_on_record,
    is_on_record,
    is_refused_before,
    month_of,
    months_of,
    news_of,
    nothing_since,
    standing_day,
    version_of,
)
from pipeline_assets.load.staleness.decide import SlicePlan, decide
from pipeline_assets.load.staleness.facts import Facts, counts_on_record, judging
from pipeline_assets.tables.registry import AS_OF_TABLES, DIMENSION_TABLES, DIMENSIONS
from pipeline_assets.tables.table import Dimension, Table
from pipeline_assets.transforms.snapshot_rows import HISTORY, digests_by_day, read_objects
from resources.landing.bucket import Listed
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger


def look_at_history(
    runtime: LoadRuntime, request: LoadRequest, table: Table, listing: SnapshotListing
) -> History | None:
    """The current delivery, read unless on record; None if landing has no complete one as recent as the published one."""
    settings, log = runtime.settings, runtime.log
    day = standing_day(listing.days, settings, request.now)
    runtime.draft.pin(table)
    records = runtime.ledger.slices(table.key, [ALL_PROJECTS])
    last = max(days_on_record(table, records), default=None)
    is_excluded = last is not None and is_ruled_out(listing.exclusions, records.get(month_of(table, last)))
    if last is not None and (day is None or day < last):
        if not is_excluded:
            log(f"{table.key}: landing no longer holds the intervals as of {last}; those that are published stay")
            return None
        stand = f"those as of {day} stand" if day else "none stand"
        log(f"{table.key}: the intervals as of {last} are excluded; {stand}")
        if day is None:
            return nothing_since(last)
    if day is None:
        return None
    delivery = listing.days[day]
    history = History(day, delivery, version_of(delivery, settings))
    if is_on_record(table, day, history.version, records):
        return history
    if is_refused_before(table, day, history.version, records, judging(table, settings), request.accepted):
        return replace(history, is_refused=True)
    if delivery.others:
        return replace(history, failure=judge_doubled(delivery.key, delivery.others[0].rpartition(" ")[0], day))
    log(f"{table.key}: reading the intervals as of {day}")
    days, failure = _read(runtime, history)
    # Counts of an excluded delivery are not compared, nor are its later days missing in an older one.
    known = {} if is_excluded else days_on_record(table, records)
    recorded = {one: digest for one, digest in known.items() if one <= day}
    if failure is None:
        failure = judge_history(delivery.key, days, recorded, settings)
        why = request.accepted.get((table.key, month_of(table, day)))
        if failure is not None and why is not None:
            log(f"{table.key}: accepted: {why} ({failure.reason})")
            failure = None
    return replace(history, days=days, failure=failure)


def _read(runtime: Runtime, history: History) -> tuple[dict[date, Digest], Evaluation | None]:
    settings, name = runtime.settings, history.delivery.key
    deliveries = {history.day: history.delivery}
    parsed, (summary,) = parsed_objects(read_objects(HISTORY, runtime.spark, deliveries, runtime.landing, settings))
    try:
        if summary["problem"] is not None:
            return {}, judge_unread(name, summary["problem"], summary["detail"])
        first = F.lit(settings.calendar_start)
        within = parsed.where(F.col("id").isNotNull() & (F.col("active_end_date") >= first))
        rows = within.withColumn("active_start_date", F.greatest("active_start_date", first))
        left_out = int(summary["rows"]) - rows.count()
        if left_out:
            runtime.log(f"{name}: {left_out:,} intervals end before {settings.calendar_start}")
        return digests_by_day(rows, history.day), None
    finally:
        parsed.unpersist()


Listings = Mapping[str, SnapshotListing]


def list_dimensions(runtime: Runtime, request: LoadRequest) -> Listings:
    """List landing for the requested dimension tables, without dimensions that were never delivered."""
    listings: dict[str, SnapshotListing] = {}
    wanted = [
        (dimension, table)
        for dimension in DIMENSIONS
        for table in dimension.tables
        if table.key in request.tables and table.reads_landing(runtime.settings)
    ]
    exclusions = exclusions_of_dimensions(runtime.ledger) if wanted else {}
    calendar = (runtime.settings.calendar_start, request.now.date())
    for dimension, table in wanted:
        why_excluded = partial(by_bytes, exclusions, runtime.landing, runtime.ledger, request.run_id)
        listing = list_of(runtime.landing, dimension, table, why_excluded)
        log_odd_objects(listing, table.key, calendar, runtime.log)
        days = listing.days_within(*calendar)
        what = "intervals" if table.reads_history(runtime.settings) else "snapshot"
        if days or is_in_use(runtime.ledger, dimension):
            listings[table.key] = replace(listing, exclusions=exclusions)
            runtime.log(f"{table.key}: landing holds {what.removesuffix('s')}s of {len(days)} days")
        else:
            runtime.log(f"{table.key}: landing holds no {what} of the dimension at all, so there is nothing to load")
    return listings


def list_of(
    landing: LandingStore, dimension: Dimension, table: Table, why_excluded: Callable[[Listed], str | None]
) -> SnapshotListing:
    """The listing of landing for a delivered table of a dimension, without excluded objects."""
    is_snapshot = table == dimension.snapshot
    folder = dimension.name if is_snapshot else folder_of_intervals(dimension.name)
    return list_snapshots(landing, folder, why_excluded)


def is_in_use(ledger: Ledger, dimension: Dimension) -> bool:
    """Whether the ledger has any slice of the dimension on record."""
    return any(ledger.first_day(table.key) is not None for table in dimension.tables)


def optional_tables(runtime: Runtime, request: LoadRequest, listings: Listings) -> list[Table]:
    """The tables of dimensions, and those joined with them, that this load needs, in topological order."""
    present = [
        one
        for one in DIMENSIONS
        if any(table.key in listings for table in one.tables) or is_in_use(runtime.ledger, one)
    ]
    there = {table.key for one in present for table in one.tables}
    joined = [table for table in AS_OF_TABLES if table.key in request.tables and table.dimension in present]
    needed = {key for table in joined for key in table.upstream} | request.tables
    return [*(table for table in DIMENSION_TABLES if table.key in there & needed), *joined]


def dimension_facts(
    runtime: LoadRuntime, request: LoadRequest, table: Table, listings: Listings, new_items: Collection[date] = ()
) -> Facts:
    """The facts about a dimension table's slices in this load, with those built from `new_items` (days published now)."""
    days = () if table.reads_landing(runtime.settings) else new_items
    slices = {Slice(table.kind.slice_day(day), ALL_PROJECTS) for day in days}
    facts = Facts(runtime.settings, request.slices_of(table.kind) | slices, {}, {})
    listing = listings.get(table.key)
    if listing is None:
        return facts
    if not table.reads_history(runtime.settings):
        facts = _as_listed(runtime.ledger, facts, table, listing, request.now.date())
        return replace(facts, exclusions=listing.exclusions)
    history = look_at_history(runtime, request, table, listing)
    months = facts.slices | months_of(table, history, runtime.ledger.slices(table.key, [ALL_PROJECTS]).keys())
    is_there = history is not None and history.is_good and history.version != EXCLUDED
    delivered = dict.fromkeys(months, history.delivery) if history is not None and is_there else {}
    return replace(facts, slices=months, history=history, delivered=delivered, exclusions=listing.exclusions)


def _as_listed(ledger: Ledger, facts: Facts, table: Table, listing: SnapshotListing, today: date) -> Facts:
    known = [ledger.first_day(table.key), *listing.days_within(facts.settings.calendar_start, today)[:1]]
    first = min((day for day in known if day is not None), default=None)
    return replace(
        facts,
        delivered={Slice(day, ALL_PROJECTS): one for day, one in listing.days.items()},
        exclusions=exclusions_of_dimensions(ledger),
        excluded={Slice(day, ALL_PROJECTS): reason for day, reason in listing.excluded.items()},
        first_snapshots={} if first is None else {table.key: first},
        item_counts=counts_on_record(ledger, table, {key.event_date for key in facts.slices}),
    )


def plans_of_snapshots(
    ledger: Ledger, settings: Settings, dimension: Dimension, listing: SnapshotListing, now: datetime
) -> list[SlicePlan]:
    """The plans for days in landing, and for days it lacks within `redelivery_horizon_days`; reads only the ledger."""
    table, today = dimension.snapshot, now.date()
    if not listing.days and not listing.excluded:
        return []
    begun = min(listing.days_within(settings.calendar_start, today), default=today + timedelta(days=1))
    first = max(begun, today - timedelta(days=settings.redelivery_horizon_days))
    lacking = {first + timedelta(days=number) for number in range((today - first).days + 1)} - listing.days.keys()
    slices = frozenset(Slice(day, ALL_PROJECTS) for day in (*listing.days, *lacking, *listing.excluded))
    facts = _as_listed(ledger, Facts(settings, slices, {}, {}).reading(ledger, [table]), table, listing, today)
    # Unrecorded slices alone count as requested: those of other code stay until an operator requests them.
    unknown = slices - facts.records[table.key].keys()
    return decide(facts, table, unknown, {}, now)


def days_published(report: TableReport) -> set[date]:
    """The days of a table that this run published."""
    return {outcome.key.event_date for outcome in report.outcomes if outcome.verdict is Verdict.PUBLISHED}


def news_of_intervals(
    ledger: Ledger, settings: Settings, dimension: Dimension, listing: SnapshotListing, now: datetime
) -> tuple[tuple[date, str, str] | None, list[str]]:
    """The same for delivered intervals: the day, reason and state of a load that is due (or None), and the open waits."""
    table = dimension.validity
    records = ledger.slices(table.key, [ALL_PROJECTS])
    return news_of(table, listing.days, records, judging(table, settings), settings, now)


def days_of_new_items(report: TableReport, table: Table, settings: Settings) -> set[date]:
    """The days whose items this run published in a delivered table; for a history, all days of the months built."""
    if not table.reads_landing(settings):
        return set()
    if not table.reads_history(settings):
        return days_published(report)
    lengths = {key.event_date: monthrange(key.event_date.year, key.event_date.month)[1] for key in report.built}
    return {month + timedelta(days=number) for month, length in lengths.items() for number in range(length)}


def slices_joined_with(days: Collection[date], projects: Sequence[str], settings: Settings) -> set[Slice]:
    """The slices of events that may be joined with the snapshots of these days."""
    reach = settings.previous_snapshot_days if settings.missing_snapshot is MissingSnapshot.PREVIOUS else 0
    return {
        Slice(day + timedelta(days=number), project)
        for day in days
        for number in range(reach + 1)
        for project in projects
    }
