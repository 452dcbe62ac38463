"""Tasks over the data files of slices: each file's rows, in a few columns, are reduced where they are read."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pipeline_assets.domain.placement import MOST_ITEMS
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.file_rows import ReadingFiles, ReadingRows, RowsOf, SliceFile
from resources.iceberg.metadata import slices_condition
from resources.spark.tasks import EachTold, naming_what_workers_met

if TYPE_CHECKING:
    from pipeline_assets.load.runtime import Runtime

Result = TypeVar("Result")


@dataclass(frozen=True)
class Place:
    """Slices of a table, as a snapshot holds them."""

    table: Table
    snapshot_id: int
    slices: frozenset[Slice]
    held_in: str | None = None
    """A column of days: the place then is every file that by its metrics may hold rows of these projects and days. Such a
    file holds other rows too."""


@dataclass(frozen=True)
class FilesOfSlices:
    """The files of some slices, and what only Spark can read of them."""

    files: Sequence[SliceFile]
    others: Sequence[Place]
    """Slices with a delete file, or with a data file that lies elsewhere or in another format: another program wrote it."""
    places: Sequence[Place]
    """Where they were looked for."""

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
            if files.deletes or not all(is_ours(path, location) for path in files.paths):
                foreign.add(key)
                continue
            found += [
                SliceFile(place.table.key, key, path.removeprefix(location), files.sizes[path], files.rows_of[path])
                for path in sorted(files.paths)
            ]
        if foreign:
            others.append(Place(place.table, place.snapshot_id, frozenset(foreign)))
    return FilesOfSlices(found, others, places)


def is_ours(path: str, location: str) -> bool:
    """Whether tasks can read the file; `location`: of its table, with a slash at the end."""
    return path.startswith(location) and path.endswith(".parquet")


def each_file(
    runtime: Runtime, places: Sequence[Place], types: Mapping[str, str], function: RowsOf[Result]
) -> list[Result]:
    """`function` of each file of these slices and of its rows with these columns (name -> Spark type).

    Rows that only Spark can read come in parts, each as a file of its slice without a path.
    """
    return each_of(runtime, files_of(runtime, places), types, function)


def each_of(runtime: Runtime, found: FilesOfSlices, types: Mapping[str, str], function: RowsOf[Result]) -> list[Result]:
    """The same for files that were looked up before."""
    reading = ReadingFiles(stores_of(runtime, found), types, function)
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
    reading = EachTold(ReadingRows(place.table.key, place.table.day_column, types, function))
    with naming_what_workers_met():
        told = chosen.mapInArrow(reading, "result binary").collect()
    return [pickle.loads(row["result"]) for row in told]  # noqa: S301 - our own tasks wrote it


def read_bytes(runtime: Runtime, places: Iterable[Place], files: Sequence[SliceFile], columns: Collection[str]) -> int:
    """Bytes of the column chunks to read, as the files' footers told their writer; of whole files where that decides as well."""
    whole = sum(file.size_bytes for file in files)
    if len(files) > MOST_ITEMS or not runtime.tasks.are_here(0) or runtime.tasks.are_here(whole):
        return whole
    return sum(
        runtime.lakehouse.column_bytes(place.table, place.snapshot_id, place.slices, columns, place.held_in)
        for place in places
    )
