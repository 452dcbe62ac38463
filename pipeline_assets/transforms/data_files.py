"""Parquet data files of an Iceberg table, written by tasks; no snapshot refers to them until the driver commits them."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import IO, Any, Protocol, Self
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline_assets.domain.errors import TidemarkError

_BOUND_LENGTH = 16
"""Characters of a text, or bytes of a binary value, that a bound keeps."""
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_ENCODE: dict[pa.DataType, Callable[[Any], bytes]] = {
    pa.bool_(): lambda value: b"\x01" if value else b"\x00",
    pa.int32(): lambda value: struct.pack("<i", value),
    pa.date32(): lambda value: struct.pack("<i", value),
    pa.int64(): lambda value: struct.pack("<q", value),
    pa.timestamp("us", tz="UTC"): lambda value: struct.pack("<q", value),
    pa.float64(): lambda value: struct.pack("<d", value),
    pa.string(): lambda value: str(value).encode(),
    pa.binary(): bytes,
    pa.decimal128(38, 6): lambda value: _shortest(unscaled(value)),
}


@dataclass
class ColumnMetrics:
    """Iceberg's metrics of one column of one file."""

    values: int = 0
    nulls: int = 0
    nans: int | None = None
    """None for columns of types without NaN."""
    lowest: Any = None
    """A number for a timestamp or a date; None if all values are null or NaN."""
    highest: Any = None

    def add(self, column: pa.ChunkedArray) -> None:
        """Add the values of further rows."""
        self.values += len(column)
        self.nulls += column.null_count
        if pa.types.is_floating(column.type):
            self._add_doubles(column)
        elif column.null_count < len(column):
            self._widen(*_span(column))

    def bounds(self, kind: pa.DataType, *, is_exact: bool) -> tuple[bytes | None, bytes | None]:
        """Lower and upper bound as Iceberg writes them; texts and binary values are truncated unless `is_exact`."""
        if self.lowest is None:
            return None, None
        lowest, highest = self.lowest, self.highest
        if kind in (pa.string(), pa.binary()) and not is_exact:
            is_text = kind == pa.string()
            lowest, highest = lowest[:_BOUND_LENGTH], (_not_below if is_text else _bytes_not_below)(highest)
        encode = _ENCODE[kind]
        return encode(lowest), None if highest is None else encode(highest)

    def _widen(self, lowest: Any, highest: Any) -> None:
        self.lowest = lowest if self.lowest is None else min(self.lowest, lowest)
        self.highest = highest if self.highest is None else max(self.highest, highest)

    def _add_doubles(self, column: pa.ChunkedArray) -> None:
        given = column.drop_null().to_numpy()
        numbers = given[~np.isnan(given)]
        self.nans = (self.nans or 0) + len(given) - len(numbers)
        if len(numbers):
            # Iceberg orders negative zero below zero; numpy and Python treat them as equal.
            found = [(float(one), not np.signbit(one)) for one in (numbers.min(), numbers.max())]
            zeros = np.signbit(numbers[numbers == 0])
            if found[0][0] == 0:
                found[0] = (-0.0, False) if zeros.any() else (0.0, True)
            if found[1][0] == 0:
                found[1] = (-0.0, False) if zeros.all() else (0.0, True)
            low = min(found[0], self._key(self.lowest) or found[0])
            high = max(found[1], self._key(self.highest) or found[1])
            self.lowest, self.highest = low[0], high[0]

    @staticmethod
    def _key(value: float | None) -> tuple[float, bool] | None:
        return None if value is None else (value, not np.signbit(value))


class FileMetrics:
    """Metrics of one file, over all rows added."""

    def __init__(self, schema: pa.Schema, exact_bounds: frozenset[str]) -> None:
        """Start every column with empty metrics."""
        self.schema, self.exact_bounds = schema, exact_bounds
        self.columns = {entry.name: ColumnMetrics() for entry in self.schema}

    def add(self, rows: pa.Table) -> None:
        """Add further rows of the schema."""
        for name, column in self.columns.items():
            column.add(rows.column(name))

    def as_json(self, field_ids: Mapping[str, int]) -> dict[str, Any]:
        """`value-counts`, `null-value-counts`, `nan-value-counts` and both bounds, as in Iceberg's JSON of a file."""
        found: dict[str, dict[int, Any]] = {
            name: {}
            for name in ("value-counts", "null-value-counts", "nan-value-counts", "lower-bounds", "upper-bounds")
        }
        for entry in self.schema:
            one, number = self.columns[entry.name], field_ids[entry.name]
            found["value-counts"][number] = one.values
            found["null-value-counts"][number] = one.nulls
            if pa.types.is_floating(entry.type):
                found["nan-value-counts"][number] = one.nans or 0
            lower, upper = one.bounds(entry.type, is_exact=entry.name in self.exact_bounds)
            if lower is not None:
                found["lower-bounds"][number] = lower.hex().upper()
            if upper is not None:
                found["upper-bounds"][number] = upper.hex().upper()
        return {name: {"keys": list(entries), "values": list(entries.values())} for name, entries in found.items()}


