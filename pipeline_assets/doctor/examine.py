"""Examine this deployment: read and judge the evidence of each point, in the order of the guide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import date, datetime, timedelta
from functools import partial

from pipeline_assets.doctor import places, recorded
from pipeline_assets.doctor.places import PrefixEvidence, TableHead
from pipeline_assets.doctor.point import Point, Question
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.deliveries import BatchKey, Delivery, UnrecognizedObject, unplaced_hours
from pipeline_assets.domain.errors import SettingsError, TidemarkError
from pipeline_assets.domain.hours import Hour
from pipeline_assets.domain.machine import engine_cores
from pipeline_assets.domain.masking import receiver_id
from pipeline_assets.domain.notices import SEND_AGAIN
from pipeline_assets.domain.processes import Sight
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.skew import READS_PER_CORE
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.health.report import DUPLICATES
from pipeline_assets.inspection.receivers import receiver_troubles
from pipeline_assets.load.late_arrivals import recent_lateness
from pipeline_assets.operations.split.evidence import by_evidence
from pipeline_assets.operations.split.prefix import read_prefix
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import ALL_TABLES, EVERY_TABLE, SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from resources.export_api.credentials import ExportCredentials
from resources.iceberg.branches import PREFIX
from resources.iceberg.catalog_at_rest import CatalogAtRest
from resources.iceberg.lake_identity import NAMESPACE, Purpose, is_one_lake, lake_of, unknown_lake
from resources.iceberg.lake_mark import read_mark
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.lost_files import lost_at_rest
from resources.landing.move import Mover
from resources.ledger.decision_objects import FOLDER, DecisionObjects
from resources.ledger.store import Ledger
from resources.publishing.promise import promise_of
from resources.this_process import sight

RECENT_DAYS = 28
_FOREIGN_DAYS = 30
_RECOVERY_RESTS = timedelta(hours=1)
"""A recovery that claimed an hour longer ago than this has died or failed: it claims each hour only when it writes it."""


def examine(ledger: Ledger, settings: Settings, landing: Callable[[], Mover], now: datetime) -> Iterator[Point]:
    """Yield one point after the other. Raises LedgerError: without the ledger there is no evidence.

    `landing` opens landing; if that fails, its point says so. Writes nothing except a probe that reads a bucket's clock.
    """
    projects = settings.require_projects()
    first, checkup = (now - timedelta(days=RECENT_DAYS)).date(), ledger.checkup
    processes = checkup.processes()
    heads = table_heads(ledger, settings)
    yield _one_lake(ledger, settings)
    yield recorded.idempotent(checkup.built_again(projects), checkup.verdicts())
    open_ended = [one for one in processes if one.begun_at and not one.ended_at]
    dead = [one for one in open_ended if one.lost_at or sight(one.identity) is Sight.GONE]
    yield places.atomic(heads, [one for one in open_ended if one not in dead], dead)
    yield _guarded(places.FILES, lambda: _files(settings, heads, now.date()))
    yield places.one_transaction(promise_of(settings))
    since = (now - timedelta(days=_FOREIGN_DAYS)).isoformat()
    strange = [one.table for one in heads if one.ledger is not None and one.catalog != one.ledger and not one.is_ours]
    found, unfinished = checkup.found_commits(projects), checkup.of_unfinished_runs(projects)
    yield recorded.one_load_path(found, strange, unfinished, since)
    yield _guarded(places.SEPARATE_PREFIXES, lambda: _prefixes(settings, landing(), projects, now))
    late = recent_lateness(ledger, settings, Source.REGULAR, projects, now.date())
    yield recorded.wide_enough(late, settings)
    yield _keys(ledger, projects, now)
    tasks = engine_cores(settings.spark_master) * READS_PER_CORE
    yield recorded.not_skewed(checkup.object_sizes(projects, first), settings, tasks)
    yield recorded.markers_on_time(checkup.marked_days(projects, first), settings)
    yield _guarded(places.RECOVERY, lambda: _recovery(ledger, settings, landing, projects, now))
    yield places.looked_after(processes, heads, checkup.first_load(), now)
    yield _notices(ledger, settings)
    yield _guarded(places.DECISIONS, lambda: _decisions(ledger, settings))
    yield _guarded(places.CLOCKS, lambda: places.same_clock(LakeObjects.of(settings).clock(), now))


def _guarded(question: Question, look: Callable[[], Point]) -> Point:
    """Turn the failure of one place into its point, so that the other points are still examined."""
    try:
        return look()
    except TidemarkError as error:
        return question.out_of_reach(error)


def _one_lake(ledger: Ledger, settings: Settings) -> Point:
    """The point before all others: each of those judges one part, and tells nothing where the parts are of several lakes."""
    try:
        mark = read_mark(settings)
        with closing(CatalogAtRest(settings)) as catalog:
            known = catalog.namespace_properties(NAMESPACE)
            outside = partial(catalog.outside, EVERY_TABLE)
            is_certain = is_one_lake(settings, known, outside, Purpose.KEEP, ledger.lake)
            if mark is not None and known == {}:
                raise unknown_lake(settings, mark.id)
        ledger.lake.require(lake_of(mark, known or {}), mark)
        return places.one_lake(mark, settings, is_certain=is_certain)
    except TidemarkError as error:
        return places.ONE_LAKE.red(f"{error.subject}: {error.reason}", error.hint)


def table_heads(ledger: Ledger, settings: Settings) -> list[TableHead]:
    """Each table's head in the catalog and in the ledger."""
    with closing(CatalogAtRest(settings)) as catalog:
        found = []
        for table in ALL_TABLES:
            resting, known = catalog.table(table), ledger.head(table.key)
            # The next load compares a doubted head, so it counts as different.
            snapshot = None if known is None else known.snapshot_id if known.is_trusted else 0
            if resting is None:
                found.append(TableHead(table.key, None, snapshot, is_listed=catalog.lists(table)))
                continue
            branches = tuple(sorted(name for name in resting.refs if name.startswith(PREFIX)))
            history = _history_days(settings, table)
            found.append(
                TableHead(
                    table.key,
                    resting.head,
                    snapshot,
                    resting.is_head_ours,
                    branches,
                    resting.snapshots,
                    resting.oldest_at,
                    history,
                    deletes=resting.deletes,
                )
            )
        return found


