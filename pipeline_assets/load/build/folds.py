"""Folds of slices of refined.events that a load computes once, for all tables that are folded from the same slices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.revenue import RevenueRule
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.file_tasks import FILE_COST_BYTES, Place, files_of, read_bytes
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.event_facts import columns_of
from pipeline_assets.transforms.file_rows import SliceFile, narrow_rows
from pipeline_assets.transforms.fold import Folded, SliceFold, joined
from pipeline_assets.transforms.narrow_events import fold_events
from resources.iceberg.metadata import slices_condition

if TYPE_CHECKING:
    from pipeline_assets.load.runtime import Runtime

_BATCH_ROWS = 50_000
"""Rows of refined.events that a task reads at a time; fewer than of narrow columns, because it reads bags."""
_MOST_ROWS = 2_000_000
"""Most rows of a slice whose facts one task holds, about 50 bytes each; a larger slice is divided by user."""
Folds = dict[Slice, dict[str, Folded]]
_TYPES = {column.name: column.type for column in REFINED_EVENTS.columns}


def slice_fold(tables: Collection[AggregateTable], settings: Settings) -> SliceFold:
    """What folds these tables, of which each has a fold."""
    return SliceFold({table.key: table.fold for table in tables if table.fold is not None}, RevenueRule.of(settings))


class SharedFolds:
    """Keeps what was folded of slices as of one snapshot, until the table that it was folded for takes it."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._pin: int | None = None
        self._folds: Folds = {}

    def take(
        self,
        runtime: Runtime,
        pin: int,
        slices: Collection[Slice],
        table: AggregateTable,
        due: Collection[AggregateTable],
    ) -> dict[Slice, Folded]:
        """The folds of a table as of the snapshot `pin`; slices without events fold to nothing.

        `due`: the folded tables that may be built next from the same slices. What they count is read with it.
        """
        if pin != self._pin:
            self.release()
        self._pin = pin
        missing = [key for key in slices if table.key not in self._folds.get(key, {})]
        if missing:
            fold = slice_fold([table, *due], runtime.settings)
            found = _folded(runtime, Place(REFINED_EVENTS, pin, frozenset(missing)), fold)
            for key in missing:
                self._folds[key] = found.get(key) or {name: Folded() for name in fold.folds}
        return {key: self._folds[key].pop(table.key) for key in slices}

    def release(self) -> None:
        """Forget everything."""
        self._pin, self._folds = None, {}


@dataclass(frozen=True)
class _Share:
    """The part of a slice that one task folds."""

    key: Slice
    files: tuple[SliceFile, ...]
    share: int
    shares: int

    @property
    def weight(self) -> float:
        return sum(file.size_bytes + FILE_COST_BYTES for file in self.files)


@dataclass(frozen=True)
class _FoldingFiles:
    """The function of a task: folds shares of slices from their files."""

    store: Store
    fold: SliceFold
    types: Mapping[str, str]

    def __call__(self, shares: Sequence[_Share]) -> list[tuple[Slice, int, dict[str, Folded]]]:
        """Slice, number of rows folded, and key of a table -> its fold."""
        return [(one.key, *self._folded(one)) for one in shares]

    def _folded(self, one: _Share) -> tuple[int, dict[str, Folded]]:
        parts: list[pa.Table] = []
        for file in one.files:
            for rows in narrow_rows(self.store, file.path, self.types, _BATCH_ROWS):
                parts.append(self.fold.narrow(rows, one.share, one.shares))
        return sum(map(len, parts)), self.fold.of(parts)


def _folded(runtime: Runtime, place: Place, fold: SliceFold) -> Folds:
    """The folds of slices with events, each of all its rows; raises LakehouseError where others were read than are there."""
    found = files_of(runtime, [place])
    by_slice: dict[Slice, list[SliceFile]] = {}
    for file in found.files:
        by_slice.setdefault(file.key, []).append(file)
    shares = [
        _Share(key, tuple(files), share, count)
        for key, files in by_slice.items()
        for count in [max(1, -(-sum(file.rows for file in files) // _MOST_ROWS))]
        for share in range(count)
    ]
    types = {name: _TYPES[name] for name in columns_of(fold.facts)}
    of_slice: dict[Slice, list[dict[str, Folded]]] = {}
    rows_of = dict.fromkeys(by_slice, 0)
    if shares:
        folding = _FoldingFiles(runtime.lakehouse.files.store(place.table), fold, types)
        tasks = runtime.tasks
        groups = tasks.groups(shares, [one.weight for one in shares])
        for told in tasks.run(folding, groups, read_bytes=read_bytes(runtime, [place], found.files, types)):
            for key, rows, folded in told:
                rows_of[key] += rows
                of_slice.setdefault(key, []).append(folded)
    for key, files in by_slice.items():
        if (held := sum(file.rows for file in files)) != rows_of[key]:
            reason = f"{rows_of[key]} rows of {key} were folded, {held} are there"
            raise LakehouseError(place.table.key, reason, "This is a defect of Tidemark: report it")
    folds = {key: joined(folded) for key, folded in of_slice.items()}
    for other in found.others:
        events = runtime.lakehouse.read(other.table, other.snapshot_id)
        folds |= fold_events(events.where(slices_condition(other.table, other.slices)), fold)
    return folds