def unscaled(amount: Decimal) -> int:
    """A decimal in units of its last place."""
    sign, digits, _ = amount.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _shortest(number: int) -> bytes:
    """The fewest bytes of two's complement, the highest first."""
    bits = (~number if number < 0 else number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _span(column: pa.ChunkedArray) -> tuple[Any, Any]:
    plain = column
    if pa.types.is_timestamp(column.type):
        plain = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        plain = column.cast(pa.int32())
    found = pc.min_max(plain)
    return found["min"].as_py(), found["max"].as_py()


def _not_below(text: str) -> str | None:
    """The shortest text of at most _BOUND_LENGTH characters that is not less than `text`; None if there is none."""
    if len(text) <= _BOUND_LENGTH:
        return text
    for end in range(_BOUND_LENGTH, 0, -1):
        following = ord(text[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CODE_POINT:
            return text[: end - 1] + chr(following)
    return None


def _bytes_not_below(value: bytes) -> bytes | None:
    if len(value) <= _BOUND_LENGTH:
        return value
    kept = value[:_BOUND_LENGTH].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


ARROW_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "date": pa.date32(),
    "binary": pa.binary(),
    "decimal(38,6)": pa.decimal128(38, 6),
}


def arrow_schema(types: Mapping[str, str]) -> pa.Schema:
    """Columns of these Spark types."""
    return pa.schema([(name, ARROW_TYPES[kind]) for name, kind in types.items()])


_ROW_GROUP_BYTES = 64 * 1024**2
"""Size of a row group, in memory: a task buffers about this much, whatever the size of the file."""
_FILE_BYTES = 256 * 1024**2
"""Size of a Parquet file at which it is ended and another one begun."""


class Store(Protocol):
    """Where files are written; picklable (resources/iceberg/lake_objects.py)."""

    url: str

    def create(self, name: str) -> IO[bytes]:
        """Open a new object for writing; it exists once it is closed."""

    def open(self, name: str) -> IO[bytes]:
        """Open an object for reading; the result is seekable. Raises FileNotFoundError where it is gone."""

    def delete(self, name: str) -> None:
        """Delete an object; does nothing if it does not exist."""


@dataclass(frozen=True)
class FileLayout:
    """How the files of one table are written: values of its metadata that workers can receive."""

    table_uuid: str
    """Iceberg's uuid of the table, with which the names of its data files begin: it proves whose they are."""
    folder: str
    """Folder of the data files, relative to the table's location."""
    field_ids: Mapping[str, int]
    """Column -> Iceberg's field id, in the table's order."""
    types: Mapping[str, str]
    """Column -> Spark type."""
    required: frozenset[str]
    exact_bounds: frozenset[str]
    many_valued: frozenset[str]
    """Columns written without a dictionary, which would cost both time and bytes."""
    day_column: str
    spec_id: int
    sort_order_id: int
    """Iceberg's id of the order in which rows arrive; 0 if they are unordered."""
    sort_by: tuple[str, ...] = ()
    """Columns to sort each row group by, if rows arrive unordered."""
    row_group_bytes: int = _ROW_GROUP_BYTES
    file_bytes: int = _FILE_BYTES

    @property
    def schema(self) -> pa.Schema:
        """The table's columns with the field ids by which Iceberg identifies them."""
        return pa.schema(
            pa.field(
                name,
                ARROW_TYPES[self.types[name]],
                nullable=name not in self.required,
                metadata={"PARQUET:field_id": str(number)},
            )
            for name, number in self.field_ids.items()
        )


class _OpenFile:
    def __init__(self, name: str, layout: FileLayout, body: IO[bytes]) -> None:
        self.name, self._body, self._sink = name, body, pa.PythonFile(body, mode="w")
        self.metrics = FileMetrics(layout.schema, layout.exact_bounds)
        with_dictionary = [name for name in layout.field_ids if name not in layout.many_valued]
        self._writer = pq.ParquetWriter(
            self._sink, layout.schema, compression="zstd", use_dictionary=with_dictionary, store_schema=False
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self.metrics.add(rows)

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def finish(self) -> tuple[int, Any]:
        """Close the file, which then exists; return its size and its footer."""
        self._writer.close()
        size = self.size_bytes
        self._body.close()
        return size, self._writer.writer.metadata


@dataclass
class _Part:
    """Rows of a slice that share files."""

    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
    file: _OpenFile | None = None


class DataFileWriter:
    """Writes rows that arrive grouped by slice. Each part of a slice has files of its own, of which one is open at a time."""

    def __init__(self, layout: FileLayout, store: Store) -> None:
        """The root of `store` is the table's location."""
        self._layout = layout
        self._schema = layout.schema
        self._store = store
        self._slice: tuple[date, str] | None = None
        self._parts: dict[int, _Part] = {}
        self._begun: list[str] = []
        self.rows = self.bytes = 0
        """Rows taken so far, and their bytes in memory."""

    def __enter__(self) -> Self:
        """Return the writer; a block that fails discards its files."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Discard the files if the block failed."""
        if kind is not None:
            self.discard()

    def add(self, rows: pa.RecordBatch, number: int = 0) -> Iterator[str]:
        """Take rows with the layout's columns, grouped by slice; yield finished files as `data_file` describes them.

        `number`: the part of the slice that they belong to. All parts together hold at most a row group in memory.
        """
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        placed = pa.RecordBatch.from_arrays([rows.column(name) for name in self._schema.names], schema=self._schema)
        for of_slice in by_slice(placed, self._layout.day_column):
            key = of_slice[self._layout.day_column][0].as_py(), of_slice["project_id"][0].as_py()
            if key != self._slice:
                yield from self.finish()
                self._slice = key
            part = self._parts.setdefault(number, _Part())
            part.held.append(of_slice)
            part.held_bytes += of_slice.nbytes
            if sum(one.held_bytes for one in self._parts.values()) >= self._layout.row_group_bytes:
                largest = max(self._parts.values(), key=lambda one: one.held_bytes)
                file = self._flush(largest)
                if file.size_bytes >= self._layout.file_bytes:
                    yield self._end(largest)

    def finish(self) -> Iterator[str]:
        """End the open files, if any, and yield their descriptions."""
        for part in self._parts.values():
            if part.held:
                self._flush(part)
            if part.file is not None:
                yield self._end(part)
        self._parts.clear()

    def discard(self) -> None:
        """Try to delete all files begun, which no snapshot will refer to. Maintenance removes those that stay."""
        for name in self._begun:
            with suppress(TidemarkError, OSError):
                self._store.delete(name)

    def _flush(self, part: _Part) -> _OpenFile:
        rows = pa.Table.from_batches(part.held, self._schema)
        part.held, part.held_bytes = [], 0
        if self._layout.sort_by:
            rows = rows.sort_by([(name, "ascending") for name in self._layout.sort_by])
        if part.file is None:
            name = f"{self._folder()}/{self._layout.table_uuid}-{uuid.uuid4().hex}.parquet"
            self._begun.append(name)
            part.file = _OpenFile(name, self._layout, self._store.create(name))
        part.file.write(rows)
        return part.file

    def _folder(self) -> str:
        assert self._slice is not None
        day, project = self._slice
        return f"{self._layout.folder}/{self._layout.day_column}={day}/project_id={quote_plus(project)}"

    def _end(self, part: _Part) -> str:
        assert part.file is not None
        assert self._slice is not None
        file, part.file = part.file, None
        size, footer = file.finish()
        return data_file(self._layout, f"{self._store.url}/{file.name}", self._slice, size, footer, file.metrics)


def by_slice(rows: pa.RecordBatch, day_column: str) -> Iterator[pa.RecordBatch]:
    """Split rows, in their order and without copying, where the day or the project changes."""
    runs = [pc.run_end_encode(rows[name], run_end_type=pa.int32()).run_ends for name in (day_column, "project_id")]
    start = 0
    for end in sorted({end for ends in runs for end in ends.to_pylist()}):
        yield rows.slice(start, end - start)
        start = end


def data_file(
    layout: FileLayout, path: str, key: tuple[date, str], size_bytes: int, footer: Any, metrics: FileMetrics
) -> str:
    """The file as JSON that Iceberg's `ContentFileParser` reads; `footer` is pyarrow's metadata of the written file."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes = {
        number: sum(group.column(at).total_compressed_size for group in groups)
        for at, number in enumerate(layout.field_ids.values())
    }
    starts = []
    for group in groups:
        first = group.column(0)
        starts.append(first.dictionary_page_offset if first.has_dictionary_page else first.data_page_offset)
    told = {
        "spec-id": layout.spec_id,
        "content": "data",
        "file-path": path,
        "file-format": "parquet",
        "partition": [key[0].isoformat(), key[1]],
        "file-size-in-bytes": size_bytes,
        "record-count": footer.num_rows,
        "column-sizes": {"keys": list(sizes), "values": list(sizes.values())},
        **metrics.as_json(layout.field_ids),
        "split-offsets": starts,
        "sort-order-id": layout.sort_order_id,
    }
    return json.dumps(told)
