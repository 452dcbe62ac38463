"""Rows, quarantined lines and summaries of objects as flat Arrow batches, and as the frames that are made of them.

Contains: the columns of the batches, making one, and the views of a frame of them.
Add here: a column, or another view.
Does not contain: reading objects and lines (parse.py).
"""

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
"""`_kind` of good lines, of refused ones, and of the summary of an object."""
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
    """raw.quarantine's columns but `is_batch_accepted`; line_number is null for a whole object."""
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

    size_bytes is as listed, sha256 of the bytes as stored (null where moved). lines = rows + quarantined + blank, all 0
    where `error` is a QuarantineReason that refuses the object, MOVED, TOUCHED or NOT_READABLE. replaced_surrogates and
    lenient_conversions add up ParsedLine's; extra_key_rows counts rows with `_extra`. line_reasons is JSON text, reason ->
    quarantined lines; null where there are none.
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
    """An aggregate of parsed rows: the summaries of all objects as structs of object_key and the columns of SUMMARY."""
    summary = F.struct(F.col("_object_key").alias("object_key"), *SUMMARY)
    return F.collect_list(F.when(F.col("_kind") == OBJECT, summary))


def batch_of_events(place: Mapping[str, Any], events: list[ParsedLine], numbers: list[int]) -> pa.RecordBatch:
    """Good lines of one object; `numbers`: of the lines, from 1."""
    columns: dict[str, Any] = dict(
        zip(_COLUMN_NAMES, zip(*(event.values for event in events), strict=True), strict=True)
    )
    columns[EXTRA_COLUMN] = [event.extra for event in events]
    columns["event_date"] = [event.values[_EVENT_TIME].date() for event in events]
    columns["_line_number"] = numbers
    return batch(ROW, place, columns, len(events))


def batch_of_records(kind: str, place: Mapping[str, Any], records: list[dict[str, Any]]) -> pa.RecordBatch:
    """Some records of one kind, each with the same columns."""
    names = records[0].keys()
    return batch(kind, place, {name: [record[name] for record in records] for name in names}, len(records))


def batch(kind: str, place: Mapping[str, Any], columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """`columns`: those that differ from row to row; `place`: what is the same in all rows. The others are null."""
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
