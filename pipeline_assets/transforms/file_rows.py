"""Rows of data files in tasks: opens files, and reduces their rows to small results."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_assets.domain.errors import BRING_BACK, LakehouseError
from pipeline_assets.domain.machine import FILE_COST_BYTES
from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import ARROW_TYPES, Store, by_slice
from pipeline_assets.transforms.event_hashes import Longs, Mask

Result = TypeVar("Result")
BATCH_ROWS = 200_000
"""Most rows in memory at a time; many, because a few columns are narrow."""
BATCH_VALUES = 1_600_000


@dataclass(frozen=True)
class SliceFile:
    """A data file with rows of one slice."""

    table: str
    key: Slice
    path: str
    """Relative to the location of the table; empty for rows that only Spark can read."""
    size_bytes: int
    rows: int

    @property
    def cost(self) -> int:
        """The cost of reading it, in bytes."""
        return self.size_bytes + FILE_COST_BYTES


RowsOf = Callable[[SliceFile, Iterator[pa.Table]], Result]


def reduced_files(
    stores: Mapping[str, Store], types: Mapping[str, str], function: RowsOf[Result], files: Sequence[SliceFile]
) -> list[Result]:
    """A task's work: the result of each file. `types`: column -> Spark type. Raises TidemarkError for an unreadable file."""
    return [function(file, narrow_rows(stores[file.table], file.path, types)) for file in files]


def reduced_batches(
    table: str, day_column: str, types: Mapping[str, str], function: RowsOf[Any], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The same for rows that only Spark reads, by day and project, for `mapInArrow`; one pickled `result` per slice."""
    parts = (part for batch in batches if batch.num_rows for part in by_slice(batch, day_column))
    for key, same in groupby(parts, lambda part: Slice(part[day_column][0].as_py(), part["project_id"][0].as_py())):
        tables = (with_columns(pa.Table.from_batches([part]), types) for part in same)
        result = function(SliceFile(table, key, "", 0, 0), tables)
        yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})


@contextmanager
def opened(store: Store, path: str) -> Iterator[pq.ParquetFile]:
    """A data file; raises LakehouseError, with its name, if it is gone or damaged, also while it is read in the block."""
    place = f"{store.url}/{path}"
    try:
        with store.open(path) as body, pq.ParquetFile(pa.PythonFile(body, mode="r"), pre_buffer=False) as file:
            yield file
    except FileNotFoundError as error:
        reason = "its data file is gone from the warehouse"
        raise LakehouseError(place, reason, f"Put it back, or bring its day back: {BRING_BACK}") from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        hint = f"Put a whole copy in its place, or take it away and bring its day back: {BRING_BACK}"
        raise LakehouseError(place, f"its data file cannot be read: {first[:300]}", hint) from error


def rows_of(
    store: Store, path: str, columns: Iterable[str], batch_rows: int, is_chosen: Mask | None = None
) -> Iterator[pa.Table]:
    """The chosen rows of a file (None: all), in batches, with those of these columns that it has; skips other row groups."""
    with opened(store, path) as file:
        there = file.schema_arrow.names
        # Without any column the batches would have no rows.
        names = [name for name in columns if name in there] or there[:1]
        end = 0
        for group in range(file.num_row_groups):
            start, end = end, end + file.metadata.row_group(group).num_rows
            if is_chosen is not None and not is_chosen[start:end].any():
                continue
            # Row groups with long texts hold few rows, so each is read by itself.
            for batch in file.iter_batches(batch_rows, row_groups=[group], columns=names):
                rows = pa.Table.from_batches([batch])
                yield rows if is_chosen is None else rows.filter(pa.array(is_chosen[start : start + rows.num_rows]))
                start += rows.num_rows


def narrow_rows(
    store: Store, path: str, types: Mapping[str, str], batch_rows: int = BATCH_ROWS, is_chosen: Mask | None = None
) -> Iterator[pa.Table]:
    """The same with exactly the columns of `types` (name -> Spark type); a missing column is null."""
    most = max(1, min(batch_rows, BATCH_VALUES // max(1, len(types))))
    for rows in rows_of(store, path, types, most, is_chosen):
        yield with_columns(rows, types)


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


def as_bytes(rows: pa.Table) -> bytes:
    """Rows as one compressed binary value."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def from_bytes(told: bytes) -> pa.Table:
    """The rows from a value of `as_bytes`."""
    with pa.ipc.open_stream(told) as stream:
        return stream.read_all()


def by_number(rows: pa.Table, numbers: Longs) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each number that occurs."""
    found = np.unique(numbers).tolist()
    for number in found:
        yield number, rows if len(found) == 1 else rows.filter(pa.array(numbers == number))
