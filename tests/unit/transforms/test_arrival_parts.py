"""Late rows of a slice are apart from the day that brought most of them, in a bounded number of files."""

from __future__ import annotations

import io
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.transforms import refine_task
from pipeline_assets.transforms.data_files import DataFileWriter
from pipeline_assets.transforms.refine_task import RECEIVED, ArrivalParts
from tests.support.builders import PROJECT
from tests.unit.transforms.test_refine_files import REFINED
from tests.unit.transforms.test_write_objects import DAY, Shelf

FIRST = datetime(2026, 2, 2, 9, tzinfo=UTC)


def _rows(days: list[int | None]) -> pa.Table:
    """Rows that arrived so many days after the first day; None: without a time."""
    times = [None if day is None else FIRST + timedelta(days=day, hours=day % 14) for day in days]
    return pa.table({RECEIVED: pa.array(times, pa.timestamp("us", tz="UTC")), "n": np.arange(len(days))})


def _divided(days: list[int | None]) -> dict[int, list[int | None]]:
    """Part -> the days of its rows; every row is in one part."""
    rows = _rows(days)
    found = dict(ArrivalParts.of(len(days), [rows]).divide(rows))
    assert sorted(at for part in found.values() for at in part["n"].to_pylist()) == list(range(len(days)))
    return {number: [days[at] for at in part["n"].to_pylist()] for number, part in sorted(found.items())}


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=80), st.integers(1, 20))
def test_parts_are_few_spans_of_days(days: list[int | None], least: int) -> None:
    """Outcome: a day lies in one part, parts follow one another, are nine at most, and each but the last one has an eighth of the
    rows and the least number of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refine_task, "_LEAST_ROWS", least)
        parts = list(_divided(days).values())
    spans = [sorted(-1 if day is None else day for day in part) for part in parts]
    assert all(one[-1] < other[0] for one, other in pairwise(spans))
    assert len(parts) <= 9
    assert all(len(part) >= max(least, len(days) / 8) for part in parts[:-1])
    assert len(days) > least or len(parts) <= 1


def test_few_late_rows_are_apart_and_a_small_slice_is_not_divided() -> None:
    """Scenario: 12,000 rows of a day, eight of later days; 12,000 of a day that the exporter held back, after some in time; 8,000
    and eight. Outcome: the late ones apart; what came before the many with them; one part."""
    late: list[int | None] = [1, 1, 2, 3, 3, 30, 60, 99]
    assert [Counter(part) for part in _divided([0] * 12_000 + late).values()] == [Counter({0: 12_000}), Counter(late)]
    assert [len(part) for part in _divided([0] * 9 + [5] * 12_000 + [6] * 8).values()] == [12_009, 8]
    assert [len(part) for part in _divided([0] * 8_000 + late).values()] == [8_008]


def test_parts_have_files_of_their_own_and_share_the_memory_of_one() -> None:
    """Scenario: rows of three parts arrive in turns, most of them of the first. Outcome: a file for each, rows in order; together
    they never held more than a row group, so the first file has several of them, and the others few."""
    shelf, written = Shelf({}), []
    writer = DataFileWriter(REFINED, shelf)
    for at in range(60):
        row: dict[str, Any] = dict.fromkeys(REFINED.field_ids)
        row |= {"event_date": DAY, "project_id": PROJECT, "event_id": at, "city": "x" * 200}
        written += writer.add(pa.RecordBatch.from_pylist([row], schema=REFINED.schema), max(0, at % 10 - 7))
    written += writer.finish()

    files = [pq.ParquetFile(io.BytesIO(body)) for body in shelf.files.values()]
    assert shelf.most_open == len(files) == len(written) == 3
    by_part: dict[int, list[int]] = {}
    for file, told in zip(files, written, strict=True):
        ids = file.read()["event_id"].to_pylist()
        assert json.loads(told)["record-count"] == len(ids)
        by_part[max(0, ids[0] % 10 - 7)] = ids
    assert {number: sorted(ids) for number, ids in by_part.items()} == {
        number: [at for at in range(60) if max(0, at % 10 - 7) == number] for number in range(3)
    }
    groups = [file.num_row_groups for file in files]
    assert groups[0] > 2 * max(groups[1:])
