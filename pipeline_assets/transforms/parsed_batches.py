"""What reading objects yields: good lines and refused lines as Arrow batches, and a summary of each object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.formats.base import EVENT_TIME, EXTRA_COLUMN, ParsedLine
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.data_files import arrow_schema

_COLUMN_NAMES = EXPORT_FORMAT.column_names
_EVENT_TIME = _COLUMN_NAMES.index(EVENT_TIME)
_ROW_TYPES = {
    "project_id": "string",
    "_arrival_date": "date",
    "_object_key": "string",
    "_object_etag": "string",
    **EXPORT_FORMAT.spark_types,
    EXTRA_COLUMN: "string",
    "event_date": "date",
    "_line_number": "int",
}
_REFUSED_TYPES = {
    "source": "string",
    "arrival_date": "date",
    "project_id": "string",
    "object_key": "string",
    "object_etag": "string",
    "line_number": "int",
    "byte_offset": "bigint",
    "byte_length": "bigint",
    "reason": "string",
    "detail": "string",
    "sample": "binary",
}
ROWS, REFUSED = arrow_schema(_ROW_TYPES), arrow_schema(_REFUSED_TYPES)
"""Columns of a good line: those of a raw table without hashes. Columns of a refused line or object: those of raw.quarantine
without `is_batch_accepted`; line_number is null for a whole object."""
SUMMARY_COUNTS = (
    "lines",
    "rows",
    "quarantined",
    "blank",
    "replaced_surrogates",
    "lenient_conversions",
    "extra_key_rows",
)
"""Fields of an object's summary that add up over its parts."""

Summary: TypeAlias = dict[str, Any]
"""What reading found of an object, or of a part of it: object_key, size_bytes, sha256, SUMMARY_COUNTS, error, error_detail,
line_reasons.

size_bytes is the listed size; sha256 is of the stored bytes (None if they were not read). lines = rows + quarantined + blank.
All are 0 if `error` is a QuarantineReason that refuses the object, MOVED or NOT_READABLE. replaced_surrogates and
lenient_conversions are sums over ParsedLine; extra_key_rows counts rows with `_extra`. line_reasons is JSON text of
`DeliveryRecord.line_reasons`, or None if there are none.
"""


@dataclass(frozen=True)
class Found:
    """One of three kinds of what reading yields."""

    rows: pa.RecordBatch | None = None
    """Good lines of one project and arrival day, with the columns of ROWS."""
    refused: pa.RecordBatch | None = None
    """Refused lines of one object, or the object, with the columns of REFUSED."""
    summaries: Sequence[Summary] = ()


def begun_summary(delivery: Delivery) -> Summary:
    """The summary of an object of which nothing has been read."""
    return {
        "object_key": delivery.key,
        "size_bytes": delivery.size_bytes,
        **dict.fromkeys(SUMMARY_COUNTS, 0),
        **dict.fromkeys(("sha256", "error", "error_detail", "line_reasons")),
    }


def rows_of(delivery: Delivery, columns: Mapping[str, Any], count: int) -> Found:
    """`count` good lines: `columns` vary from line to line, the names of the object do unless they are among them."""
    names = {
        "project_id": delivery.batch.project_id,
        "_arrival_date": delivery.batch.arrival_date,
        "_object_key": delivery.key,
        "_object_etag": delivery.etag,
    }
    return Found(rows=batch_of(ROWS, names, columns, count))


def rows_of_events(delivery: Delivery, events: Sequence[ParsedLine], numbers: Sequence[int]) -> Found:
    """Good lines of one object; `numbers` holds their line numbers, from 1."""
    columns: dict[str, Any] = dict(
        zip(_COLUMN_NAMES, zip(*(event.values for event in events), strict=True), strict=True)
    )
    columns[EXTRA_COLUMN] = [event.extra for event in events]
    columns["event_date"] = [event.values[_EVENT_TIME].date() for event in events]
    columns["_line_number"] = numbers
    return rows_of(delivery, columns, len(events))


def refused_of(delivery: Delivery, records: Sequence[Mapping[str, Any]]) -> Found:
    """Refused lines of an object, or the object itself; all records have the same columns."""
    names = {
        "source": delivery.batch.source.value,
        "arrival_date": delivery.batch.arrival_date,
        "project_id": delivery.batch.project_id,
        "object_key": delivery.key,
        "object_etag": delivery.etag,
    }
    columns = {name: [record[name] for record in records] for name in records[0]}
    return Found(refused=batch_of(REFUSED, names, columns, len(records)))


def batch_of(schema: pa.Schema, constants: Mapping[str, Any], columns: Mapping[str, Any], count: int) -> pa.RecordBatch:
    """A batch of `count` rows: `constants` are the same in all rows, columns in neither mapping are null."""
    arrays = []
    for entry in schema:
        if entry.name in columns:
            values = columns[entry.name]
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, entry.type))
        else:
            arrays.append(pa.repeat(pa.scalar(constants.get(entry.name), entry.type), count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