def _files(settings: Settings, heads: Sequence[TableHead], today: date) -> Point:
    """The point on data files of the latest four weeks, by one listing for each day and table."""
    days = days_between(today - timedelta(days=RECENT_DAYS), today)
    written = {one.table for one in heads if one.ledger is not None}
    with closing(CatalogAtRest(settings)) as catalog:
        resting = {table.key: catalog.table(table) for table in EVERY_TABLE}
    untold = [key for key, one in resting.items() if one is None and key in written]
    lost = {key: lost_at_rest(one, days) for key, one in resting.items() if one is not None}
    return places.files_are_there(lost, untold, days[0])


def _history_days(settings: Settings, table: Table) -> int:
    source = SOURCE_OF_TABLE.get(table.key)
    by_source = {Source.REGULAR: settings.regular_history_days, Source.BACKFILL: settings.backfill_history_days}
    return settings.rollback_days if source is None else by_source[source]


def _prefixes(settings: Settings, mover: Mover, projects: Sequence[str], now: datetime) -> Point:
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    since = (now - timedelta(days=settings.redelivery_horizon_days)).date()
    found = []
    for project in projects:
        listing = read_prefix(mover.uploads(Source.REGULAR.prefix(project)), project, grammar, since)
        selection = by_evidence(listing, {}, settings)
        misnamed = {placed.upload.key for placed in listing.misnamed}
        late = tuple(one.placed.upload.key for one in selection.recovered if one.placed.upload.key not in misnamed)
        note = selection.notes[0] if selection.notes else None
        objects = len(listing.deliveries) + len(listing.misnamed)
        recoveries = mover.uploads(Source.BACKFILL.prefix(project))
        named = [grammar.parse(Source.BACKFILL, project, one.key, one.etag, one.size_bytes) for one in recoveries]
        odd = [one for one in (*named, *listing.unrecognized.values()) if isinstance(one, UnrecognizedObject)]
        hours = unplaced_hours(odd, {*listing.by_key, *(one.key for one in named if isinstance(one, Delivery))})
        unplaced = tuple(sorted(key for batch, keys in hours.items() if batch.arrival_date >= since for key in keys))
        found.append(PrefixEvidence(project, objects, tuple(sorted(misnamed)), late, note, unplaced))
    return places.separate_prefixes(found, since)


