"""A history of intervals is read whole or refused in one sentence that names the line; it has one spelling."""

from __future__ import annotations

import io
import json
from datetime import date

import pytest

from pipeline_assets.formats.interval_objects import Interval, read_intervals
from pipeline_assets.formats.snapshot_lines import BadSnapshotError, SnapshotPart

CSV, JSONL = SnapshotPart.CSV, SnapshotPart.JSONL
DAY = date(2026, 2, 10)
LONGEST = 1000
"""Bytes of a line."""
HEADER = "id,status,active_start_date,active_end_date"


def _intervals(body: bytes, part: SnapshotPart = CSV) -> list[Interval]:
    return list(read_intervals(io.BytesIO(body), part, LONGEST, DAY))


def _read(*lines: str, header: str = HEADER) -> list[tuple[object, ...]]:
    rows = _intervals("\n".join([header, *lines, ""]).encode())
    rows.sort(key=lambda row: (row.id, row.active_start_date))
    return [(r.id, r.status, str(r.active_start_date), str(r.active_end_date), r.attributes) for r in rows]


def test_open_intervals_end_with_the_day_and_those_that_say_the_same_are_one() -> None:
    assert _read("1,ACTIVE,2026-01-01,2026-01-31", "1,ACTIVE,2026-02-01,", "2,GONE,2026-01-01,9999-12-31") == [
        ("1", "ACTIVE", "2026-01-01", "2026-02-10", None),
        ("2", "GONE", "2026-01-01", "2026-02-10", None),
    ]
    gap = _read("1,ACTIVE,2026-02-02,", "1,ACTIVE,2026-01-01,2026-01-31")
    assert [one[2:4] for one in gap] == [("2026-01-01", "2026-01-31"), ("2026-02-02", "2026-02-10")]
    more = _read("1,ACTIVE,2026-01-01,2026-01-31,Bern", "1,ACTIVE,2026-02-01,,Basel", header=f"{HEADER},site")
    assert [one[4] for one in more] == ['{"site":"Bern"}', '{"site":"Basel"}'], "further columns are kept"


def test_both_formats_say_the_same() -> None:
    fields = {"id": 1, "status": "ACTIVE", "active_start_date": "2026-01-01", "active_end_date": None}
    (row,) = _intervals(json.dumps(fields).encode(), JSONL)
    assert [(row.id, row.status, str(row.active_start_date), str(row.active_end_date), row.attributes)] == _read(
        "1,ACTIVE,2026-01-01,"
    )


def test_white_space_around_id_and_status_makes_no_other_item_and_is_told() -> None:
    first, second = _intervals(
        f"{HEADER},site\n 1,ACTIVE,2026-01-01,2026-01-31, Bern\n1,ACTIVE\u200b,2026-02-01,, Bern\n2,A,2026-02-01,,\n".encode()
    )
    assert {first, second} == {
        Interval(2, "1", "ACTIVE", date(2026, 1, 1), DAY, '{"site":" Bern"}', is_trimmed=True),
        Interval(4, "2", "A", date(2026, 2, 1), DAY, '{"site":""}'),
    }


def test_ids_that_share_a_hash_are_not_taken_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline_assets.formats.interval_objects.hash", lambda _: 7, raising=False)
    rows = _read("1,A,2026-01-01,2026-01-31", "2,A,2026-01-10,", "1,A,2026-02-01,", "3,A,2026-02-01,2026-02-02")
    assert {one[:4] for one in rows} == {
        ("1", "A", "2026-01-01", "2026-02-10"),
        ("2", "A", "2026-01-10", "2026-02-10"),
        ("3", "A", "2026-02-01", "2026-02-02"),
    }


def test_intervals_are_told_while_much_of_the_object_is_unread() -> None:
    lines = [f"{number},A,2026-02-01," for number in range(50_000)]
    stored = io.BytesIO("\n".join([HEADER, *lines, ""]).encode())
    told = read_intervals(stored, CSV, LONGEST, DAY)
    assert next(told).id == "0"
    assert stored.tell() < len(stored.getvalue()) / 20
    assert sum(1 for _ in told) == 49_999


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "holds no interval"),
        (["1,ACTIVE,,"], "line 2: active_start_date is empty"),
        (["1,ACTIVE,2026-02-30,"], "line 2: active_start_date '2026-02-30' is no day such as 2026-02-02"),
        (["1,ACTIVE,20260201,"], "line 2: active_start_date '20260201' is no day such as 2026-02-02"),
        (["1,ACTIVE,2026-02-02,2026-02-01"], "line 2: active_end_date 2026-02-01 lies before active_start_date 2026-02-02"),
        (
            ["1,ACTIVE,2026-02-11,"],
            "line 2: active_start_date 2026-02-11 lies after 2026-02-10, the day that the delivery tells of",
        ),
        (
            ["1,A,2026-02-05,", "2,A,2026-02-01,", "1,B,2026-02-01,2026-02-05"],
            "line 4: the interval of the id '1' overlaps with the one on line 2",
        ),
        ([",ACTIVE,2026-02-01,"], "line 2: id is empty"),
        (["1,,2026-02-01,"], "line 2: status is empty or no text"),
        (["1,ACTIVE,2026-02-01"], "line 2: has 3 fields, and the header names 4"),
        (
            ["1,ACTIVE,2026-02-01,", f"2,{'A' * LONGEST},2026-02-01,"],
            "line 3: has more than 1,000 bytes, which TIDEMARK_MAX_LINE_BYTES allows",
        ),
    ],
)  # fmt: skip
def test_what_is_no_history_is_refused_with_its_line(lines: list[str], reason: str) -> None:
    with pytest.raises(BadSnapshotError) as caught:
        _read(*lines)
    assert str(caught.value) == reason


def test_a_header_without_a_column_is_refused() -> None:
    with pytest.raises(BadSnapshotError, match="line 1: the header names no column active_end_date"):
        _read("1,ACTIVE,2026-02-01", header="id,status,active_start_date")
