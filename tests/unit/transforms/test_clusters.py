"""A task's rows come out by day in their order, for any number of days and in bounded memory."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable
from datetime import date, timedelta
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain import machine
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.transforms import write_objects
from pipeline_assets.transforms.write_objects import DayClusters

DAY = date(2026, 2, 2)
Row = tuple[str, int, int]
"""Project, days before DAY, number."""


def a_batch(rows: Iterable[Row], *, payload: str = "") -> pa.RecordBatch:
    listed = [
        {"project_id": project, "event_date": DAY - timedelta(days=back), "number": number, "payload": payload}
        for project, back, number in rows
    ]
    schema = pa.schema(
        [("project_id", pa.string()), ("event_date", pa.date32()), ("number", pa.int64()), ("payload", pa.string())]
    )
    return pa.RecordBatch.from_pylist(listed, schema)


def clustered(days: DayClusters, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    found = [one for batch in batches for one in days.add(batch)]
    found += days.rest()
    days.close()
    return found


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [
        (row["project_id"], (DAY - row["event_date"]).days, row["number"])
        for batch in batches
        for row in batch.to_pylist()
    ]


def assert_in_order(found: list[Row], given_rows: list[Row]) -> None:
    """Each day in one piece, its rows in order, none lost."""
    pieces = [key for key, _ in groupby(row[:2] for row in found)]
    assert len(pieces) == len(set(pieces))
    for key in set(pieces) | {row[:2] for row in given_rows}:
        assert [row for row in found if row[:2] == key] == [row for row in given_rows if row[:2] == key]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["1", "2"]), st.lists(st.integers(0, 5), min_size=1, max_size=6)), max_size=12),
    st.sampled_from([1, 200, 1 << 20]),
    st.sampled_from([3, 1000]),
)
def test_days_come_one_after_the_other_however_they_are_mixed(
    objects: list[tuple[str, list[int]]], held: int, many: int
) -> None:
    """Outcome: passed and held rows each have a day in one piece; only an opened day is in both."""
    given_rows: list[Row] = []
    batches = []
    for project, backs in objects:
        rows = [(project, back, len(given_rows) + place) for place, back in enumerate(backs)]
        given_rows += rows
        batches.append(a_batch(rows))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(write_objects, "_MANY_ROWS", many)
        days = DayClusters(held)
        passed = rows_of(one for batch in batches for one in days.add(batch))
        rest = rows_of(days.rest())
    days.close()
    assert_in_order(passed, [row for row in given_rows if row in passed])
    assert_in_order(rest, [row for row in given_rows if row not in passed])
    assert many == 3 or not {row[:2] for row in passed} & {row[:2] for row in rest}


def test_the_usual_day_is_not_held_back() -> None:
    days = DayClusters(1)
    (first,) = days.add(a_batch([("1", 0, 1), ("1", 0, 2), ("1", 3, 3)]))
    (second,) = days.add(whole := a_batch([("1", 0, 4)]))
    assert rows_of([first]) == [("1", 0, 1), ("1", 0, 2)]
    assert second is whole
    assert rows_of(days.rest()) == [("1", 3, 3)]
    days.close()


def test_another_day_with_most_rows_of_a_large_batch_is_opened_once() -> None:
    """Outcome: days pass as they come, until one would be opened again; late rows wait for the end."""
    days = DayClusters()
    passed = [
        list(days.add(a_batch([("1", back, place) for place in range(1000)] + [("1", late, 0)] * 2)))
        for back, late in ((1, 1), (0, 1), (1, 0))
    ]
    assert [{row[1] for row in rows_of(found)} for found in passed] == [{1}, {0}, {0}]
    assert [len(rows_of(found)) for found in passed] == [1002, 1000, 2]
    rest = rows_of(days.rest())
    assert rest == [("1", 1, 0)] * 2 + [("1", 1, place) for place in range(1000)]
    days.close()


def test_what_is_held_is_bounded_and_comes_back_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that give several runs and windows."""
    monkeypatch.setattr(write_objects, "_OUT_BYTES", 40_000)
    monkeypatch.setattr(write_objects, "_PART_BYTES", 10_000)
    chance = random.Random(7)
    batches, given_rows = [], []
    for number in range(40):
        rows = [("1", chance.choice([0, 0, 0, 5, *range(1, 60)]), number * 1000 + place) for place in range(50)]
        given_rows += rows
        batches.append(a_batch(rows, payload="x" * 100))
    held = 64 * 1024
    days = DayClusters(held)
    found, most = [], 0
    for batch in batches:
        found += days.add(batch)
        most = max(most, days.held_bytes)
    assert most < held
    rest = list(days.rest())
    days.close()
    assert days.spilled_bytes > 2 * held
    assert max(batch.nbytes for batch in rest) < 60_000
    assert_in_order(rows_of([*found, *rest]), given_rows)


def test_thousands_of_days_come_in_few_batches() -> None:
    rows = [("1", number, number) for number in range(3000)]
    found = clustered(DayClusters(), [a_batch(rows[start : start + 100]) for start in range(0, 3000, 100)])
    assert len(found) < 30
    assert_in_order(rows_of(found), rows)


def test_a_full_disk_is_named_as_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", full)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp")
    days = DayClusters(1)
    with pytest.raises(LakehouseError, match=r"/tmp: is full .*spark.local.dir"), machine.naming_the_disk():
        list(days.add(a_batch([("1", 0, 1), ("1", 0, 2), ("1", 3, 3)])))
