"""Objects to tasks: every task reads about as many bytes, in the order of names.

Contains: how work is spread.
Add here: another weight of an object.
Does not contain: reading and parsing (parse.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from pipeline_assets.domain.deliveries import Delivery

_OBJECT_COST_BYTES = 64 * 1024
"""What the request for an object weighs against reading it: thousands of empty hours are work too."""
_OBJECT_SCHEMA = pa.schema([("bucket", pa.int32()), ("source", pa.string()), ("project_id", pa.string()),
                            ("arrival_date", pa.date32()), ("object_key", pa.string()), ("object_etag", pa.string()),
                            ("size_bytes", pa.int64()), ("known_sha256", pa.string())])  # fmt: skip


def distribute(
    spark: SparkSession, deliveries: Sequence[Delivery], parallelism: int, known_bytes: Mapping[str, str]
) -> DataFrame:
    """One row per delivery, spread so that every task reads about as many bytes; one bucket is one task, sorted by name.

    `known_bytes`: object key -> sha256 of bytes that need no parsing. Columns: source, project_id, object_key,
    object_etag, known_sha256 string; arrival_date date; size_bytes bigint.
    """
    buckets: list[list[Delivery]] = [[] for _ in range(max(1, min(len(deliveries), parallelism)))]
    heap = [(0, index) for index in range(len(buckets))]
    for delivery in sorted(deliveries, key=lambda d: (-d.size_bytes, d.key)):
        size, index = heapq.heappop(heap)
        buckets[index].append(delivery)
        heapq.heappush(heap, (size + delivery.size_bytes + _OBJECT_COST_BYTES, index))
    rows = [
        (index, d.batch.source.value, d.batch.project_id, d.batch.arrival_date, d.key, d.etag, d.size_bytes,
         known_bytes.get(d.key))
        for index, bucket in enumerate(buckets) for d in bucket
    ]  # fmt: skip
    # As an Arrow table: a list of Python rows would be pickled by workers of Spark's own.
    table = pa.Table.from_pylist([dict(zip(_OBJECT_SCHEMA.names, row, strict=True)) for row in rows], _OBJECT_SCHEMA)
    return in_buckets(spark, table).sortWithinPartitions("project_id", "arrival_date", "object_key").drop("bucket")


def in_buckets(spark: SparkSession, work: pa.Table) -> DataFrame:
    """Rows of work, one task for each value of its column `bucket` (int), from 0."""
    count = 1 + (pc.max(work.column("bucket")).as_py() or 0)
    return spark.createDataFrame(work).repartitionById(count, F.col("bucket"))
