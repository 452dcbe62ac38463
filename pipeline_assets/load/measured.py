"""Measures rows of tables as a snapshot holds them: batches and objects in raw, and digests from the content of slices."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.file_tasks import Place, each_file
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.refined_events import event_hashes
from pipeline_assets.tables.registry import SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms import digests
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS
from pipeline_assets.transforms.narrow_raw import (
    OBJECT_TYPES,
    ArrivedRows,
    ObjectRows,
    RawSums,
    SummingRaw,
    arrived,
    objects_of,
    objects_together,
)
from pipeline_assets.transforms.narrow_refined import SummingRefined
from resources.iceberg.metadata import slices_condition

_ByArrival = dict[Slice, dict[date | None, BatchDay]]


def batch_days(
    runtime: Runtime, table: Table, snapshot_id: int, batches: Collection[BatchKey]
) -> dict[BatchKey, dict[date, BatchDay]]:
    """Batch of a raw table -> event day -> its rows, from their stored hashes."""
    days: dict[BatchKey, dict[date, BatchDay]] = {batch: {} for batch in batches}
    function = SummingRaw()
    found = each_file(runtime, [_place_of(table, snapshot_id, batches)], function.types, function)
    for key, arrivals in _by_arrival(found).items():
        for arrival, part in arrivals.items():
            batch = _batch_of(table, key.project_id, arrival)
            # The files hold rows of other arrival days too.
            if batch is not None and batch in days:
                days[batch][key.event_date] = part
    return days


def objects_of_batches(
    runtime: Runtime, table: Table, snapshot_id: int, batches: Collection[BatchKey]
) -> dict[BatchKey, dict[str, ObjectRows]]:
    """Batch of a raw table -> object -> its rows; an empty key for rows that another program wrote without one."""
    objects: dict[BatchKey, dict[str, ObjectRows]] = {batch: {} for batch in batches}
    found = each_file(runtime, [_place_of(table, snapshot_id, batches)], OBJECT_TYPES, objects_of)
    for (project_id, arrival, object_key), rows in objects_together(found).items():
        batch = _batch_of(table, project_id, arrival)
        if batch is not None and batch in objects:
            objects[batch][object_key or ""] = rows
    return objects


def arrival_days(runtime: Runtime, table: Table, snapshot_id: int, slices: Collection[Slice]) -> _ByArrival:
    """Slice of a raw table -> arrival day (None for rows that another program wrote without one) -> its rows.

    The digest of rows of which a stored hash is false equals none of sound rows.
    """
    function = SummingRaw(event_hashes())
    return _by_arrival(each_file(runtime, [Place(table, snapshot_id, frozenset(slices))], function.types, function))


def slice_digests(runtime: Runtime, table: Table, snapshot_id: int, slices: Collection[Slice]) -> dict[Slice, Digest]:
    """Slice -> digest of its rows; slices without rows are left out. False hashes count as in `arrival_days`."""
    if HASH_COLUMNS[0] not in {column.name for column in table.columns}:
        rows = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, slices))
        return digests.slice_digests(rows, table.content_columns, table.day_column)
    found: dict[Slice, Digest] = {}
    function = SummingRefined(event_hashes(), has_keys=False)
    for one in each_file(runtime, [Place(table, snapshot_id, frozenset(slices))], function.types, function):
        found[one.key] = found.get(one.key, EMPTY) + one.sums.digest
    return {key: digest for key, digest in found.items() if digest.rows}


def _place_of(table: Table, snapshot_id: int, batches: Collection[BatchKey]) -> Place:
    arrivals = frozenset(Slice(batch.arrival_date, batch.project_id) for batch in batches)
    return Place(table, snapshot_id, arrivals, "_arrival_date")


def _batch_of(table: Table, project_id: str, arrival: date | None) -> BatchKey | None:
    return BatchKey(SOURCE_OF_TABLE[table.key], project_id, arrival) if arrival is not None else None


def _by_arrival(found: Iterable[RawSums]) -> _ByArrival:
    parts: dict[Slice, dict[date | None, list[ArrivedRows]]] = {}
    for one in found:
        for arrival, rows in one.arrivals.items():
            parts.setdefault(one.key, {}).setdefault(arrival, []).append(rows)
    return {key: {day: arrived(rows).batch_day for day, rows in days.items()} for key, days in parts.items()}
