"""Parquet data files of an Iceberg table, written by tasks; no snapshot refers to them until the driver commits them."""

from __future__ import annotations

import json
import struct
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import IO, Any, Protocol, Self
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline_assets.domain.errors import TidemarkError

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


class Store(Protocol):
    """Where files are written; picklable (resources/iceberg/lake_objects.py)."""

    url: str

    def create(self, name: str) -> IO[bytes]:
        """Open a new object for writing; it exists once it is closed."""

    def open(self, name: str) -> IO[bytes]:
        """Open an object for reading, seekable. Raises FileNotFoundError if it is gone."""

    def delete(self, name: str) -> None:
        """Delete an object; does nothing if it does not exist."""


@dataclass(frozen=True)
class FileLayout:
    """How the files of one table are written: values of its metadata for workers."""

    table_uuid: str
    """The start of its data files' names, which proves whose they are."""
    folder: str
    field_ids: Mapping[str, int]
    types: Mapping[str, str]
    required: frozenset[str]
    many_valued: frozenset[str]
    day_column: str
    spec_id: int
    sort_order_id: int
    """Iceberg's id of the order in which rows arrive; 0 if they are unordered."""
    sort_by: tuple[str, ...] = ()
    row_group_bytes: int = 64 * 1024**2
    """In memory: a task buffers about this much, whatever the size of the file."""
    file_bytes: int = 256 * 1024**2

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


@dataclass
class _Part:
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
    file: tuple[str, IO[bytes], pa.PythonFile, pq.ParquetWriter] | None = None
    """Name, body, the body as pyarrow sees it, and its writer."""


class DataFileWriter:
    """Writes rows grouped by slice, one open file at a time; a failing block tries to delete its files."""

    def __init__(self, layout: FileLayout, store: Store) -> None:
        self._layout = layout
        self._schema = layout.schema
        self._store = store
        self._slice: tuple[date, str] | None = None
        self._parts: dict[int, _Part] = {}
        self._begun: list[str] = []
        self.rows = 0
        """Rows taken so far."""

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Discard the files if the block failed."""
        for name in self._begun if kind is not None else ():
            with suppress(TidemarkError, OSError):
                self._store.delete(name)

    def add(self, rows: pa.RecordBatch, number: int = 0) -> Iterator[str]:
        """Take rows with the layout's columns, grouped by slice; yield finished files. `number`: their part of the slice."""
        self.rows += rows.num_rows
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
                if self._flush(largest) >= self._layout.file_bytes:
                    yield self._end(largest)

    def finish(self) -> Iterator[str]:
        """End the open files, if any, and yield their descriptions."""
        for part in self._parts.values():
            if part.held:
                self._flush(part)
            if part.file is not None:
                yield self._end(part)
        self._parts.clear()

    def _flush(self, part: _Part) -> int:
        """Write the held rows; returns the size of the file so far."""
        rows, layout = pa.Table.from_batches(part.held, self._schema), self._layout
        part.held, part.held_bytes = [], 0
        if layout.sort_by:
            rows = rows.sort_by([(name, "ascending") for name in layout.sort_by])
        if part.file is None:
            assert self._slice is not None
            day, project = self._slice
            folder = f"{layout.folder}/{layout.day_column}={day}/project_id={quote_plus(project)}"
            name = f"{folder}/{layout.table_uuid}-{uuid.uuid4().hex}.parquet"
            self._begun.append(name)
            body = self._store.create(name)
            sink, coded = (
                pa.PythonFile(body, mode="w"),
                [one for one in layout.field_ids if one not in layout.many_valued],
            )
            options: dict[str, Any] = {"compression": "zstd", "use_dictionary": coded, "store_schema": False}
            part.file = name, body, sink, pq.ParquetWriter(sink, self._schema, **options)
        _, _, sink, writer = part.file
        writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        return int(sink.tell())

    def _end(self, part: _Part) -> str:
        assert part.file is not None
        assert self._slice is not None
        (name, body, sink, writer), part.file = part.file, None
        writer.close()
        size = int(sink.tell())
        body.close()
        return data_file(self._layout, f"{self._store.url}/{name}", self._slice, size, writer.writer.metadata)


def by_slice(rows: pa.RecordBatch, day_column: str) -> Iterator[pa.RecordBatch]:
    """Split rows, in their order and without copying, where the day or the project changes."""
    runs = [pc.run_end_encode(rows[name], run_end_type=pa.int32()).run_ends for name in (day_column, "project_id")]
    start = 0
    for end in sorted({end for ends in runs for end in ends.to_pylist()}):
        yield rows.slice(start, end - start)
        start = end


def data_file(layout: FileLayout, path: str, key: tuple[date, str], size_bytes: int, footer: Any) -> str:
    """The file as JSON for Iceberg's `ContentFileParser`; metrics come from `footer`, pyarrow's of the file."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    metrics: dict[str, dict[int, Any]] = {name: {} for name in _METRICS}
    for at, number in enumerate(layout.field_ids.values()):
        chunks = [group.column(at) for group in groups]
        found = (
            sum(chunk.total_compressed_size for chunk in chunks),
            sum(chunk.num_values for chunk in chunks),
            sum(chunk.statistics.null_count for chunk in chunks),
            *_bounds(chunks),
        )
        for name, value in zip(_METRICS, found, strict=True):
            if value is not None:
                metrics[name][number] = value.hex().upper() if isinstance(value, bytes) else value
    starts = []
    for group in groups:
        first = group.column(0)
        starts.append(first.dictionary_page_offset if first.has_dictionary_page else first.data_page_offset)
    return json.dumps(
        {
            "spec-id": layout.spec_id,
            "content": "data",
            "file-path": path,
            "file-format": "parquet",
            "partition": [key[0].isoformat(), key[1]],
            "file-size-in-bytes": size_bytes,
            "record-count": footer.num_rows,
            **{name: {"keys": list(of), "values": list(of.values())} for name, of in metrics.items()},
            "split-offsets": starts,
            "sort-order-id": layout.sort_order_id,
        }
    )


_METRICS = ("column-sizes", "value-counts", "null-value-counts", "lower-bounds", "upper-bounds")
_PACKED = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "DOUBLE": "<d"}
_BOUND_LENGTH = 16


def _bounds(chunks: Sequence[Any]) -> tuple[bytes | None, bytes | None]:
    known = [chunk.statistics for chunk in chunks if chunk.statistics.null_count < chunk.num_values]
    if not known or not all(one.has_min_max for one in known):
        return None, None
    # No float is NaN, which a footer does not count: parsers refuse it.
    lowest, highest = min(one.min_raw for one in known), max(one.max_raw for one in known)
    if (form := _PACKED.get(known[0].physical_type)) is not None:
        return struct.pack(form, lowest), struct.pack(form, highest)
    if known[0].logical_type.type != "STRING":
        return None, None
    return lowest.decode()[:_BOUND_LENGTH].encode(), _not_below(highest.decode())


def _not_below(text: str) -> bytes | None:
    """The shortest text of at most _BOUND_LENGTH characters that is not less than `text`; None if there is none."""
    if len(text) <= _BOUND_LENGTH:
        return text.encode()
    for end in range(_BOUND_LENGTH, 0, -1):
        following = ord(text[end - 1]) + 1
        if following in range(0xD800, 0xE000):  # surrogates are no characters
            following = 0xE000
        if following <= sys.maxunicode:
            return f"{text[: end - 1]}{chr(following)}".encode()
    return None
