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

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, EventHashes, whole
from pipeline_assets.transforms.spread import in_buckets

_WORK = pa.schema([("bucket", pa.int32()), ("place", pa.int32()), ("event_date", pa.date32()), ("project_id", pa.string()),
                   ("source", pa.string()), ("paths", pa.list_(pa.string())), ("losers", pa.binary())])  # fmt: skip
_WRITTEN = pa.schema(
    [("file", pa.string()), ("event_date", pa.date32()), ("project_id", pa.string()), ("wrong", pa.string())]
)
_FILE_COST_BYTES = 256 * 1024
"""What it takes to open a file and to begin another one."""
_BATCH_ROWS = 10_000
_SAMPLED_ROWS = 200
"""Of each batch: so many are hashed again."""


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


@dataclass(frozen=True)
class Refined:
    """What tasks wrote."""

    files: list[str]
    """As `data_file` (data_files.py) describes them."""
    wrong: dict[Slice, str]
    """Slices of which a row of raw is not what was parsed -> which one."""


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
) -> Refined:
    """Write the rows of these files that did not lose, and hash some of them again.

    `stores`: source -> where its raw files lie. A slice has as many files as tasks read it.
    """
    told = {at: _as_bytes(rows) for at, rows in losers.items()}
    rows = [
        {"bucket": bucket, "place": place, "event_date": key.event_date, "project_id": key.project_id, "source": source,
         "paths": [file.path for file in same], "losers": told.get((key, source))}
        for bucket, part in enumerate(_parts(files, parallelism))
        for place, ((key, source), same) in enumerate(groupby(part, lambda file: (file.key, file.source)))
    ]  # fmt: skip
    if not rows:
        return Refined([], {})
    work = in_buckets(spark, pa.Table.from_pylist(rows, _WORK)).sortWithinPartitions("place").drop("bucket", "place")
    schema = "file string, event_date date, project_id string, wrong string"
    written = work.mapInArrow(_Refining(dict(stores), hashes, layout, target), schema).collect()
    wrong = {Slice(row["event_date"], row["project_id"]): row["wrong"] for row in written if row["wrong"] is not None}
    return Refined([row["file"] for row in written if row["file"] is not None], wrong)


def _parts(files: Sequence[RawFile], parallelism: int) -> list[list[RawFile]]:
    """About as many bytes in each, the files of a slice together unless they alone are more than that."""
    ordered = sorted(files, key=lambda file: (file.key.project_id, file.key.event_date, file.source, file.path))
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
                    is_lost = _Losers(entry["losers"])
                    for path in entry["paths"]:
                        wrong = None
                        for rows in self._rows(entry["source"], path):
                            wrong = wrong or self._wrong(rows)
                            for kept in is_lost.leave_out(rows).to_batches():
                                yield from map(_file, writer.add(kept))
                        if wrong is not None:
                            yield _row(entry | {"wrong": f"{self.stores[entry['source']].url}/{path} {wrong}"})
            yield from map(_file, writer.finish())
        except BaseException as error:
            writer.discard()
            if isinstance(error, TidemarkError):
                raise RuntimeError(error.as_line()) from error
            raise

    def _rows(self, source: str, path: str) -> Iterator[pa.Table]:
        """In batches: a group of rows may be as large as whoever wrote the file wanted."""
        store = self.stores[source]
        with store.open(path) as body, pq.ParquetFile(pa.PythonFile(body, mode="r"), pre_buffer=False) as file:
            there = set(file.schema_arrow.names)
            wanted = [name for name in self.layout.field_ids if name in there and name != "_source"]
            for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
                yield self._placed(pa.Table.from_batches([batch]), source)

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

    def _wrong(self, rows: pa.Table) -> str | None:
        """Which of some rows has another hash than its own, None where none has."""
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


def _file(described: str) -> pa.RecordBatch:
    return _row({"file": described})


def _row(values: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{name: values.get(name) for name in _WRITTEN.names}], _WRITTEN)
