"""Objects of a dimension to rows, one task an object: the driver never holds items.

Contains: reading snapshots and histories of intervals, and what was wrong with an object.
Add here: how rows are batched.
Does not contain: what an object looks like (formats/snapshot_objects.py, interval_objects.py), what becomes of a refused one
(load/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipeline_assets.domain.deliveries import NOT_READABLE
from pipeline_assets.domain.dimensions import SnapshotDelivery
from pipeline_assets.domain.errors import ObjectMovedError, TidemarkError, UnreadableObjectError
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.formats.interval_objects import read_intervals
from pipeline_assets.formats.snapshot_lines import BadSnapshotError, SnapshotPart
from pipeline_assets.formats.snapshot_objects import read_snapshot
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.parse import MOVED, ObjectReader
from pipeline_assets.transforms.spread import in_buckets

BAD = "bad"
"""`problem` of an object that is no snapshot; `detail` says why."""
_BATCH_ROWS = 10_000
_OF_SNAPSHOT = {"id": "string", "name": "string", "status": "string", "attributes": "string"}
_OF_INTERVAL = {
    "id": "string",
    "status": "string",
    "active_start_date": "date",
    "active_end_date": "date",
    "attributes": "string",
}
_BEFORE = {"snapshot_date": "date"}
_AFTER = {
    "_object_key": "string",
    "_object_etag": "string",
    "_line_number": "int",
    "rows": "bigint",
    "problem": "string",
    "detail": "string",
}


def _snapshot(content: bytes, part: SnapshotPart, day: date) -> Sequence[Any]:  # noqa: ARG001 - its rows name no day
    return read_snapshot(content, part)


def read_snapshots(
    spark: SparkSession, deliveries: Mapping[date, SnapshotDelivery], reader: ObjectReader, max_bytes: int
) -> DataFrame:
    """Rows of each day's object (id is there), and one summary of each (id is null): rows, problem, detail.

    problem is null for a snapshot that is whole; else BAD, MOVED or NOT_READABLE, and the object has no rows.
    """
    return _read(spark, deliveries, SnapshotWork(reader, max_bytes, _OF_SNAPSHOT, _snapshot))


def read_histories(
    spark: SparkSession, deliveries: Mapping[date, SnapshotDelivery], reader: ObjectReader, max_bytes: int
) -> DataFrame:
    """The same of histories of intervals: id, status, active_start_date, active_end_date, attributes as of each day."""
    return _read(spark, deliveries, SnapshotWork(reader, max_bytes, _OF_INTERVAL, read_intervals))


def _read(spark: SparkSession, deliveries: Mapping[date, SnapshotDelivery], work: SnapshotWork) -> DataFrame:
    objects = pa.Table.from_pylist(
        [
            {"bucket": bucket, "day": day, "key": one.key, "etag": one.etag, "size_bytes": one.size_bytes}
            for bucket, (day, one) in enumerate(sorted(deliveries.items()))
        ],
        pa.schema(
            [
                ("bucket", pa.int32()),
                ("day", pa.date32()),
                ("key", pa.string()),
                ("etag", pa.string()),
                ("size_bytes", pa.int64()),
            ]
        ),
    )
    schema = ", ".join(f"`{name}` {kind}" for name, kind in work.columns.items())
    return in_buckets(spark, objects).mapInArrow(work, schema)


@dataclass(frozen=True)
class SnapshotWork:
    """Reads objects, in Spark's Python workers; one at a time is in memory."""

    reader: ObjectReader
    max_bytes: int
    fields: Mapping[str, str]
    """Name -> Spark type of what an item says."""
    parse: Callable[[bytes, SnapshotPart, date], Sequence[Any]]
    """Bytes of an object of a day -> its items, with the fields and `line`; raises BadSnapshotError."""

    @property
    def columns(self) -> dict[str, str]:
        """Name -> Spark type of all that is told of an item, and of an object."""
        return {**_BEFORE, **self.fields, **_AFTER}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Day, key, etag and size of objects to rows and summaries; raises RuntimeError with the line of what is ours."""
        try:
            for objects in batches:
                for row in objects.to_pylist():
                    yield from self._read(row)
        except TidemarkError as error:
            raise RuntimeError(error.as_line()) from error

    def _read(self, place: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        problem, detail = None, None
        rows: Sequence[Any] = ()
        try:
            rows = self._rows(place)
        except BadSnapshotError as error:
            problem, detail = BAD, str(error)
        except ObjectMovedError as error:
            problem, detail = MOVED, error.reason
        except UnreadableObjectError as error:
            problem, detail = NOT_READABLE, error.reason
        about = {"snapshot_date": place["day"], "_object_key": place["key"], "_object_etag": place["etag"]}
        for start in range(0, len(rows), _BATCH_ROWS):
            part = rows[start : start + _BATCH_ROWS]
            yield self._batch([about | self._values(row) for row in part])
        told = None if detail is None else recordable(detail)
        yield self._batch([about | {"rows": len(rows), "problem": problem, "detail": told}])

    def _rows(self, place: Mapping[str, Any]) -> Sequence[Any]:
        # An object may be listed with fewer bytes than it has by now: the version that was listed is read, or none.
        if place["size_bytes"] > self.max_bytes:
            reason = f"has {place['size_bytes']:,} bytes, and TIDEMARK_MAX_SNAPSHOT_BYTES allows {self.max_bytes:,}"
            raise BadSnapshotError(0, reason)
        with self.reader.open(place["key"], place["etag"]) as stored:
            content = stored.read()
        part = SnapshotPart.CSV if place["key"].endswith(SnapshotPart.CSV) else SnapshotPart.JSONL
        return self.parse(content, part, place["day"])

    def _values(self, row: Any) -> dict[str, Any]:
        return {name: getattr(row, name) for name in self.fields} | {"_line_number": row.line}

    def _batch(self, records: list[dict[str, Any]]) -> pa.RecordBatch:
        schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in self.columns.items()])
        columns = [
            pa.array([record.get(name) for record in records], kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
