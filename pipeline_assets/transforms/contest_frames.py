"""The contest of rows that only a DataFrame holds: Spark brings the rows of a key together, and numpy decides them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.contest import FATES, decide
from pipeline_assets.transforms.contested_columns import READ_TYPES, contested_batch
from pipeline_assets.transforms.event_keys import KEY

LINE = ("_source", "_object_key", "_line_number")
"""Columns that identify a raw row within its event day and project."""
_FATES = pa.schema(
    [
        ("event_date", pa.date32()),
        ("project_id", pa.string()),
        ("_source", pa.string()),
        ("_object_key", pa.string()),
        ("_line_number", pa.int32()),
        ("outcome", pa.string()),
    ]
)
_FATES_DDL = "event_date date, project_id string, _source string, _object_key string, _line_number int, outcome string"


def fates(raw: DataFrame, precedence: Sequence[Source], window_days: int) -> DataFrame:
    """event_date, project_id, LINE, outcome (`RowFate`) of each raw row that has a key.

    `raw` holds event_date, project_id, LINE, IDENTITY and the hashes of the content, of the days to decide and of those within
    the window around them. A task holds the narrow rows of its share of the keys.
    """
    names = [name for name in ("event_date", "project_id", "_source", *READ_TYPES) if name in raw.columns]
    narrow = raw.select(*names).repartition(*KEY)
    return narrow.mapInArrow(_Deciding(tuple(precedence), window_days), _FATES_DDL)


@dataclass(frozen=True)
class _Deciding:
    precedence: Sequence[Source]
    window_days: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [contested_batch(pa.Table.from_batches([batch])) for batch in batches if batch.num_rows]
        if not parts:
            return
        decided = decide(pa.concat_tables(parts).combine_chunks(), self.precedence, self.window_days)
        outcome = pa.array([fate.value for fate in FATES]).take(pa.array(decided.fates))
        rows = decided.rows
        named = {"event_date": rows["_day"].cast(pa.date32()), "outcome": outcome}
        columns = [named[name] if name in named else rows[name] for name in _FATES.names]
        yield from pa.Table.from_arrays(columns, schema=_FATES).to_batches()
