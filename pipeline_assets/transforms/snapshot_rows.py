"""Objects of a dimension to rows, one task per object, so that the driver never holds items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import IO, Any

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession, Window

from pipeline_assets.domain.deliveries import NOT_READABLE, SnapshotDelivery
from pipeline_assets.domain.errors import ObjectMovedError, TidemarkError, UnreadableObjectError
from pipeline_assets.domain.machine import naming_the_disk
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest
from pipeline_assets.formats.snapshot_lines import BadSnapshotError, SnapshotPart, read_intervals, read_snapshot
from pipeline_assets.transforms.data_files import arrow_schema
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes
from pipeline_assets.transforms.object_text import MOVED, ObjectReader, batch_of

BAD = "bad"
BLOCK_ITEMS, BLOCK_CHARACTERS = 10_000, 4 * 1024**2
_LINE = "_line_number"
_BEFORE = {"snapshot_date": "date"}
_AFTER = {
    "_object_key": "string",
    "_object_etag": "string",
    _LINE: "int",
    "rows": "bigint",
    "trimmed": "bigint",
    "problem": "string",
    "detail": "string",
}


@dataclass(frozen=True)
class ObjectKind:
    """The content of a dimension's objects: snapshots or histories."""

    fields: Mapping[str, str]
    read: Callable[[IO[bytes], SnapshotPart, int, date], Iterator[Any]]
    """(open object, format, most bytes of a line, day) -> items with `fields`, `line`, `is_trimmed`; raises BadSnapshotError."""


SNAPSHOT = ObjectKind({"id": "string", "name": "string", "status": "string", "attributes": "string"}, read_snapshot)
HISTORY = ObjectKind(
    {
        "id": "string",
        "status": "string",
        "active_start_date": "date",
        "active_end_date": "date",
        "attributes": "string",
    },
    read_intervals,
)


def read_objects(
    kind: ObjectKind,
    spark: SparkSession,
    deliveries: Mapping[date, SnapshotDelivery],
    reader: ObjectReader,
    settings: Settings,
) -> DataFrame:
    """Each day's items, and a summary per object (null id): rows, trimmed, problem (null, BAD, MOVED, NOT_READABLE), detail."""
    work = SnapshotWork(reader, kind, settings.max_snapshot_bytes, settings.max_line_bytes)
    objects = pa.Table.from_pylist(
        [
            {"task": task, "day": day, "key": one.key, "etag": one.etag, "size_bytes": one.size_bytes}
            for task, (day, one) in enumerate(sorted(deliveries.items()))
        ],
        arrow_schema({"task": "int", "day": "date", "key": "string", "etag": "string", "size_bytes": "bigint"}),
    )
    schema = ", ".join(f"`{name}` {kind}" for name, kind in work.columns.items())
    tasks = spark.createDataFrame(objects).repartitionById(max(1, len(deliveries)), F.col("task"))
    return tasks.mapInArrow(work, schema)


