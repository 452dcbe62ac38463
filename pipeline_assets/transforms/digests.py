"""Rows in Spark: hashes and content digests, and the ids of events as domain/identity.py reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import BooleanType, DataType, LongType, StructType

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.domain.slices import ROW_HASH_VERSION, UNMEASURABLE, Digest, Slice, is_text
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS, ROW_ID, SEND_ID, EventHashes, hashed_rows, hashes_of

HASH_A, HASH_B, MEANING_HASH = HASH_COLUMNS[:3]
FALSE_HASHES = "false_hashes"
_IS_FALSE = "_is_false"


def with_row_hashes(frame: DataFrame, columns: Sequence[str], names: Sequence[str] = (HASH_A, HASH_B)) -> DataFrame:
    """The frame plus both halves (long) of the hash over the columns, as `names`. Raises ValueError for other types."""
    return _mapped(frame, partial(_hashed, _types(frame, columns), names), dict.fromkeys(names, LongType()))


def _hashed(types: Mapping[str, str], names: Sequence[str], rows: pa.Table) -> dict[str, pa.Array]:
    if types.keys() == _EVENT_COLUMNS:
        return dict(zip(names, EventHashes(types).content(rows)[:2], strict=True))
    return dict(zip(names, hashes_of(rows, types), strict=True))


_EVENT_COLUMNS = {*EXPORT_FORMAT.column_names, EXTRA_COLUMN}


def _checked(hashes: EventHashes, rows: pa.Table) -> dict[str, pa.Array]:
    made = hashed_rows(hashes, rows)
    return {HASH_A: pa.array(made.first), HASH_B: pa.array(made.second), _IS_FALSE: pa.array(made.are_false)}


_Made = Callable[[pa.Table], dict[str, pa.Array]]


def _mapped(frame: DataFrame, made: _Made, types: Mapping[str, DataType]) -> DataFrame:
    schema = StructType([field for field in frame.schema if field.name not in types])
    for name, kind in types.items():
        schema = schema.add(name, kind)
    return frame.mapInArrow(partial(_each, made, schema.names), schema)


def _each(made: _Made, names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            found = made(pa.Table.from_batches([batch]))
            columns = [found[name] if name in found else batch.column(name) for name in names]
            yield pa.RecordBatch.from_arrays(columns, names=names)


def _types(frame: DataFrame, columns: Sequence[str]) -> dict[str, str]:
    known = dict(frame.dtypes)
    types = {name: known[name] for name in columns}
    for kind in types.values():
        is_text(kind)
    return types


def digest_aggregates() -> list[Column]:
    """Aggregates that `digest_of` reads: `rows`, and sums over `_hash_a` and `_hash_b`."""
    # As decimals, because the sum of many longs overflows.
    sums = [F.sum(F.col(name).cast("decimal(20,0)")).alias(f"sum{name}") for name in (HASH_A, HASH_B)]
    return [F.count(F.lit(1)).alias("rows"), *sums]


def digest_of(row: Mapping[str, Any]) -> Digest:
    """The digest in a collected row of `digest_aggregates`, and of `checked_hashes` if stored hashes were checked."""
    known = UNMEASURABLE if row.get(FALSE_HASHES) else ROW_HASH_VERSION
    return Digest(int(row["rows"]), int(row["sum_hash_a"] or 0), int(row["sum_hash_b"] or 0), known)


def checked_hashes(frame: DataFrame, columns: Sequence[str]) -> tuple[DataFrame, list[Column]]:
    """The frame with computed hashes, and an aggregate FALSE_HASHES if it stores hashes too."""
    if not {HASH_A, HASH_B} <= set(frame.columns):
        return with_row_hashes(frame, columns), []
    hashes = EventHashes(_types(frame, columns))
    made = {HASH_A: LongType(), HASH_B: LongType(), _IS_FALSE: BooleanType()}
    checked = _mapped(frame, partial(_checked, hashes), made)
    return checked, [F.count_if(_IS_FALSE).alias(FALSE_HASHES)]


def digests(frame: DataFrame, columns: Sequence[str], by: Sequence[str]) -> DataFrame:
    """One row per group: the columns `by`, and those for `digest_of`."""
    hashed, also = checked_hashes(frame, columns)
    return hashed.groupBy(*by).agg(*digest_aggregates(), *also)


def slice_digests(frame: DataFrame, columns: Sequence[str], day_column: str) -> dict[Slice, Digest]:
    """Slice -> digest of its rows; the frame has `day_column` (date), project_id and `columns`."""
    rows = digests(frame, columns, [day_column, "project_id"]).collect()
    return {Slice(row[day_column], row["project_id"]): digest_of(row.asDict()) for row in rows}


def named(text: str | Column) -> Column:
    """The text (a column's name, or an expression), with null for empty and blank ones."""
    value = F.col(text) if isinstance(text, str) else text
    return F.when(value.rlike(SOMETHING_TO_SEE), value)


def named_sender() -> dict[str, Column]:
    """Column -> expression, for the columns that identify the sender of an event; blank texts are null."""
    types = EXPORT_FORMAT.spark_types
    return {name: named(name) if types[name] == "string" else F.col(name) for name in EXPORT_FORMAT.identity.sender}


def is_nameless() -> Column:
    """Whether an event has neither a send id nor a row id."""
    return named(SEND_ID).isNull() & named(ROW_ID).isNull()


def unread_text() -> Column:
    """The delivered text of an unreadable second rank time; else null."""
    later = EXPORT_FORMAT.rank_columns[1]
    return F.when(F.col(later).isNull(), F.get_json_object(EXTRA_COLUMN, f"$.{later}"))
