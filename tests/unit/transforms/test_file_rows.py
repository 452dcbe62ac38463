"""Rows that only Spark can read reach the functions for files: slice by slice."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import date

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.file_rows import SliceFile, reduced_batches

_DAY = date(2026, 2, 2)
_ROWS = st.lists(
    st.tuples(st.sampled_from([_DAY, date(2026, 2, 3)]), st.sampled_from(["1", "2"]), st.integers(0, 9)), max_size=20
)


def _told(file: SliceFile, tables: Iterator[pa.Table]) -> tuple[str, Slice, list[tuple[int, None]]]:
    found = [(row["n"], row["lacking"]) for rows in tables for row in rows.to_pylist()]
    return file.table, file.key, found


@given(_ROWS, st.integers(1, 5))
def test_each_slice_of_a_partition_is_reduced_once(rows: list[tuple[date, str, int]], size: int) -> None:
    """Outcome: one result for each slice, from all of its rows; a missing column is null."""
    rows = sorted(rows)
    schema = pa.schema([("event_date", pa.date32()), ("project_id", pa.string()), ("n", pa.int32())])
    whole = pa.table([list(column) for column in zip(*rows, strict=True)] or [[], [], []], schema=schema)
    types = {"n": "bigint", "lacking": "string"}
    told = [
        pickle.loads(row["result"])
        for batch in reduced_batches(
            "raw/regular_events", "event_date", types, _told, whole.to_batches(max_chunksize=size)
        )
        for row in batch.to_pylist()
    ]
    expected: dict[Slice, list[tuple[int, None]]] = {}
    for day, project, number in rows:
        expected.setdefault(Slice(day, project), []).append((number, None))
    assert told == [("raw/regular_events", key, numbers) for key, numbers in expected.items()]
