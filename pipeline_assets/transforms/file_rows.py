"""Rows of data files in a few columns, read by tasks: a function reduces those of each file to a small result."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import ARROW_TYPES, Store, by_slice

Result = TypeVar("Result")
BATCH_ROWS = 200_000
"""Most rows that are in memory at a time; many, because a few columns are narrow."""
BATCH_VALUES = 1_600_000
"""Most values that are in memory at a time."""


@dataclass(frozen=True)
class SliceFile:
    """A data file with rows of one slice."""

    table: str
    """Key of its table."""
    key: Slice
    path: str
    """Relative to the location of the table; empty for rows that only Spark can read."""
    size_bytes: int
    rows: int


RowsOf = Callable[[SliceFile, Iterator[pa.Table]], Result]
"""Reduces the rows of a file, in batches, to a result; picklable."""


@dataclass(frozen=True)
class ReadingFiles(Generic[Result]):
    """The function of a task: the result of each of its files."""

    stores: Mapping[str, Store]
    """Key of a table -> the objects below its location."""
    types: Mapping[str, str]
    """Column to read -> Spark type."""
    function: RowsOf[Result]

    def __call__(self, files: Sequence[SliceFile]) -> list[Result]:
        """The results, in the order of the files; raises TidemarkError where a file cannot be read."""
        return [self.function(file, narrow_rows(self.stores[file.table], file.path, self.types)) for file in files]


@dataclass(frozen=True)
class ReadingRows(Generic[Result]):
    """The same for rows that only Spark can read: a function of `mapInArrow`, to one column `result` (binary)."""

    table: str
    day_column: str
    types: Mapping[str, str]
    function: RowsOf[Result]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each slice of a partition, which `pickle.loads` reads; the rows come in the order of day and project."""
        parts = (part for batch in batches if batch.num_rows for part in by_slice(batch, self.day_column))
        for key, same in groupby(parts, self._slice):
            tables = (with_columns(pa.Table.from_batches([part]), self.types) for part in same)
            result = self.function(SliceFile(self.table, key, "", 0, 0), tables)
            yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

    def _slice(self, rows: pa.RecordBatch) -> Slice:
        return Slice(rows[self.day_column][0].as_py(), rows["project_id"][0].as_py())


def narrow_rows(store: Store, path: str, types: Mapping[str, str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
    """All rows of a file with the columns of `types` (name -> Spark type), in batches; a column that the file lacks is null."""
    with store.open(path) as body, pq.ParquetFile(pa.PythonFile(body, mode="r"), pre_buffer=False) as file:
        there = set(file.schema_arrow.names)
        columns = [name for name in types if name in there]
        most = max(1, min(batch_rows, BATCH_VALUES // max(1, len(columns))))
        # The rows of one group at a time: groups with long texts hold few rows, and only their writer knew how few.
        for group in range(file.num_row_groups):
            # Without any column to read, the batches would have no rows.
            for batch in file.iter_batches(most, row_groups=[group], columns=columns or [next(iter(there))]):
                yield with_columns(pa.Table.from_batches([batch]), types)


def row_count(file: SliceFile, tables: Iterator[pa.Table]) -> tuple[Slice, int]:
    """The slice and its rows in a file: a `RowsOf` for any column."""
    return file.key, sum(rows.num_rows for rows in tables)


def with_columns(rows: pa.Table, types: Mapping[str, str]) -> pa.Table:
    """The rows with exactly these columns, in this order and of these Spark types; a missing one is null."""
    arrays = [
        rows.column(name).cast(ARROW_TYPES[kind])
        if name in rows.column_names
        else pa.nulls(rows.num_rows, ARROW_TYPES[kind])
        for name, kind in types.items()
    ]
    return pa.Table.from_arrays(arrays, names=list(types))
