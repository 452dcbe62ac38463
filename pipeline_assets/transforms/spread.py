"""Objects to tasks: every task reads about as many bytes, in the order of names; a large object is read by several.

Contains: how work is spread.
Add here: another weight of an object.
Does not contain: reading and parsing (parse.py), the rule for a large object (domain/skew.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.skew import balanced, part_weight, parts_of

_OBJECT_COST_BYTES = 64 * 1024
"""What the request for an object weighs against reading it: thousands of empty hours are work too."""
_OBJECT_SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("source", pa.string()),
        ("project_id", pa.string()),
        ("arrival_date", pa.date32()),
        ("object_key", pa.string()),
        ("object_etag", pa.string()),
        ("size_bytes", pa.int64()),
        ("known_sha256", pa.string()),
        ("part", pa.int32()),
        ("parts", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Share:
    """What one task reads of an object: part `part` of `parts`, from 0."""

    delivery: Delivery
    part: int
    parts: int

    @property
    def weight(self) -> float:
        """In stored bytes of an object that is read whole."""
        return part_weight(self.delivery.size_bytes, self.parts) + _OBJECT_COST_BYTES


def shares(deliveries: Sequence[Delivery], parallelism: int, split_bytes: int | None = None) -> list[list[Share]]:
    """Task -> what it reads, so that every task reads about as many bytes.

    An object of more than `split_bytes` that is far more than an even task's work is read by several; None divides none.
    """
    total = sum(delivery.size_bytes + _OBJECT_COST_BYTES for delivery in deliveries)
    listed = [
        Share(delivery, part, parts)
        for delivery in deliveries
        for parts in [1 if split_bytes is None else parts_of(delivery.size_bytes, total, parallelism, split_bytes)]
        for part in range(parts)
    ]
    listed.sort(key=lambda share: (-share.weight, share.delivery.key, share.part))
    tasks: list[list[Share]] = [[] for _ in range(max(1, min(len(listed), parallelism)))]
    for share, task in zip(listed, balanced([share.weight for share in listed], parallelism), strict=True):
        tasks[task].append(share)
    return tasks


def weights(tasks: Iterable[Iterable[Share]]) -> list[float]:
    """Stored bytes that each task reads, what it costs to begin an object included."""
    return [sum(share.weight for share in task) for task in tasks]


def distribute(
    spark: SparkSession, deliveries: Sequence[Delivery], parallelism: int, known_bytes: Mapping[str, str]
) -> DataFrame:
    """`placed` of whole objects."""
    return placed(spark, shares(deliveries, parallelism), known_bytes)


def placed(spark: SparkSession, tasks: Sequence[Sequence[Share]], known_bytes: Mapping[str, str]) -> DataFrame:
    """One row per share of an object, each task's sorted by name.

    `known_bytes`: object key -> sha256 of bytes that need no parsing. Columns: source, project_id, object_key,
    object_etag, known_sha256 string; arrival_date date; size_bytes bigint; part, parts int.
    """
    rows = [
        (
            index,
            d.batch.source.value,
            d.batch.project_id,
            d.batch.arrival_date,
            d.key,
            d.etag,
            d.size_bytes,
            known_bytes.get(d.key),
            share.part,
            share.parts,
        )
        for index, task in enumerate(tasks)
        for share in task
        for d in [share.delivery]
    ]
    # As an Arrow table: a list of Python rows would be pickled by workers of Spark's own.
    table = pa.Table.from_pylist([dict(zip(_OBJECT_SCHEMA.names, row, strict=True)) for row in rows], _OBJECT_SCHEMA)
    order = ("project_id", "arrival_date", "object_key", "part")
    return in_buckets(spark, table).sortWithinPartitions(*order).drop("bucket")


def in_buckets(spark: SparkSession, work: pa.Table) -> DataFrame:
    """Rows of work, one task for each value of its column `bucket` (int), from 0."""
    count = 1 + (pc.max(work.column("bucket")).as_py() or 0)
    return spark.createDataFrame(work).repartitionById(count, F.col("bucket"))
