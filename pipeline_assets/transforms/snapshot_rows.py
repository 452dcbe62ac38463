"""Snapshots of a dimension to rows, one task an object: the driver never holds items.

Contains: reading the objects, and what was wrong with one.
Add here: how rows are batched.
Does not contain: what a snapshot looks like (formats/snapshot_items.py), what becomes of a refused one (load/).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import IO, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipeline_assets.domain.deliveries import NOT_READABLE
from pipeline_assets.domain.dimensions import SnapshotDelivery
from pipeline_assets.domain.errors import ObjectMovedError, TidemarkError, UnreadableObjectError
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.spool import a_spool, naming_the_disk
from pipeline_assets.formats.snapshot_items import BadSnapshotError, SnapshotItem, read_snapshot
from pipeline_assets.formats.snapshot_objects import SnapshotPart
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.object_text import MOVED, ObjectReader
from pipeline_assets.transforms.spread import in_buckets

BAD = "bad"
"""`problem` of an object that is no snapshot; `detail` says why."""
BLOCK_ITEMS, BLOCK_CHARACTERS = 10_000, 4 * 1024**2
"""So much of a snapshot is made rows at once."""
_FIELDS = {
    "snapshot_date": "date",
    "id": "string",
    "name": "string",
    "status": "string",
    "attributes": "string",
    "_object_key": "string",
    "_object_etag": "string",
    "_line_number": "int",
    "rows": "bigint",
    "trimmed": "bigint",
    "problem": "string",
    "detail": "string",
}
_SCHEMA = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in _FIELDS.items()])
_ITEMS = pa.schema([_SCHEMA.field(name) for name in ("id", "name", "status", "attributes", "_line_number")])


def read_snapshots(
    spark: SparkSession,
    deliveries: Mapping[date, SnapshotDelivery],
    reader: ObjectReader,
    *,
    max_bytes: int,
    max_line_bytes: int,
) -> DataFrame:
    """Rows of each day's object (id is there), and one summary of each (id is null): rows, trimmed, problem, detail.

    problem is null for a snapshot that is whole; else BAD, MOVED or NOT_READABLE, and the object has no rows. trimmed: of how
    many rows white space around id or status was left out.
    """
    work = pa.Table.from_pylist(
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
    schema = ", ".join(f"`{name}` {kind}" for name, kind in _FIELDS.items())
    return in_buckets(spark, work).mapInArrow(SnapshotWork(reader, max_bytes, max_line_bytes), schema)


@dataclass(frozen=True)
class SnapshotWork:
    """Reads snapshots, in Spark's Python workers; of one at a time a block of items is in memory.

    Whether an object is a snapshot is known when all of it was read, so its items lie in a spool until then.
    """

    reader: ObjectReader
    max_bytes: int
    max_line_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Day, key, etag and size of objects to rows and summaries; raises RuntimeError with the line of what is ours."""
        try:
            with naming_the_disk():
                for objects in batches:
                    for row in objects.to_pylist():
                        yield from self._read(row)
        except TidemarkError as error:
            raise RuntimeError(error.as_line()) from error

    def _read(self, place: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        about = {"snapshot_date": place["day"], "_object_key": place["key"], "_object_etag": place["etag"]}
        with a_spool() as spool:
            summary = self._summary(place, spool)
            if summary["problem"] is None:
                spool.seek(0)
                with pa.ipc.open_stream(spool) as items:
                    for block in items:
                        yield _rows(about, block)
        yield pa.RecordBatch.from_pylist([about | summary], _SCHEMA)

    def _summary(self, place: Mapping[str, Any], spool: IO[bytes]) -> dict[str, Any]:
        """What is to be told of an object, whose items are written into the spool."""
        rows = trimmed = 0
        try:
            with pa.ipc.new_stream(spool, _ITEMS) as blocks:
                for block in self._blocks(place):
                    blocks.write_batch(_batch(block))
                    rows += len(block)
                    trimmed += sum(item.is_trimmed for item in block)
        except BadSnapshotError as error:
            return _problem(BAD, str(error))
        except ObjectMovedError as error:
            return _problem(MOVED, error.reason)
        except UnreadableObjectError as error:
            return _problem(NOT_READABLE, error.reason)
        return {"rows": rows, "trimmed": trimmed, "problem": None, "detail": None}

    def _blocks(self, place: Mapping[str, Any]) -> Iterator[list[SnapshotItem]]:
        # An object may be listed with fewer bytes than it has by now: the version that was listed is read, or none.
        if place["size_bytes"] > self.max_bytes:
            reason = f"has {place['size_bytes']:,} bytes, and TIDEMARK_MAX_SNAPSHOT_BYTES allows {self.max_bytes:,}"
            raise BadSnapshotError(0, reason)
        part = SnapshotPart.CSV if place["key"].endswith(SnapshotPart.CSV) else SnapshotPart.JSONL
        block: list[SnapshotItem] = []
        size = 0
        with self.reader.open(place["key"], place["etag"]) as stored:
            for item in read_snapshot(stored, part, self.max_line_bytes):
                block.append(item)
                size += len(item.id) + len(item.name or "") + len(item.status) + len(item.attributes or "")
                if len(block) >= BLOCK_ITEMS or size >= BLOCK_CHARACTERS:
                    yield block
                    block, size = [], 0
        if block:
            yield block


def _problem(problem: str, detail: str) -> dict[str, Any]:
    return {"rows": 0, "trimmed": 0, "problem": problem, "detail": recordable(detail)}


def _batch(items: Sequence[SnapshotItem]) -> pa.RecordBatch:
    values = (
        [item.id for item in items],
        [item.name for item in items],
        [item.status for item in items],
        [item.attributes for item in items],
        [item.line for item in items],
    )
    columns = [pa.array(column, kind) for column, kind in zip(values, _ITEMS.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ITEMS)


def _rows(about: Mapping[str, Any], items: pa.RecordBatch) -> pa.RecordBatch:
    """Items with where they are from, in the columns of all batches."""
    columns = [
        items.column(field.name)
        if field.name in _ITEMS.names
        else pa.repeat(pa.scalar(about.get(field.name), field.type), items.num_rows)
        for field in _SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
