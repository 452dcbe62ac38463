"""Raw rows as a DataFrame, for readers that write no files: all of some slices, or those that do not lose."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms.contest_frames import LINE
from pipeline_assets.transforms.refine_files import Losers
from resources.iceberg.metadata import slices_condition

_AT = ("event_date", "project_id", *LINE)


def raw_rows(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice], columns: Sequence[str]) -> DataFrame:
    """The rows of these slices in both raw tables: event_date, project_id, `columns`, `_source`."""
    frames = {
        source: runtime.lakehouse.read(table, pins[table.key]).where(slices_condition(table, slices))
        for source, table in RAW_TABLES.items()
    }
    return with_source(frames, ["event_date", "project_id", *columns])


def with_source(frames: Mapping[Source, DataFrame], columns: Sequence[str]) -> DataFrame:
    """The union of the rows of all sources: `columns`, `_source`."""
    named = [frame.select(*columns, F.lit(source.value).alias("_source")) for source, frame in frames.items()]
    return reduce(DataFrame.unionByName, named)


def winning_rows(runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice], losers: Losers) -> DataFrame:
    """The rows of these slices in both raw tables that do not lose, with the columns of refined.events."""
    names = [column.name for column in REFINED_EVENTS.columns]
    raw = raw_rows(
        runtime, pins, slices, [name for name in names if name not in ("event_date", "project_id", "_source")]
    )
    told = [_placed(at, rows) for at, rows in losers.items() if at[0] in slices]
    if not told:
        return raw.select(*names)
    lost = runtime.spark.createDataFrame(pa.concat_tables(told))
    # Object and line identify a row only within a slice: another day may still hold rows of an older version of the object.
    return raw.join(lost, on=list(_AT), how="left_anti").select(*names)


def _placed(at: tuple[Slice, str], rows: pa.Table) -> pa.Table:
    (key, source), count = at, rows.num_rows
    return pa.table(
        {
            "event_date": pa.repeat(pa.scalar(key.event_date, pa.date32()), count),
            "project_id": pa.repeat(pa.scalar(key.project_id), count),
            "_source": pa.repeat(pa.scalar(source), count),
            "_object_key": rows["_object_key"].cast(pa.string()),
            "_line_number": rows["_line_number"],
        }
    )
