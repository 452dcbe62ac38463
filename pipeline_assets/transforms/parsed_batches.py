"""Rows, quarantined lines and object summaries as flat Arrow batches, and views of a frame of such batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.formats.base import EVENT_TIME, EXTRA_COLUMN, ParsedLine
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.data_files import ARROW_TYPES

ROW, QUARANTINED, OBJECT = "row", "quarantine", "object"
"""Values of `_kind`: a good line, a refused line or object, the summary of an object."""
_COLUMN_NAMES = EXPORT_FORMAT.column_names
_EVENT_TIME = _COLUMN_NAMES.index(EVENT_TIME)

_PLACE = {
    "_kind": "string",
    "_source": "string",
    "project_id": "string",
    "_arrival_date": "date",
    "_object_key": "string",
    "_object_etag": "string",
}
_EVENT = EXPORT_FORMAT.spark_types | {
    EXTRA_COLUMN: "string",
    "event_date": "date",
    "_line_number": "int",
}
_REFUSED = {
    "byte_offset": "bigint",
    "byte_length": "bigint",
    "reason": "string",
    "detail": "string",
    "sample": "binary",
}
SUMMARY = {
    "size_bytes": "bigint",
    "sha256": "string",
    "lines": "bigint",
    "rows": "bigint",
    "quarantined": "bigint",
    "blank": "bigint",
    "replaced_surrogates": "bigint",
    "lenient_conversions": "bigint",
    "extra_key_rows": "bigint",
    "error": "string",
    "error_detail": "string",
    "line_reasons": "string",
}
FIELDS = _PLACE | _EVENT | _REFUSED | SUMMARY
"""Column -> Spark type of the batches."""
_ARROW_SCHEMA = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in FIELDS.items()])


def quarantined(parsed: DataFrame) -> DataFrame:
    """All columns of raw.quarantine except `is_batch_accepted`; line_number is null for a whole object."""
    return parsed.where(F.col("_kind") == QUARANTINED).select(
        F.col("_source").alias("source"),
        F.col("_arrival_date").alias("arrival_date"),
        "project_id",
        F.col("_object_key").alias("object_key"),
        F.col("_object_etag").alias("object_etag"),
        F.col("_line_number").alias("line_number"),
        *_REFUSED,
    )


def object_summaries(parsed: DataFrame) -> DataFrame:
    """One row per object: source, arrival_date, project_id, object_key, object_etag, then the columns of SUMMARY.

    size_bytes is the listed size; sha256 is of the stored bytes (null if they were not read). lines = rows + quarantined +
    blank. All are 0 if `error` is a QuarantineReason that refuses the object, MOVED, SAME_BYTES or NOT_READABLE.
    replaced_surrogates and lenient_conversions are sums over ParsedLine; extra_key_rows counts rows with `_extra`.
    line_reasons is JSON text of `DeliveryRecord.line_reasons`, or null if there are none.
    """
    return parsed.where(F.col("_kind") == OBJECT).select(
        F.col("_source").alias("source"),
        F.col("_arrival_date").alias("arrival_date"),
        "project_id",
        F.col("_object_key").alias("object_key"),
        F.col("_object_etag").alias("object_etag"),
        *SUMMARY,
    )


def object_summary_list() -> Column:
    """An aggregate over parsed rows: all object summaries, as structs of object_key and the columns of SUMMARY."""
    summary = F.struct(F.col("_object_key").alias("object_key"), *SUMMARY)
    return F.collect_list(F.when(F.col("_kind") == OBJECT, summary))


def batch_of_events(place: Mapping[str, Any], events: list[ParsedLine], numbers: list[int]) -> pa.RecordBatch:
    """A batch of good lines of one object; `numbers` holds their line numbers, from 1."""
    columns: dict[str, Any] = dict(
        zip(_COLUMN_NAMES, zip(*(event.values for event in events), strict=True), strict=True)
    )
    columns[EXTRA_COLUMN] = [event.extra for event in events]
    columns["event_date"] = [event.values[_EVENT_TIME].date() for event in events]
    columns["_line_number"] = numbers
    return batch(ROW, place, columns, len(events))


def batch_of_records(kind: str, place: Mapping[str, Any], records: list[dict[str, Any]]) -> pa.RecordBatch:
    """A batch of records of one kind, all with the same columns."""
    names = records[0].keys()
    return batch(kind, place, {name: [record[name] for record in records] for name in names}, len(records))


def batch(kind: str, place: Mapping[str, Any], columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """A batch of `count` rows: `columns` vary from row to row, `place` is the same in all rows, other columns are null."""
    constants = {**place, "_kind": kind}
    arrays = []
    for entry in _ARROW_SCHEMA:
        if entry.name in columns:
            values = columns[entry.name]
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, entry.type))
        elif entry.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[entry.name], entry.type), count))
        else:
            arrays.append(pa.nulls(count, entry.type))
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
