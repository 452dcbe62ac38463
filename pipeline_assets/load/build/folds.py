"""Folds of slices of refined.events that a load computes and writes once, for all tables folded from the same slices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.revenue import RevenueRule
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.file_tasks import Place, files_of, read_bytes
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.fold import Folded, SliceFold, columns_of, joined
from pipeline_assets.transforms.fold_tasks import (
    FoldedTable,
    Read,
    TableRows,
    WrittenSlice,
    divide_facts,
    fold_events,
    fold_share,
    fold_slices,
    read_facts,
    write_slices,
)
from resources.iceberg.metadata import slices_condition

if TYPE_CHECKING:
    from pipeline_assets.load.runtime import Runtime

_MOST_ROWS = 2_000_000
"""Most rows of a slice whose facts one task holds, about 50 bytes each; a larger slice is divided."""
Folds = dict[Slice, dict[str, WrittenSlice]]
_TYPES = {column.name: column.type for column in REFINED_EVENTS.columns}


def slice_fold(tables: Collection[AggregateTable], settings: Settings) -> SliceFold:
    """The fold of these tables; each must have one."""
    return SliceFold({table.key: table.fold for table in tables if table.fold is not None}, RevenueRule.of(settings))


def form_of(table: AggregateTable) -> TableRows:
    """The form of the rows of a folded table."""
    types = {column.name: column.type for column in table.columns}
    return TableRows(types, table.key_columns, table.partition_columns, table.write_order)


class SharedFolds:
    """Keeps written folds of slices of one snapshot until their tables take them."""

    def __init__(self) -> None:
        self._pin: int | None = None
        self._folds: Folds = {}
        self._tables: dict[str, FoldedTable] = {}

    def take(
        self,
        runtime: Runtime,
        pin: int,
        slices: Collection[Slice],
        table: AggregateTable,
        due: Collection[AggregateTable],
    ) -> dict[Slice, WrittenSlice]:
        """A table's files as of snapshot `pin` of refined.events; also writes those of `due`, built next from the same slices."""
        if pin != self._pin:
            self.release()
        self._pin = pin
        missing = [key for key in slices if table.key not in self._folds.get(key, {})]
        if missing:
            tables = [table, *(one for one in due if one.key != table.key)]
            folded = folded_tables(runtime, tables)
            self._tables |= folded
            fold = slice_fold(tables, runtime.settings)
            found = _folded(runtime, Place(REFINED_EVENTS, pin, frozenset(missing)), fold, folded)
            for key in missing:
                self._discard(key)
                self._folds[key] = {name: WrittenSlice() for name in fold.folds} | found.get(key, {})
        return {key: self._folds[key].pop(table.key) for key in slices}

    def release(self) -> None:
        """Forget everything; delete files that no table took."""
        for key in list(self._folds):
            self._discard(key)
        self._pin, self._tables = None, {}

    def _discard(self, key: Slice) -> None:
        for name, one in self._folds.pop(key, {}).items():
            self._tables[name].discard(one)


def folded_tables(runtime: Runtime, tables: Collection[AggregateTable]) -> dict[str, FoldedTable]:
    """Key of a table -> how its rows become files."""
    files = runtime.lakehouse.files
    return {
        table.key: FoldedTable(
            form_of(table),
            files.layout(table, is_ordered=True),
            files.store(table),
            table.content_columns,
            tuple(table.measures),
        )
        for table in tables
    }


def _folded(runtime: Runtime, place: Place, fold: SliceFold, tables: Mapping[str, FoldedTable]) -> Folds:
    """Folds of slices with events, written; raises LakehouseError if other rows were read than are there."""
    found = files_of(runtime, [place])
    by_slice: dict[Slice, list[SliceFile]] = {}
    for file in found.files:
        by_slice.setdefault(file.key, []).append(file)
    rows_of = {key: sum(file.rows for file in files) for key, files in by_slice.items()}
    types = {name: _TYPES[name] for name in columns_of(fold.facts)}
    read = partial(read_facts, runtime.lakehouse.files.store(place.table), fold, types)
    small = [files for key, files in by_slice.items() if rows_of[key] <= _MOST_ROWS]
    large = [file for key, files in by_slice.items() if rows_of[key] > _MOST_ROWS for file in files]
    folds: Folds = {}
    if small:
        size = read_bytes(runtime, [place], found.files, types)
        groups = runtime.tasks.groups(small, [sum(file.cost for file in files) for files in small])
        for told in runtime.tasks.run(partial(fold_slices, read, fold, tables), groups, read_bytes=size):
            for key, rows, by_table in told:
                _require_all(place, key, rows, rows_of[key])
                folds[key] = by_table
    divided = _divided(runtime, place, read, fold, large, rows_of) if large else {}
    for other in found.others:
        events = runtime.lakehouse.read(other.table, other.snapshot_id)
        divided |= fold_events(events.where(slices_condition(other.table, other.slices)), fold)
    if divided:
        weights = [1.0 + sum(len(one.rows) for one in by_table.values()) for by_table in divided.values()]
        to_write = runtime.tasks.groups(list(divided.items()), weights)
        for written in runtime.tasks.run(partial(write_slices, tables), to_write, read_bytes=0):
            folds |= written
    return folds


def _divided(
    runtime: Runtime,
    place: Place,
    read: Read,
    fold: SliceFold,
    files: Sequence[SliceFile],
    rows_of: Mapping[Slice, int],
) -> dict[Slice, dict[str, Folded]]:
    slices: list[Slice] = []
    shares: dict[Slice, range] = {}
    for key in dict.fromkeys(file.key for file in files):
        first, count = len(slices), -(-rows_of[key] // _MOST_ROWS)
        shares[key] = range(first, first + count)
        slices += [key] * count
    groups = runtime.tasks.groups(files, [file.cost for file in files])
    collecting = partial(fold_share, fold, slices)
    found: dict[Slice, list[dict[str, Folded]]] = {}
    rows = dict.fromkeys(shares, 0)
    for key, count, folded in runtime.tasks.exchange(
        partial(divide_facts, read, shares), groups, collecting, len(slices)
    ):
        rows[key] += count
        found.setdefault(key, []).append(folded)
    for key in shares:
        _require_all(place, key, rows[key], rows_of[key])
    return {key: joined(folded) for key, folded in found.items()}


def _require_all(place: Place, key: Slice, rows: int, held: int) -> None:
    if rows != held:
        reason = f"{rows} rows of {key} were folded, {held} are there"
        raise LakehouseError(place.table.key, reason, "This is a defect of Tidemark: report it")
