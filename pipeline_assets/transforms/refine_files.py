"""Files of raw to files of refined, within tasks: rows that lost are left out, the others go on as they are, hashes included.

Lives here: spreading files over tasks, and the task. Put here: what else is done to a row on its way from raw to refined. Keep
out: which rows lost (dedupe.py), how files are laid out (data_files.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pipeline_assets.domain.errors import LakehouseError, TidemarkError
from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, EventHashes, whole
from pipeline_assets.transforms.spread import in_buckets

_WORK = pa.schema([("bucket", pa.int32()), ("source", pa.string()), ("path", pa.string()), ("losers", pa.binary())])
_FILE_COST_BYTES = 256 * 1024
"""What it takes to open a file and to begin another one."""
_SAMPLED_ROWS = 1000


@dataclass(frozen=True)
class RawFile:
    """A file of raw that holds rows of one slice."""

    key: Slice
    source: str
    path: str
    """Below the place where its source's table lies."""
    size_bytes: int


Losers = Mapping[tuple[Slice, str], pa.Table]
"""Slice and source -> `_object_key` (string) and `_line_number` (int) of rows that are left out."""


def refine_files(
    spark: SparkSession,
    files: Sequence[RawFile],
    losers: Losers,
    *,
    stores: Mapping[str, Store],
    hashes: EventHashes,
    layout: FileLayout,
    target: Store,
    parallelism: int,
) -> list[str]:
    """Write the rows of these files that did not lose; the new files, as `data_file` (data_files.py) describes them.

    `stores`: source -> where its raw files lie. A slice has as many files as tasks read it. Some rows of each file are
    hashed again: raises RuntimeError with the line of a LakehouseError where one is not what was parsed.
    """
    rows = [
        {"bucket": bucket, "source": file.source, "path": file.path, "losers": _as_bytes(losers.get((file.key, file.source)))}
        for bucket, part in enumerate(_parts(files, parallelism)) for file in part
    ]  # fmt: skip
    if not rows:
        return []
    work = in_buckets(spark, pa.Table.from_pylist(rows, _WORK)).sortWithinPartitions("path").drop("bucket")
    written = work.mapInArrow(_Refining(dict(stores), hashes, layout, target), "file string")
    return [row["file"] for row in written.collect()]


def _parts(files: Sequence[RawFile], parallelism: int) -> list[list[RawFile]]:
    """About as many bytes in each, the files of a slice together unless they alone are more than that."""
    ordered = sorted(files, key=lambda file: (file.key.project_id, file.key.event_date, file.path))
    slices = [list(group) for _, group in groupby(ordered, lambda file: file.key)]
    share = sum(map(_weight, ordered)) / max(1, parallelism)
    parts: list[list[RawFile]] = [[]]
    weight = 0.0
    for same in slices:
        if weight and weight + sum(map(_weight, same)) > 1.5 * share:
            parts.append([])
            weight = 0.0
        for file in same:
            if weight >= share:
                parts.append([])
                weight = 0.0
            parts[-1].append(file)
            weight += _weight(file)
    return [part for part in parts if part]


def _weight(file: RawFile) -> float:
    return file.size_bytes + _FILE_COST_BYTES


def _as_bytes(losers: pa.Table | None) -> bytes | None:
    if losers is None or not losers.num_rows:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, losers.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(losers)
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class _Refining:
    """Runs in Spark's Python workers."""

    stores: Mapping[str, Store]
    hashes: EventHashes
    layout: FileLayout
    target: Store

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = DataFileWriter(self.layout, self.target)
        try:
            for batch in batches:
                for entry in batch.to_pylist():
                    for rows in self._rows(entry):
                        yield from _described(writer.add(rows))
            yield from _described(writer.finish())
        except TidemarkError as error:
            raise RuntimeError(error.as_line()) from error

    def _rows(self, entry: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        store = self.stores[entry["source"]]
        is_lost = _Losers(entry["losers"])
        with store.open(entry["path"]) as body, pq.ParquetFile(pa.PythonFile(body, mode="r"), pre_buffer=True) as file:
            there = set(file.schema_arrow.names)
            wanted = [name for name in self.layout.field_ids if name in there and name != "_source"]
            for number in range(file.num_row_groups):
                rows = self._placed(file.read_row_group(number, columns=wanted), entry["source"])
                self._require_as_parsed(rows, f"{store.url}/{entry['path']}")
                yield from is_lost.leave_out(rows).to_batches()

    def _placed(self, rows: pa.Table, source: str) -> pa.Table:
        schema = self.layout.schema
        columns = []
        for entry in schema:
            if entry.name == "_source":
                columns.append(pa.repeat(pa.scalar(source, entry.type), rows.num_rows))
            elif entry.name in rows.schema.names:
                columns.append(rows.column(entry.name).cast(entry.type))
            else:
                # A column that raw came to have after this file was written.
                columns.append(pa.nulls(rows.num_rows, entry.type))
        return pa.Table.from_arrays(columns, schema=schema)

    def _require_as_parsed(self, rows: pa.Table, path: str) -> None:
        start = int.from_bytes(os.urandom(4)) % max(1, rows.num_rows - _SAMPLED_ROWS + 1)
        sample = rows.slice(start, _SAMPLED_ROWS)
        if not sample.num_rows:
            return
        made = self.hashes.of(sample)
        are_as_parsed = [pc.fill_null(pc.equal(made[name], whole(sample.column(name))), False) for name in HASH_COLUMNS]
        at = pc.index(reduce(pc.and_, are_as_parsed), False).as_py()
        if at >= 0:
            line, key = sample.column("_line_number")[at], sample.column("_object_key")[at]
            raise LakehouseError(
                path,
                f"holds line {line} of {key} with another hash than its own",
                "Something else than Tidemark changed the file: docs/operations.md, A row that differs from its hash",
            )


class _Losers:
    """Rows of one file that are left out."""

    def __init__(self, told: bytes | None) -> None:
        self._keys: pa.Array | None = None
        if told is not None:
            with pa.ipc.open_stream(told) as stream:
                rows = stream.read_all()
            names = whole(rows.column("_object_key"))
            self._keys = names.unique()
            self._places = _place(pc.index_in(names, self._keys), rows.column("_line_number"))

    def leave_out(self, rows: pa.Table) -> pa.Table:
        """The other rows."""
        if self._keys is None:
            return rows
        at = _place(pc.fill_null(pc.index_in(rows.column("_object_key"), self._keys), -1), rows.column("_line_number"))
        is_lost = np.isin(at, self._places)
        return rows.filter(pa.array(~is_lost)) if is_lost.any() else rows


def _place(objects: pa.Array | pa.ChunkedArray, lines: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Object and line in one number."""
    found: np.ndarray[Any, np.dtype[np.int64]] = objects.to_numpy().astype(np.int64) << 32 | lines.to_numpy().astype(
        np.int64
    )
    return found


def _described(files: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for one in files:
        yield pa.RecordBatch.from_pydict({"file": [one]})
