"""Raw rows as a DataFrame, for readers that write no files: all of some slices, or those that do not lose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms.refine_files import Losers
from resources.iceberg.metadata import slices_condition

_TYPES = {
    "event_date": pa.date32(),
    "project_id": pa.string(),
    "_source": pa.string(),
    "_object_key": pa.string(),
    "_line_number": pa.int32(),
}
PLACE = tuple(_TYPES)
"""Columns that identify a raw row."""


def raw_rows(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice], columns: Sequence[str]) -> DataFrame:
    """The rows of these slices in both raw tables: `columns`, `_source`."""
    tables = {table.key: table for table in RAW_TABLES.values()}
    return with_source(
        lambda name: runtime.lakehouse.read(tables[name], pins[name]).where(slices_condition(tables[name], slices)),
        columns,
    )


def with_source(inputs: Callable[[str], DataFrame], columns: Sequence[str]) -> DataFrame:
    """The union of the rows of both raw tables (key -> rows): `columns`, `_source`."""
    named = [
        inputs(table.key).select(*columns, F.lit(source.value).alias("_source")) for source, table in RAW_TABLES.items()
    ]
    return reduce(DataFrame.unionByName, named)


def winning_rows(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice], losers: Losers) -> DataFrame:
    """The rows of these slices in both raw tables that do not lose, with the columns of refined.events."""
    names = [column.name for column in REFINED_EVENTS.columns]
    raw = raw_rows(runtime, pins, slices, [name for name in names if name != "_source"])
    return without(raw.select(*names), {at: rows for at, rows in losers.items() if at[0] in slices})


def without(raw: DataFrame, losers: Losers) -> DataFrame:
    """The rows that do not lose, of rows with PLACE."""
    if not losers:
        return raw
    # Object and line identify a row only within a slice: another day may still hold rows of an older version of the object.
    return raw.join(losing(raw.sparkSession, losers), on=list(PLACE), how="left_anti").select(*raw.columns)


def losing(spark: SparkSession, losers: Losers) -> DataFrame:
    """PLACE of the rows that lose."""
    nothing = pa.table({name: pa.array([], kind) for name, kind in _TYPES.items()})
    return spark.createDataFrame(pa.concat_tables([nothing, *(_placed(at, rows) for at, rows in losers.items())]))


def _placed(at: tuple[Slice, str], rows: pa.Table) -> pa.Table:
    (key, source), count = at, rows.num_rows
    fixed = {"event_date": key.event_date, "project_id": key.project_id, "_source": source}
    columns = [
        pa.repeat(pa.scalar(fixed[name], kind), count) if name in fixed else rows[name].cast(kind)
        for name, kind in _TYPES.items()
    ]
    return pa.Table.from_arrays(columns, names=list(_TYPES))
