"""Assigns objects to tasks: every task reads about as many bytes, in the order of names; several tasks share a large object."""

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
"""The cost of a request, in bytes read: thousands of empty hours are work too."""
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
    """The part of an object that one task reads: number `part` of `parts`, from 0."""

    delivery: Delivery
    part: int
    parts: int

    @property
    def weight(self) -> float:
        """The cost of reading it, in bytes: stored bytes plus a fixed cost per request."""
        return part_weight(self.delivery.size_bytes, self.parts) + _OBJECT_COST_BYTES


def shares(deliveries: Sequence[Delivery], parallelism: int, split_bytes: int | None = None) -> list[list[Share]]:
    """The shares of each task, so that every task reads about as many bytes.

    An object larger than `split_bytes` that far exceeds an even share of the work is divided; None divides no object.
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
    """The sum of the weights of each task's shares."""
    return [sum(share.weight for share in task) for task in tasks]


def distribute(
    spark: SparkSession, deliveries: Sequence[Delivery], parallelism: int, known_bytes: Mapping[str, str]
) -> DataFrame:
    """`placed` for whole objects."""
    return placed(spark, shares(deliveries, parallelism), known_bytes)


def placed(spark: SparkSession, tasks: Sequence[Sequence[Share]], known_bytes: Mapping[str, str]) -> DataFrame:
    """One row per share of an object, one partition per task, sorted by name.

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
    # An Arrow table, because a list of Python rows would be pickled and need extra Python workers.
    table = pa.Table.from_pylist([dict(zip(_OBJECT_SCHEMA.names, row, strict=True)) for row in rows], _OBJECT_SCHEMA)
    order = ("project_id", "arrival_date", "object_key", "part")
    return in_buckets(spark, table).sortWithinPartitions(*order).drop("bucket")


def in_buckets(spark: SparkSession, work: pa.Table) -> DataFrame:
    """`work` as a frame with one partition for each value of its column `bucket` (int), from 0."""
    count = 1 + (pc.max(work.column("bucket")).as_py() or 0)
    return spark.createDataFrame(work).repartitionById(count, F.col("bucket"))
