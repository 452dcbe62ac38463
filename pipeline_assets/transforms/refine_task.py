"""The task that writes files of refined from files of raw; for a slice already in refined it writes only the difference."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, EventHashes, whole
from pipeline_assets.transforms.slice_difference import (
    KEYS_OF,
    NAMES,
    HeldRows,
    Mask,
    RowNumbers,
    event_keys,
    key_difference,
)

WRITTEN_DDL = (
    "file string, event_date date, project_id string, wrong string, gone array<string>, kept long, changed long, "
    "keys binary, task_rows long, task_bytes long"
)
"""A row describes a written file, the result of a slice, or the totals of a task (rows, and their bytes in memory)."""
_WRITTEN = pa.schema([("file", pa.string()), ("event_date", pa.date32()), ("project_id", pa.string()), ("wrong", pa.string()),
                      ("gone", pa.list_(pa.string())), ("kept", pa.int64()), ("changed", pa.int64()),
                      ("keys", pa.binary()), ("task_rows", pa.int64()),
                      ("task_bytes", pa.int64())])  # fmt: skip
_BATCH_ROWS = 10_000
_SAMPLED_ROWS = 200
"""Rows of each batch that are hashed again."""
_NARROW_BATCH_ROWS = 200_000
_MOST_TOLD_KEYS = 200_000
"""Most gained keys, and most lost keys, of a slice that a task reports to the driver."""


def as_bytes(rows: pa.Table | None) -> bytes | None:
    """Rows as one compressed binary value; None for None."""
    if rows is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def from_bytes(told: bytes) -> pa.Table:
    """The rows from a value of `as_bytes`."""
    with pa.ipc.open_stream(told) as stream:
        return stream.read_all()


@dataclass(frozen=True)
class Refining:
    """The mapInArrow function; runs in Spark's Python workers."""

    stores: Mapping[str, Store]
    hashes: EventHashes
    layout: FileLayout
    target: Store

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of work (refine_files.py) to rows of WRITTEN_DDL; raises RuntimeError with the message of a TidemarkError."""
        writer = DataFileWriter(self.layout, self.target)
        try:
            for batch in batches:
                for entry in batch.to_pylist():
                    write = self._difference if entry["held"] else self._whole
                    yield from write(entry, writer)
            yield from map(_file, writer.finish())
            yield _row({"task_rows": writer.rows, "task_bytes": writer.bytes})
        except BaseException as error:
            writer.discard()
            if isinstance(error, TidemarkError):
                raise RuntimeError(error.as_line()) from error
            raise

    def _whole(self, entry: Mapping[str, Any], writer: DataFileWriter) -> Iterator[pa.RecordBatch]:
        """Write all rows of a slice that did not lose."""
        for given in entry["inputs"]:
            is_lost = _Losers(given["losers"])
            for path in given["paths"]:
                file = _File(self.stores[given["source"]], path, given["source"])
                for rows in self._rows(file):
                    yield from _added(writer, rows.filter(pa.array(~is_lost.of(rows))))
                yield from _told_wrong(entry, file)

    def _difference(self, entry: Mapping[str, Any], writer: DataFileWriter) -> Iterator[pa.RecordBatch]:
        """Write the new rows, and rewrite the remaining rows of files from which rows are removed."""
        files = [_File(self.target, path, None) for path in entry["held"]]
        numbers = RowNumbers()
        held, counts = self._held(numbers, files)
        if not held.are_distinct:
            # Another program wrote these files, so all of them are replaced.
            yield from self._whole(entry, writer)
            yield _row({**_slice(entry), "gone": entry["held"]})
            return
        new: list[tuple[int, int, int]] = []
        for given in entry["inputs"]:
            is_lost = _Losers(given["losers"])
            for path in given["paths"]:
                file = _File(self.stores[given["source"]], path, given["source"])
                is_new = self._is_new(numbers, held, file, is_lost)
                for rows in self._rows(file, is_new):
                    _take_keys(new, rows)
                    yield from _added(writer, rows)
                yield from _told_wrong(entry, file)
        gone: list[tuple[int, int, int]] = []
        replaced = []
        ends = np.cumsum(counts)
        for file, is_wanted in zip(files, np.split(held.is_wanted, ends[:-1]), strict=True):
            if is_wanted.all():
                continue
            replaced.append(file.path)
            _take_keys(gone, file.narrow(KEYS_OF).filter(pa.array(~is_wanted)))
            for rows in self._rows(file, is_wanted):
                yield from _added(writer, rows)
            yield from _told_wrong(entry, file)
        told: dict[str, Any] = {"gone": replaced}
        if max(len(new), len(gone)) <= _MOST_TOLD_KEYS:
            found = key_difference(int(ends[-1]), gone, new)
            told |= {"kept": found.kept, "changed": found.changed, "keys": as_bytes(found.differing)}
        yield _row({**_slice(entry), **told})

    def _held(self, numbers: RowNumbers, files: Sequence[_File]) -> tuple[HeldRows, list[int]]:
        """The rows of a slice in refined, in the order of its files, and the number of rows in each file."""
        found, hashes, counts = [], [], []
        for file in files:
            counts.append(0)
            for rows in file.batches(("_source", *NAMES), _NARROW_BATCH_ROWS):
                found.append(numbers.of(whole(rows["_source"]), rows))
                hashes.append(pc.fill_null(rows["_hash_a"], 0).to_numpy())
                counts[-1] += rows.num_rows
        nothing = np.zeros(0, dtype=np.int64)
        return HeldRows(np.concatenate([nothing, *found]), np.concatenate([nothing, *hashes])), counts

    def _is_new(self, numbers: RowNumbers, held: HeldRows, file: _File, is_lost: _Losers) -> Mask:
        """A mask of the rows of a raw file that refined should hold but does not."""
        found = []
        for rows in file.batches(NAMES, _NARROW_BATCH_ROWS):
            is_wanted = ~is_lost.of(rows)
            wanted = rows.filter(pa.array(is_wanted))
            is_wanted[is_wanted] = ~held.holds(numbers.of(pa.scalar(file.source), wanted), wanted["_hash_a"].to_numpy())
            found.append(is_wanted)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.bool_)

    def _rows(self, file: _File, is_chosen: Mask | None = None) -> Iterator[pa.Table]:
        """The chosen rows of a file with the columns of refined; a sample of the rows read is hashed again."""
        for start, rows in file.read(self.layout.field_ids, is_chosen):
            placed = self._placed(rows, file.source)
            file.wrong = file.wrong or self._wrong(placed)
            yield placed if is_chosen is None else placed.filter(pa.array(is_chosen[start : start + rows.num_rows]))

    def _placed(self, rows: pa.Table, source: str | None) -> pa.Table:
        schema = self.layout.schema
        columns = []
        for entry in schema:
            if entry.name == "_source" and source is not None:
                columns.append(pa.repeat(pa.scalar(source, entry.type), rows.num_rows))
            elif entry.name in rows.schema.names:
                columns.append(rows.column(entry.name).cast(entry.type))
            else:
                # The column was added to raw after this file was written.
                columns.append(pa.nulls(rows.num_rows, entry.type))
        return pa.Table.from_arrays(columns, schema=schema)

    def _wrong(self, rows: pa.Table) -> str | None:
        """A description of a sampled row whose hash does not match its content; None if all match."""
        start = int.from_bytes(os.urandom(4)) % max(1, rows.num_rows - _SAMPLED_ROWS + 1)
        sample = rows.slice(start, _SAMPLED_ROWS)
        if not sample.num_rows:
            return None
        made = self.hashes.of(sample)
        are_as_parsed = [pc.fill_null(pc.equal(made[name], whole(sample.column(name))), False) for name in HASH_COLUMNS]
        at = pc.index(reduce(pc.and_, are_as_parsed), False).as_py()
        if at < 0:
            return None
        line, key = sample.column("_line_number")[at], sample.column("_object_key")[at]
        return f"holds line {line} of {key} with another hash than its own"


@dataclass
class _File:
    """A raw file, or a refined file if `source` is None."""

    store: Store
    path: str
    source: str | None
    wrong: str | None = None

    def read(self, columns: Iterable[str], is_chosen: Mask | None) -> Iterator[tuple[int, pa.Table]]:
        """Yield a row's position in the file and the batch that starts there; batches, because a row group may be very large.

        Row groups without a chosen row are skipped.
        """
        with (
            self.store.open(self.path) as body,
            pq.ParquetFile(pa.PythonFile(body, mode="r"), pre_buffer=False) as file,
        ):
            there = set(file.schema_arrow.names)
            # For a raw file, the table that it belongs to determines the source.
            wanted = [name for name in columns if name in there and not (name == "_source" and self.source is not None)]
            end = 0
            for group in range(file.num_row_groups):
                start, end = end, end + file.metadata.row_group(group).num_rows
                if is_chosen is not None and not is_chosen[start:end].any():
                    continue
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=wanted):
                    yield start, pa.Table.from_batches([batch])
                    start += batch.num_rows

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """All rows in a few columns, in batches of `rows`, which may be large because the rows are narrow."""
        with (
            self.store.open(self.path) as body,
            pq.ParquetFile(pa.PythonFile(body, mode="r"), pre_buffer=False) as file,
        ):
            for batch in file.iter_batches(rows, columns=list(columns)):
                yield pa.Table.from_batches([batch])

    def narrow(self, columns: Sequence[str]) -> pa.Table:
        """All rows in a few columns, as one table."""
        return pa.concat_tables(self.batches(columns, _NARROW_BATCH_ROWS))


class _Losers:
    """The losing rows of one slice and source, which are left out."""

    def __init__(self, told: bytes | None) -> None:
        self._keys: pa.Array | None = None
        if told is not None:
            rows = from_bytes(told)
            names = whole(rows.column("_object_key")).cast(pa.string())
            self._keys = names.unique()
            self._places = _place(pc.index_in(names, self._keys), rows.column("_line_number"))

    def of(self, rows: pa.Table) -> Mask:
        """A mask of the rows that lose."""
        if self._keys is None:
            return np.zeros(rows.num_rows, dtype=np.bool_)
        at = _place(pc.fill_null(pc.index_in(rows.column("_object_key"), self._keys), -1), rows.column("_line_number"))
        return np.isin(at, self._places)


def _place(objects: pa.Array | pa.ChunkedArray, lines: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The number of an object and a line, combined in one integer."""
    found: np.ndarray[Any, np.dtype[np.int64]] = objects.to_numpy().astype(np.int64) << 32 | lines.to_numpy().astype(
        np.int64
    )
    return found


def _take_keys(keys: list[tuple[int, int, int]], rows: pa.Table) -> None:
    """Collect keys until there are more than _MOST_TOLD_KEYS, which is enough to know that they are too many."""
    if len(keys) <= _MOST_TOLD_KEYS:
        keys += event_keys(rows)


def _added(writer: DataFileWriter, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in rows.to_batches():
        yield from map(_file, writer.add(batch))


def _told_wrong(entry: Mapping[str, Any], file: _File) -> Iterator[pa.RecordBatch]:
    if file.wrong is not None:
        yield _row({**_slice(entry), "wrong": f"{file.store.url}/{file.path} {file.wrong}"})


def _slice(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("event_date", "project_id")}


def _file(described: str) -> pa.RecordBatch:
    return _row({"file": described})


def _row(values: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{name: values.get(name) for name in _WRITTEN.names}], _WRITTEN)
