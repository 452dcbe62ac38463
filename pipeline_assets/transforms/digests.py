"""Rows in Spark: hashes, content digests, the ids of events as domain/identity.py reads them, and keys compared in two states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
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
from pipeline_assets.transforms import event_hashes

HASH_A, HASH_B, MEANING_HASH = event_hashes.HASH_COLUMNS[:3]
FALSE_HASHES = "false_hashes"
_IS_FALSE = "_is_false"


def with_row_hashes(frame: DataFrame, columns: Sequence[str], names: Sequence[str] = (HASH_A, HASH_B)) -> DataFrame:
    """The frame plus both halves (long) of the hash over the columns, as `names`. Raises ValueError for other types."""
    return _mapped(frame, partial(_hashed, _types(frame, columns), names), dict.fromkeys(names, LongType()))


def _hashed(types: Mapping[str, str], names: Sequence[str], rows: pa.Table) -> dict[str, pa.Array]:
    if types.keys() == _EVENT_COLUMNS:
        return dict(zip(names, event_hashes.EventHashes(types).content(rows)[:2], strict=True))
    return dict(zip(names, event_hashes.hashes_of(rows, types), strict=True))


_EVENT_COLUMNS = {*EXPORT_FORMAT.column_names, EXTRA_COLUMN}


def _checked(hashes: event_hashes.EventHashes, rows: pa.Table) -> dict[str, pa.Array]:
    made = event_hashes.hashed_rows(hashes, rows)
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
    hashes = event_hashes.EventHashes(_types(frame, columns))
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
    return named(event_hashes.SEND_ID).isNull() & named(event_hashes.ROW_ID).isNull()


def unread_text() -> Column:
    """The delivered text of an unreadable second rank time; else null."""
    later = EXPORT_FORMAT.rank_columns[1]
    return F.when(F.col(later).isNull(), F.get_json_object(EXTRA_COLUMN, f"$.{later}"))


KEPT, ADDED, REMOVED, CHANGED = "kept", "added", "removed", "changed"
_AT = ("event_date", "project_id", *event_hashes.KEY)


def with_event_keys(events: DataFrame) -> DataFrame:
    """The events with the hash of their meaning as `_hash_a`, and as key if they have no id; needs both ids."""
    meaning, nothing = F.col(MEANING_HASH), F.lit(0).cast("long")
    keys = {
        "_key_a": F.when(is_nameless(), meaning).otherwise(F.col("_key_a")),
        "_key_b": F.when(is_nameless(), nothing).otherwise(F.col("_key_b")),
    }
    return events.withColumns({HASH_A: meaning, HASH_B: nothing, **keys})


def with_keys(rows: DataFrame, key_columns: Sequence[str]) -> DataFrame:
    """The rows plus `_key_a`, `_key_b`: a hash of project_id and the columns that identify a row within its slice."""
    return with_row_hashes(rows, ("project_id", *key_columns), event_hashes.KEY)


def event_contents(events: DataFrame) -> DataFrame:
    """event_date, project_id, `_key_a`, `_key_b`, `_hash_a`, `_hash_b` of `with_event_keys`."""
    return with_event_keys(events).select(*_AT, HASH_A, HASH_B)


def held_keys(events: DataFrame) -> DataFrame:
    """event_date, project_id, KEY of events; without any id the key is the content, which no other day holds."""
    return events.select(*_AT)


def row_contents(rows: DataFrame, key_columns: Sequence[str], content_columns: Sequence[str]) -> DataFrame:
    """The columns of `event_contents`, for a table with identifying columns of its own."""
    return with_row_hashes(with_keys(rows, key_columns), content_columns).select(*_AT, HASH_A, HASH_B)


def key_changes(
    before: DataFrame, after: DataFrame, before_near: DataFrame, after_near: DataFrame, window_days: int
) -> DataFrame:
    """`_AT`, change (string), is_moved (boolean): one row per key of `before` or `after` (contents of the same slices).

    `before_near`, `after_near`: event_date, project_id, `_key_a`, `_key_b` of nearby slices. An added key has moved if another
    day at most `window_days` away held it before, a removed key if such a day holds it afterwards.
    """
    left = before.select(*_AT, F.struct(HASH_A, HASH_B).alias("_before"))
    right = after.select(*_AT, F.struct(HASH_A, HASH_B).alias("_after"))
    change = (
        F.when(F.col("_before").isNull(), ADDED)
        .when(F.col("_after").isNull(), REMOVED)
        .when(F.col("_before") == F.col("_after"), KEPT)
        .otherwise(CHANGED)
    )
    joined = left.join(right, on=list(_AT), how="full_outer").select(*_AT, change.alias("change"))
    moved = moved_keys(joined, before_near, after_near, window_days).withColumn("is_moved", F.lit(True))
    return joined.join(moved, on=list(_AT), how="left").withColumn("is_moved", F.coalesce("is_moved", F.lit(False)))


def moved_keys(changes: DataFrame, before_near: DataFrame, after_near: DataFrame, window_days: int) -> DataFrame:
    """`_AT` of the keys in `changes` (`_AT`, change) that moved; for the other arguments see `key_changes`."""
    names = ["project_id", *event_hashes.KEY]
    was = before_near.select(*names, F.col("event_date").alias("_was_day"), F.lit(ADDED).alias("change"))
    is_now = after_near.select(*names, F.col("event_date").alias("_was_day"), F.lit(REMOVED).alias("change"))
    elsewhere = was.unionByName(is_now)
    return (
        changes.join(elsewhere, on=[*names, "change"])
        .where(F.abs(F.datediff("_was_day", "event_date")).between(1, window_days))
        .select(*_AT)
        .distinct()
    )


SAME, DIFFERENT, ONLY_HERE, ONLY_THERE = "same", "different", "only here", "only there"
FEWER_HERE, MORE_HERE = "fewer here", "more here"
STATES = (SAME, ONLY_HERE, ONLY_THERE, DIFFERENT, FEWER_HERE, MORE_HERE)
BY_ID = ("_kind", "_id", "_sender")


def by_event_key(events: DataFrame) -> DataFrame:
    """project_id, KEY, event_date, `_what` (string: the event's meaning), `_name`: a side of a comparison of two tables."""
    name = F.coalesce(named(event_hashes.SEND_ID), named(event_hashes.ROW_ID))
    keyed = with_event_keys(events)
    return keyed.select(
        "project_id", *event_hashes.KEY, "event_date", F.col(HASH_A).cast("string").alias("_what"), name.alias("_name")
    )


def by_ids(events: DataFrame, columns: Collection[str], *, has_days: bool) -> DataFrame:
    """project_id, BY_ID (`_id` may be null), event_date, `_what` (string: the day, if `has_days`), `_name`: a list's side."""
    nothing = F.lit(None).cast("string")
    send_id = named(event_hashes.SEND_ID) if event_hashes.SEND_ID in columns else nothing
    row_id = named(event_hashes.ROW_ID) if event_hashes.ROW_ID in columns else nothing
    senders = [F.coalesce(value, F.lit("")) for name, value in named_sender().items() if name in columns]
    return events.select(
        "project_id",
        F.when(send_id.isNotNull(), event_hashes.SEND_ID).otherwise(event_hashes.ROW_ID).alias("_kind"),
        F.coalesce(send_id, row_id).alias("_id"),
        # A missing sender counts as a value. A row id identifies an event without it.
        F.when(send_id.isNotNull(), F.concat_ws(":", *senders)).otherwise("").alias("_sender"),
        "event_date",
        (F.col("event_date").cast("string") if has_days else nothing).alias("_what"),
        F.coalesce(send_id, row_id).alias("_name"),
    )


def presence(
    here: DataFrame, there: DataFrame, by: Sequence[str], first: date, last: date, *, is_counted: bool = False
) -> DataFrame:
    """project_id, day (null if neither side has one), state, name: one row per key of the days from `first` to `last`.

    Both sides are frames of `by_event_key` or `by_ids`; keys outside of the range are compared, not returned.
    `is_counted`: a key with more rows on one side is not SAME.
    """
    sides = [_of_keys(side, by, name, first, last) for side, name in ((here, "_here"), (there, "_there"))]
    joined = sides[0].join(sides[1], on=["project_id", *by], how="full_outer")
    here_day, there_day = F.col("_here_day"), F.col("_there_day")
    is_here, is_there = F.col("_here_rows").isNotNull(), F.col("_there_rows").isNotNull()
    is_known = (F.size("_here_what") > 0) & (F.size("_there_what") > 0)
    state = (
        F.when(~is_there, ONLY_HERE)
        .when(~is_here, ONLY_THERE)
        .when(is_known & ~F.arrays_overlap("_here_what", "_there_what"), DIFFERENT)
    )
    if is_counted:
        # Without days, a line of the list may belong to a row outside of the range.
        most_here = F.when(is_known, F.col("_here_rows_within")).otherwise(F.col("_here_rows"))
        state = state.when(F.col("_there_rows") > most_here, FEWER_HERE)
        state = state.when(F.col("_there_rows") < F.col("_here_rows_within"), MORE_HERE)
    day = F.coalesce(
        F.when(_within(here_day, first, last), here_day), F.when(_within(there_day, first, last), there_day)
    )
    is_dayless = ~is_here & there_day.isNull()
    return (
        joined.select(
            "project_id",
            day.alias("day"),
            state.otherwise(SAME).alias("state"),
            F.coalesce("_here_name", "_there_name").alias("name"),
            is_dayless.alias("_is_dayless"),
        )
        .where(F.col("day").isNotNull() | F.col("_is_dayless"))
        .drop("_is_dayless")
    )


def _of_keys(side: DataFrame, by: Sequence[str], name: str, first: date, last: date) -> DataFrame:
    day_within = F.when(_within(F.col("event_date"), first, last), F.col("event_date"))
    return side.groupBy("project_id", *by).agg(
        F.coalesce(F.min(day_within), F.min("event_date")).alias(f"{name}_day"),
        F.collect_set("_what").alias(f"{name}_what"),
        F.min("_name").alias(f"{name}_name"),
        F.count(F.lit(1)).alias(f"{name}_rows"),
        F.count(day_within).alias(f"{name}_rows_within"),
    )


def _within(day: Column, first: date, last: date) -> Column:
    return day.between(F.lit(first), F.lit(last))
