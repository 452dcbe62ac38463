"""Tasks over the data files of slices: reduce rows, compare keys, measure rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.machine import MOST_ITEMS
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.tables.events import event_hashes
from pipeline_assets.tables.registry import SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms import digests
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS
from pipeline_assets.transforms.file_rows import RowsOf, SliceFile, reduced_batches, reduced_files
from pipeline_assets.transforms.keys import KEY_TYPES, KeyRows, keys_among, keys_by_range
from pipeline_assets.transforms.row_sums import (
    OBJECT_TYPES,
    ArrivedRows,
    ObjectRows,
    SummingRaw,
    SummingRefined,
    arrived,
    objects_of,
    objects_together,
)
from resources.iceberg.metadata import slices_condition
from resources.spark.tasks import each_told, naming_what_workers_met

if TYPE_CHECKING:
    from pipeline_assets.load.runtime import Runtime


Result = TypeVar("Result")


@dataclass(frozen=True)
class Place:
    """Slices of a table in one snapshot."""

    table: Table
    snapshot_id: int
    slices: frozenset[Slice]
    held_in: str | None = None
    """A column of days: take all files whose metrics allow rows of these projects and days, among other rows."""


def places_at(table: Table, slices: Iterable[tuple[Slice, int]]) -> list[Place]:
    """The slices with their snapshots, grouped by snapshot."""
    by_snapshot: dict[int, set[Slice]] = {}
    for key, snapshot_id in slices:
        by_snapshot.setdefault(snapshot_id, set()).add(key)
    return [Place(table, snapshot_id, frozenset(keys)) for snapshot_id, keys in sorted(by_snapshot.items())]


@dataclass(frozen=True)
class FilesOfSlices:
    """The files of some slices, and the slices that only Spark can read."""

    files: Sequence[SliceFile]
    others: Sequence[Place]
    """Slices of another program: with a delete file, or a data file in another place or format."""
    places: Sequence[Place]

    @property
    def rows(self) -> int:
        """Rows of the files."""
        return sum(file.rows for file in self.files)


def files_of(runtime: Runtime, places: Sequence[Place]) -> FilesOfSlices:
    """The files of these slices, in the order of tables, slices and paths."""
    found: list[SliceFile] = []
    others: list[Place] = []
    for place in places:
        location = f"{runtime.lakehouse.files.store(place.table).url}/"
        foreign = set()
        by_slice = runtime.lakehouse.slice_files(place.table, place.snapshot_id, place.slices, place.held_in)
        for key, files in sorted(by_slice.items()):
            # Tasks read only Parquet below the table's location.
            is_ours = all(path.startswith(location) and path.endswith(".parquet") for path in files.paths)
            if files.deletes or not is_ours:
                foreign.add(key)
                continue
            found += [
                SliceFile(place.table.key, key, path.removeprefix(location), files.sizes[path], files.rows_of[path])
                for path in sorted(files.paths)
            ]
        if foreign:
            others.append(Place(place.table, place.snapshot_id, frozenset(foreign)))
    return FilesOfSlices(found, others, places)


def each_file(
    runtime: Runtime, places: Sequence[Place], types: Mapping[str, str], function: RowsOf[Result]
) -> list[Result]:
    """Results of `function` for each file and its rows (columns: name -> Spark type); rows of Spark's have an empty path."""
    return each_of(runtime, files_of(runtime, places), types, function)


def each_of(runtime: Runtime, found: FilesOfSlices, types: Mapping[str, str], function: RowsOf[Result]) -> list[Result]:
    """The same for known files."""
    reading = partial(reduced_files, stores_of(runtime, found), types, function)
    results: list[Result] = []
    if found.files:
        weights = [file.cost for file in found.files]
        groups = runtime.tasks.groups(found.files, weights)
        told = runtime.tasks.run(reading, groups, read_bytes=read_bytes(runtime, found.places, found.files, types))
        results += [result for group in told for result in group]
    for place in found.others:
        results += _by_spark(runtime, place, types, function)
    return results


def stores_of(runtime: Runtime, found: FilesOfSlices) -> dict[str, Store]:
    """Key of each table -> the objects below its location."""
    return {place.table.key: runtime.lakehouse.files.store(place.table) for place in found.places}