def _keys(ledger: Ledger, projects: Sequence[str], now: datetime) -> Point:
    """The point on keys, from the latest four weeks with rows: a sample of years would hide recent problems."""
    days = [
        one
        for one in ledger.summaries.slice_figures(REFINED_EVENTS.key, projects)
        if one.rows and one.day <= now.date()
    ]
    last = max((one.day for one in days), default=now.date())
    first = last - timedelta(days=RECENT_DAYS - 1)
    records = ledger.slices(REFINED_EVENTS.key, projects, [one.day for one in days if one.day >= first])
    figures = [record.figures for record in records.values()]
    without, blank = (int(sum(of.get(name, 0) for of in figures)) for name in ("rows_without_id", "rows_with_blank_id"))
    twice = [
        f"{one.table} {one.day}/{one.project_id}"
        for one in ledger.summaries.check_figures([DUPLICATES], projects)[DUPLICATES]
    ]
    before = first - timedelta(days=RECENT_DAYS)
    recent, earlier = (
        [one for one in days if since <= one.day < end] for since, end in ((first, date.max), (before, first))
    )
    return recorded.stable_keys(recent, earlier, without, blank, twice)


def _recovery(
    ledger: Ledger, settings: Settings, landing: Callable[[], Mover], projects: Sequence[str], now: datetime
) -> Point:
    """The point on recovery. Landing is opened only for open claims: an hour's marker tells more than its claim."""
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    open_claims = [one for one in ledger.recoveries.open(projects) if one.begun_at < now - _RECOVERY_RESTS]
    mover = landing() if open_claims else None
    unfinished: dict[str, list[Hour]] = {}
    for one in open_claims:
        marker = grammar.format_marker(BatchKey(Source.BACKFILL, one.project_id, one.hour.day), one.hour.hour)
        if mover is not None and mover.find(marker) is None:
            unfinished.setdefault(one.project_id, []).append(one.hour)
    return places.recovery_possible(_without_keys(projects), ledger.checkup.recoveries(projects), projects, unfinished)


def _without_keys(projects: Sequence[str]) -> list[str]:
    lacking = []
    for project in projects:
        try:
            ExportCredentials.of(project)
        except SettingsError:
            lacking.append(project)
    return lacking


def _notices(ledger: Ledger, settings: Settings) -> Point:
    configured = {receiver_id(url) for url in settings.notify_urls}
    receivers = {name: one for name, one in ledger.outbox.receivers().items() if name in configured}
    refusing = [one for one in receiver_troubles(ledger, settings) if one.command == SEND_AGAIN]
    return recorded.receivers_told(receivers, ledger.outbox.waiting(), len(configured), refusing)


def _decisions(ledger: Ledger, settings: Settings) -> Point:
    kept = DecisionObjects(LakeObjects.of(settings, FOLDER))
    names = kept.names()
    for name in names:
        kept.read(name)
    known = ledger.checkup.known_decisions()
    return places.decisions_kept(len(names), len(set(names) - known), len(known - set(names)))
