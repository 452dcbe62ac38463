"""A refining task leaves out exactly the losers, and keeps late rows in few files of their own."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.events import REFINED_EVENTS, event_hashes
from pipeline_assets.transforms import refine_task
from pipeline_assets.transforms.data_files import DataFileWriter
from pipeline_assets.transforms.file_rows import SliceFile, as_bytes
from pipeline_assets.transforms.refine_task import (
    RECEIVED,
    ArrivalParts,
    Input,
    Refining,
    SliceWork,
    file_parts,
    work_of,
)
from tests.support.builders import PROJECT
from tests.unit.transforms.test_write_objects import DAY, LAYOUT, Shelf, a_line, columns_of, rows_of, run, zipped

RAW, BACKFILL = "raw/regular_events", "raw/backfill_events"
KEY = Slice(DAY, PROJECT)
REFINED = replace(LAYOUT, **columns_of(REFINED_EVENTS), row_group_bytes=4096, sort_by=REFINED_EVENTS.write_order)


def a_raw(objects: int, lines: int, days: int = 1) -> tuple[Shelf, list[str]]:
    """A shelf with raw files of some objects, and their paths."""
    made = [[a_line(100 * n + at, DAY - timedelta(days=at % days)) for at in range(lines)] for n in range(objects)]
    shelf = Shelf({f"o{n}": zipped(*of_object) for n, of_object in enumerate(made)})
    run(shelf, *[PROJECT] * objects)
    return shelf, sorted(shelf.files)


def refined(shelf: Shelf, paths: list[str], losers: dict[str, list[tuple[str, int]]]) -> list[dict[str, Any]]:
    """Rows of the refined files; raw's files come from the shelf, which `open` finds by path."""
    target = Shelf({})
    work = [SliceWork(KEY, [Input(RAW, [path], as_bytes(_table(losers.get(path, []))))], 0) for path in paths]
    told = Refining({RAW: Shelf(shelf.files)}, {RAW: "regular"}, event_hashes(), REFINED, target)(work)
    if told.wrong:
        raise LookupError(*told.wrong.values())
    described = [json.loads(file) for file in told.files]
    assert {one["file-path"].removeprefix("shelf://") for one in described} == set(target.files)
    rows = rows_of(target)
    assert sum(one["record-count"] for one in described) == len(rows) == sum(told.tasks)
    return rows


def _table(losers: list[tuple[str, int]]) -> pa.Table:
    schema = pa.schema([("_object_key", pa.string()), ("_line_number", pa.int32())])
    return pa.table([[one[at] for one in losers] for at in range(2)], schema=schema)


def rewritten(
    body: bytes, columns: dict[str, Callable[[pa.Table, pa.Field], Any]], most_rows: int | None = None
) -> bytes:
    """A data file with other values in columns."""
    rows = pq.read_table(io.BytesIO(body)).slice(0, most_rows)
    for name, values in columns.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), values(rows, rows.schema.field(at)))
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return sink.getvalue()


@settings(max_examples=25)
@given(st.sets(st.tuples(st.sampled_from(["o0", "o1", "o2"]), st.integers(1, 40)), max_size=60))
def test_exactly_the_losers_are_left_out(lost: set[tuple[str, int]]) -> None:
    """Outcome: all other rows of three objects, unchanged, with hashes and source."""
    shelf, paths = a_raw(3, 40, days=3)
    before = {(row["_object_key"], row["_line_number"]): row for row in rows_of(shelf)}
    assert {row["event_date"] for row in before.values()} == {DAY - timedelta(days=shift) for shift in range(3)}
    elsewhere = {path: [("o9", 1), *sorted(lost)] for path in paths}

    rows = refined(shelf, paths, elsewhere)

    assert {(row["_object_key"], row["_line_number"]) for row in rows} == before.keys() - lost
    for row in rows:
        origin = before[row["_object_key"], row["_line_number"]]
        assert row == {name: origin[name] for name in REFINED.field_ids if name != "_source"} | {"_source": "regular"}