def _by_spark(runtime: Runtime, place: Place, types: Mapping[str, str], function: RowsOf[Result]) -> list[Result]:
    rows = runtime.lakehouse.read(place.table, place.snapshot_id)
    at = [place.table.day_column, "project_id"]
    wanted = dict.fromkeys([*at, *(name for name in types if name in rows.columns)])
    chosen = rows.where(slices_condition(place.table, place.slices)).select(*wanted).sortWithinPartitions(*at)
    reading = each_told(partial(reduced_batches, place.table.key, place.table.day_column, types, function))
    with naming_what_workers_met():
        told = chosen.mapInArrow(reading, "result binary").collect()
    return [pickle.loads(row["result"]) for row in told]  # noqa: S301 - our own tasks wrote it


def read_bytes(runtime: Runtime, places: Iterable[Place], files: Sequence[SliceFile], columns: Collection[str]) -> int:
    """Bytes of the column chunks to read, by the files' footers; of whole files where more precision decides nothing."""
    whole = sum(file.size_bytes for file in files)
    if len(files) > MOST_ITEMS or not runtime.tasks.are_here(0) or runtime.tasks.are_here(whole):
        return whole
    return sum(
        runtime.lakehouse.column_bytes(place.table, place.snapshot_id, place.slices, columns, place.held_in)
        for place in places
    )


_KEYS_PER_RANGE = 4_000_000
"""Rows whose keys one process compares: 16 bytes each, and about as much to sort them."""


def each_range(
    runtime: Runtime, states: Sequence[FilesOfSlices], collect: Callable[[int, Iterable[KeyRows]], Result]
) -> list[Result]:
    """Call `collect` with each range's number, and its keys, each with the place of its state in `states`."""
    ranges = 1 + sum(files.rows for files in states) // _KEYS_PER_RANGE
    if ranges == 1:
        return [collect(0, [one for place, files in enumerate(states) for one in _held(runtime, place, files)])]
    stores = {key: store for files in states for key, store in stores_of(runtime, files).items()}
    items: list[tuple[int, SliceFile] | KeyRows] = []
    for place, files in enumerate(states):
        items += [(place, file) for file in files.files]
        items += _held(runtime, place, replace(files, files=()))
    weights = [len(one.first) // 8 if isinstance(one, KeyRows) else one[1].rows for one in items]
    dividing = partial(keys_by_range, stores, ranges)
    return runtime.tasks.exchange(dividing, runtime.tasks.groups(items, weights), collect, ranges)


def _held(runtime: Runtime, place: int, files: FilesOfSlices) -> list[KeyRows]:
    found = each_of(runtime, files, KEY_TYPES, partial(keys_among, None))
    return [one._replace(state=place) for one in found]


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
            if batch is not None and batch in days:
                days[batch][key.event_date] = part
    return days


def objects_of_batches(
    runtime: Runtime, table: Table, snapshot_id: int, batches: Collection[BatchKey]
) -> dict[BatchKey, dict[str, ObjectRows]]:
    """Batch of a raw table -> object -> its rows; the key is empty for rows that another program wrote without one."""
    objects: dict[BatchKey, dict[str, ObjectRows]] = {batch: {} for batch in batches}
    found = each_file(runtime, [_place_of(table, snapshot_id, batches)], OBJECT_TYPES, objects_of)
    for (project_id, arrival, object_key), rows in objects_together(found).items():
        batch = _batch_of(table, project_id, arrival)
        if batch is not None and batch in objects:
            objects[batch][object_key or ""] = rows
    return objects


def arrival_days(runtime: Runtime, table: Table, snapshot_id: int, slices: Collection[Slice]) -> _ByArrival:
    """Slice of raw -> arrival day (None: another program wrote none) -> rows; false hashes make a digest equal no other."""
    function = SummingRaw(event_hashes())
    return _by_arrival(each_file(runtime, [Place(table, snapshot_id, frozenset(slices))], function.types, function))


def slice_digests(runtime: Runtime, table: Table, snapshot_id: int, slices: Collection[Slice]) -> dict[Slice, Digest]:
    """Slice -> digest of its rows, if it has rows; false hashes count as in `arrival_days`."""
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


def _by_arrival(found: Iterable[tuple[Slice, Mapping[date | None, ArrivedRows]]]) -> _ByArrival:
    parts: dict[Slice, dict[date | None, list[ArrivedRows]]] = {}
    for key, arrivals in found:
        for arrival, rows in arrivals.items():
            parts.setdefault(key, {}).setdefault(arrival, []).append(rows)
    return {key: {day: arrived(rows).batch_day for day, rows in days.items()} for key, days in parts.items()}