@dataclass(frozen=True)
class SnapshotWork:
    """Reads objects in Spark's workers, one at a time; an object's rows leave once all of it proves valid."""

    reader: ObjectReader
    kind: ObjectKind
    max_bytes: int
    max_line_bytes: int

    @property
    def columns(self) -> dict[str, str]:
        """Name -> Spark type of the columns of items and summaries."""
        return {**_BEFORE, **self.kind.fields, **_AFTER}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Day, key, etag and size of objects to rows and summaries; raises RuntimeError with the message of a TidemarkError."""
        try:
            with naming_the_disk():
                for objects in batches:
                    for row in objects.to_pylist():
                        yield from self._read(row)
        except TidemarkError as error:
            raise RuntimeError(error.as_line()) from error

    def _read(self, place: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        about = {"snapshot_date": place["day"], "_object_key": place["key"], "_object_etag": place["etag"]}
        names = {name: name for name in self.kind.fields} | {_LINE: "line"}
        summary: dict[str, Any] = {"rows": 0, "trimmed": 0, "problem": None}
        found, trimmed = [], 0
        try:
            for block in self._blocks(place):
                columns = {name: [getattr(item, of) for item in block] for name, of in names.items()}
                found.append(batch_of(self._schema, about, columns, len(block)))
                trimmed += sum(item.is_trimmed for item in block)
        except BadSnapshotError as error:
            summary |= {"problem": BAD, "detail": recordable(str(error))}
        except (ObjectMovedError, UnreadableObjectError) as error:
            problem = MOVED if isinstance(error, ObjectMovedError) else NOT_READABLE
            summary |= {"problem": problem, "detail": recordable(error.reason)}
        else:
            yield from found
            summary |= {"rows": sum(batch.num_rows for batch in found), "trimmed": trimmed}
        yield pa.RecordBatch.from_pylist([about | summary], self._schema)

    def _blocks(self, place: Mapping[str, Any]) -> Iterator[list[Any]]:
        # Only the listed version of an object is ever read.
        if place["size_bytes"] > self.max_bytes:
            reason = f"has {place['size_bytes']:,} bytes, and TIDEMARK_MAX_SNAPSHOT_BYTES allows {self.max_bytes:,}"
            raise BadSnapshotError(0, reason)
        part = SnapshotPart.CSV if place["key"].endswith(SnapshotPart.CSV) else SnapshotPart.JSONL
        texts = [name for name, kind in self.kind.fields.items() if kind == "string"]
        block: list[Any] = []
        size = 0
        with self.reader.open(place["key"], place["etag"]) as stored:
            for item in self.kind.read(stored, part, self.max_line_bytes, place["day"]):
                block.append(item)
                size += sum(len(getattr(item, name) or "") for name in texts)
                if len(block) >= BLOCK_ITEMS or size >= BLOCK_CHARACTERS:
                    yield block
                    block, size = [], 0
        if block:
            yield block

    @cached_property
    def _schema(self) -> pa.Schema:
        return arrow_schema(self.columns)


def intervals_of(snapshots: DataFrame) -> DataFrame:
    """validity_month, id, status, active_start_date, active_end_date: one row per run of days with the same status.

    Expects snapshot_date, id, status. An interval ends at a day without snapshot or id, and at the end of a month.
    """
    days = snapshots.select("snapshot_date", "id", "status", F.trunc("snapshot_date", "month").alias("validity_month"))
    by_id = Window.partitionBy("validity_month", "id").orderBy("snapshot_date")
    goes_on = (F.lag("status").over(by_id) == F.col("status")) & (
        F.lag("snapshot_date").over(by_id) == F.date_sub("snapshot_date", 1)
    )
    numbered = days.withColumn("_begins", F.when(goes_on, 0).otherwise(1)).withColumn(
        "_stretch", F.sum("_begins").over(by_id)
    )
    return (
        numbered.groupBy("validity_month", "id", "status", "_stretch")
        .agg(F.min("snapshot_date").alias("active_start_date"), F.max("snapshot_date").alias("active_end_date"))
        .drop("_stretch")
    )


def intervals_by_month(intervals: DataFrame, first: date) -> DataFrame:
    """The intervals plus validity_month, cut where a month ends and at `first`; days before `first` are left out."""
    start, end = F.greatest("active_start_date", F.lit(first)), F.col("active_end_date")
    months = F.sequence(F.trunc(start, "month"), F.trunc(end, "month"), F.expr("INTERVAL 1 MONTH"))
    cut = intervals.where(end >= F.lit(first)).withColumn("validity_month", F.explode(months))
    return cut.withColumns(
        {
            "active_start_date": F.greatest(start, F.col("validity_month")),
            "active_end_date": F.least(end, F.last_day("validity_month")),
        }
    )


def digests_by_day(intervals: DataFrame, last: date) -> dict[date, Digest]:
    """Day -> digest of its items (id, status, attributes) up to `last`; Spark aggregates only days of changes."""
    ends = F.date_add("active_end_date", 1)
    hashed = with_row_hashes(intervals, ["id", "status", "attributes"]).withColumn(
        "_edge",
        F.explode(
            F.array(
                F.struct(F.col("active_start_date").alias("day"), F.lit(True).alias("begins")),
                F.struct(ends.alias("day"), F.lit(False).alias("begins")),
            )
        ),
    )
    edges = hashed.groupBy("_edge.day", "_edge.begins").agg(*digest_aggregates()).collect()
    changes: dict[date, list[tuple[int, Digest]]] = {}
    for row in edges:
        changes.setdefault(row["day"], []).append((1 if row["begins"] else -1, digest_of(row.asDict())))
    found: dict[date, Digest] = {}
    rows, sum_a, sum_b = 0, 0, 0
    first = min(changes, default=last + timedelta(days=1))
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        for sign, change in changes.get(day, ()):
            rows, sum_a, sum_b = rows + sign * change.rows, sum_a + sign * change.sum_a, sum_b + sign * change.sum_b
        found[day] = Digest(rows, sum_a, sum_b)
    return found


def days_of_items(spark: SparkSession, as_of: Mapping[date, date]) -> DataFrame:
    """event_date, as_of_date: the day whose items are used for the events of a day."""
    rows = sorted(as_of.items())
    columns = {
        "event_date": pa.array([day for day, _ in rows], pa.date32()),
        "as_of_date": pa.array([other for _, other in rows], pa.date32()),
    }
    return F.broadcast(spark.createDataFrame(pa.table(columns)))


def items_by_snapshot(snapshots: DataFrame, days: DataFrame) -> DataFrame:
    """event_date, id, status: the items from the snapshots used for these days (`days_of_items`)."""
    joined = snapshots.join(days, on=F.col("snapshot_date") == F.col("as_of_date"), how="inner")
    return joined.select("event_date", "id", "status")


def items_by_interval(validity: DataFrame, days: DataFrame) -> DataFrame:
    """The same columns, from the intervals that cover these days."""
    holds = F.col("as_of_date").between(F.col("active_start_date"), F.col("active_end_date"))
    return validity.join(days, on=holds, how="inner").select("event_date", "id", "status")