def test_a_row_that_is_not_what_was_parsed_is_named() -> None:
    """Scenario: a column changed under its hash, then a hash alone. Outcome: both are named, with the file."""
    shelf, (path,) = a_raw(1, 40)
    assert len(refined(shelf, [path], {})) == 40
    for name, value in (("city", "Elsewhere"), ("_hash_b", 1), ("_meaning_hash", 1), ("_key_a", 1)):

        def one_changed(rows: pa.Table, of: pa.Field, value: Any = value) -> Any:
            return pc.if_else(pc.equal(rows["_line_number"], 17), pa.scalar(value, of.type), rows[of.name])

        changed = rewritten(shelf.files[path], {name: one_changed})
        with pytest.raises(LookupError, match=f"{path} holds line 17 of o0 with another hash"):
            refined(Shelf({}, files={path: changed}), [path], {})


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 30)), min_size=1, max_size=60), st.integers(1, 16))
def test_files_are_spread_and_none_is_read_twice(sizes: list[tuple[int, int]], parallelism: int) -> None:
    """Outcome: each file is in one part; hardly more parts than tasks; a slice of at most a share is in two at most."""
    days = [DAY - timedelta(days=day) for day, _ in sizes]
    files = [SliceFile(RAW, Slice(day, PROJECT), f"f{n}", sizes[n][1], 1) for n, day in enumerate(days)]
    parts = file_parts(files, parallelism)
    assert sorted(file.path for part in parts for file in part) == sorted(file.path for file in files)
    assert len(parts) <= 2 * parallelism + 6
    weight: Counter[Slice] = Counter()
    for file in files:
        weight[file.key] += file.size_bytes + (256 << 10)
    small = [key for key, own in weight.items() if own <= weight.total() / parallelism]
    assert all(sum(any(file.key == key for file in part) for part in parts) <= 2 for key in small)


def test_each_task_is_told_its_files_its_losers_and_what_is_held() -> None:
    """Outcome: files by slice and table, losers of that slice and table alone, and held files."""
    other = Slice(DAY - timedelta(days=1), PROJECT)
    first, second, third = (SliceFile(RAW, KEY, name, 1, rows) for rows, name in enumerate("abc", 5))
    backfill, compared = SliceFile(BACKFILL, KEY, "d", 1, 30), SliceFile(RAW, other, "e", 1, 2)
    held = SliceFile("refined/events", other, "f", 1, 1)
    lost = _table([("o1", 1)])

    work = work_of([[first, second], [third, backfill, compared]], {(KEY, BACKFILL): lost}, {other: [held]})

    assert work == [
        [SliceWork(KEY, [Input(RAW, ["a", "b"])], 11, [])],
        [
            SliceWork(KEY, [Input(RAW, ["c"]), Input(BACKFILL, ["d"], as_bytes(lost))], 37, []),
            SliceWork(other, [Input(RAW, ["e"])], 2, ["f"]),
        ],
    ]


FIRST = datetime(2026, 2, 2, 9, tzinfo=UTC)


def _arrived(days: list[int | None]) -> pa.Table:
    """Rows that arrived so many days after the first day; None: without a time."""
    times = [None if day is None else FIRST + timedelta(days=day, hours=day % 14) for day in days]
    return pa.table({RECEIVED: pa.array(times, pa.timestamp("us", tz="UTC")), "n": np.arange(len(days))})


def _divided(days: list[int | None]) -> dict[int, list[int | None]]:
    """Part -> the days of its rows; asserts that every row is in one part."""
    rows = _arrived(days)
    found = dict(ArrivalParts.of(len(days), [rows]).divide(rows))
    assert sorted(at for part in found.values() for at in part["n"].to_pylist()) == list(range(len(days)))
    return {number: [days[at] for at in part["n"].to_pylist()] for number, part in sorted(found.items())}


@settings(max_examples=200)
@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=80), st.integers(1, 20))
def test_parts_are_few_spans_of_days(days: list[int | None], least: int) -> None:
    """Outcome: a day lies in one of at most nine consecutive parts; each but the last has an eighth and the least rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refine_task, "_LEAST_ROWS", least)
        parts = list(_divided(days).values())
    spans = [sorted(-1 if day is None else day for day in part) for part in parts]
    assert all(one[-1] < other[0] for one, other in pairwise(spans))
    assert len(parts) <= 9
    assert all(len(part) >= max(least, len(days) / 8) for part in parts[:-1])
    assert len(days) > least or len(parts) <= 1


def test_few_late_rows_are_apart_and_a_small_slice_is_not_divided() -> None:
    """Scenario: eight late rows; a held-back day of 12,000; 8,000 rows. Outcome: late ones apart; both apart; one part."""
    late: list[int | None] = [1, 1, 2, 3, 3, 30, 60, 99]
    assert [Counter(part) for part in _divided([0] * 12_000 + late).values()] == [Counter({0: 12_000}), Counter(late)]
    assert [len(part) for part in _divided([0] * 9 + [5] * 12_000 + [6] * 8).values()] == [12_009, 8]
    assert [len(part) for part in _divided([0] * 8_000 + late).values()] == [8_008]


def test_parts_have_files_of_their_own_and_share_the_memory_of_one() -> None:
    """Outcome: a file for each part, rows in order, and never more than one row group in memory."""
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
    parts = {number: [at for at in range(60) if max(0, at % 10 - 7) == number] for number in range(3)}
    assert {number: sorted(ids) for number, ids in by_part.items()} == parts
    groups = [file.num_row_groups for file in files]
    assert groups[0] > 2 * max(groups[1:])
