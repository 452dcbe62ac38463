"""Decides early that a load has nothing to do: final days whose tables, deliveries and decisions are those on record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

from pipeline_assets.domain.days import asked_for, deadline
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.records import Head, SliceRecord
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Source, Verdict, neighbourhood
from pipeline_assets.load.deliveries.plan import BatchPlan, is_to_be_replayed
from pipeline_assets.load.deliveries.publish import rows_late
from pipeline_assets.load.runtime import LoadRequest, Runtime, TableReport, standing_outcomes
from pipeline_assets.load.staleness.facts import inputs_on_record, slices_to_look_at
from pipeline_assets.load.staleness.finality import HOURS_A_DAY
from pipeline_assets.tables.events import QUARANTINE
from pipeline_assets.tables.registry import ALL_TABLES, ASSET_TABLES, DIMENSION_TABLES, SOURCE_OF_TABLE, table_by_key
from pipeline_assets.tables.table import Table
from resources.iceberg.lake_identity import Purpose


def reports_of_nothing(runtime: Runtime, request: LoadRequest) -> list[TableReport] | None:
    """The reports of a load with nothing to do, by heads, listing and records; None if the load must decide slice by slice.

    It never says more than a load would: a provisional day, an incomplete hour, a refusal, an operator's decision, a
    recovery, a dimension in use, a lost file, a draft's branch and a table that lacks something are left to the load.
    """
    ledger, lakehouse, settings, projects = runtime.ledger, runtime.lakehouse, runtime.settings, request.projects
    tables = [table for table in ASSET_TABLES if table.key in request.tables]
    is_special = request.is_read_again or request.accepted or any(one.key in request.tables for one in DIMENSION_TABLES)
    if is_special or not tables or any(ledger.head(one.key) is not None for one in DIMENSION_TABLES):
        return None
    known = {name: ledger.head(name) for table in tables for name in (*table.upstream, table.key)}
    if None in known.values() or any(ledger.interventions.holds(name, projects) for name in known):
        return None
    of_load = [table_by_key(name) for name in (*known, QUARANTINE.key)]
    if not all(lakehouse.is_settled(table) for table in of_load):
        return None
    heads = {table.key: lakehouse.head(table) for table in of_load}
    if any(head != Head(heads[name]) for name, head in known.items()):
        return None
    near = slices_to_look_at(ledger, settings, projects, request.days)
    wide = frozenset(neighbourhood(near, settings.dedupe_window_days))
    days = {key.event_date for key in wide}
    records = {name: ledger.slices(name, projects, days) for name in heads}
    if any(not one.verdict.is_good for found in records.values() for one in found.values()):
        return None
    batches = ledger.batches(projects, min(days), max(days)).values()
    if any(one.verdict is not BatchVerdict.ACCEPTED or one.is_decided for one in batches):
        return None
    sources = {SOURCE_OF_TABLE[table.key]: table for table in tables if table.key in SOURCE_OF_TABLE}
    derived = [table for table in tables if table.upstream]
    if not all(_is_built(table, key, records, runtime, request) for table in derived for key in near) or not all(
        _is_delivered(source, table, runtime, request) for source, table in sources.items()
    ):
        return None
    if any(lakehouse.lost_slices(table_by_key(name), head, wide) for name, head in heads.items()):
        return None
    lakehouse.require_own(settings, ALL_TABLES, Purpose.BEGIN, ledger.lake)
    reports = []
    for table in tables:
        told = standing_outcomes(ledger, table.key, projects, request.days)
        outcomes = [replace(one, verdict=Verdict.UNCHANGED, is_repeat=False) for one in told]
        if table.key in SOURCE_OF_TABLE:
            source = SOURCE_OF_TABLE[table.key]
            arrived = ledger.batch_days(source, projects, request.days[0], request.days[-1])
            for number, one in enumerate(outcomes):
                batch = BatchKey(source, one.key.project_id, one.key.event_date)
                late = rows_late(batch, arrived.get(batch, {}), settings)
                outcomes[number] = replace(one, figures={**one.figures, **late})
        pins = {name: heads[name] for name in table.upstream}
        reports.append(TableReport(table.key, tuple(outcomes), snapshot_id=heads[table.key], pins=pins))
    return reports


def _is_built(
    table: Table, key: Slice, records: Mapping[str, Mapping[Slice, SliceRecord]], runtime: Runtime, request: LoadRequest
) -> bool:
    """Whether a slice is final and good, and built from its present inputs; or has none, and nobody asks for it."""
    settings, record = runtime.settings, records[table.key].get(key)
    is_requested = key.event_date in request.days
    if record is None:
        beside = (records[name].get(key) for name in table.upstream)
        return not is_requested and not any(one is not None and one.digest != EMPTY for one in beside)
    inputs = inputs_on_record(table, records, key, settings)
    is_whole = record.rejection is None and record.baseline is not None
    is_settled = record.is_final and record.final_at is not None and record.was_final(request.now)
    is_current = not is_requested or record.code_version == table.code_version(settings)
    state = record.input_state
    return is_whole and is_settled and is_current and state is not None and state.upstream == inputs


def _is_delivered(source: Source, table: Table, runtime: Runtime, request: LoadRequest) -> bool:
    """Whether landing holds in the load's reach exactly the accepted deliveries on record, and every hour that it must."""
    ledger, settings, projects, now = runtime.ledger, runtime.settings, request.projects, request.now
    window = timedelta(days=settings.reprocessing_window_days)
    horizon = timedelta(days=settings.redelivery_horizon_days)
    first, last = request.days[0] - window, request.days[-1] + window
    listing = runtime.landing.list(source, projects, first, last, asked_for(settings, now.date()))
    if listing.strays:
        return False
    ledger.strays.replace(source, projects, ())
    listed: defaultdict[BatchKey, dict[str, Delivery]] = defaultdict(dict)
    for delivery in listing.deliveries:
        listed[delivery.batch][delivery.key] = delivery
    hours: defaultdict[BatchKey, set[int]] = defaultdict(set)
    for marker in listing.markers:
        hours[marker.batch].add(marker.hour)
    accepted = ledger.deliveries(source, projects, first, last)
    code = table.code_version(settings)
    is_unusual = (
        listing.odd_objects
        or any(BatchKey(source, project, day) not in listed for project in projects for day in request.days)
        or {key: record.etag for key, record in accepted.items()} != {one.key: one.etag for one in listing.deliveries}
        or any(is_to_be_replayed(record, code) for record in accepted.values())
        or ledger.deliveries(source, projects, first, last, is_accepted=False)
        or ledger.interventions.exclusions(source, projects, first, last)
        or ledger.recoveries.hours(projects, first, last)
    )
    if is_unusual:
        return False
    batches = ledger.batches(projects, first, last)
    marked: Collection[str] = {batch.project_id for batch in hours}
    if source is Source.REGULAR:
        marked = {*marked, *(project for project, _ in ledger.marked_days(projects, first - horizon, last))}
    for key in {**listed, **hours}:
        record = batches.get(key)
        if record is None or not record.is_closed:
            return False
        is_complete = len(hours[key]) == HOURS_A_DAY
        state = BatchPlan(key, listed=listed[key], code_version=code).input_state(settings)
        is_same = (record.input_state, record.hours_marked) == (state, len(hours[key]))
        is_closed = is_complete or (now > deadline(key.arrival_date, settings) and key.project_id not in marked)
        if not (is_same and is_closed and all(one.is_passed for one in record.evaluations)):
            return False
    return True
