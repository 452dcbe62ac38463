"""A snapshot is read whole or refused in one sentence with the line; names give its day."""

from __future__ import annotations

import io
import json
from datetime import date

import pytest

from pipeline_assets.formats.snapshot_lines import (
    BadSnapshotError,
    Interval,
    SnapshotItem,
    SnapshotPart,
    parse_name,
    read_intervals,
    read_snapshot,
)

CSV, JSONL = SnapshotPart.CSV, SnapshotPart.JSONL
LONGEST = 200_000
"""Bytes of a line."""


def items_of(body: bytes, part: SnapshotPart) -> list[SnapshotItem]:
    return list(read_snapshot(io.BytesIO(body), part, LONGEST, DAY))


@pytest.mark.parametrize(("key", "means"), [
    ("dimensions/item/2026-02-02.csv", (date(2026, 2, 2), CSV)),
    ("dimensions/item/2026-02-02.jsonl", (date(2026, 2, 2), JSONL)),
    ("dimensions/item/2026-02-02_complete", (date(2026, 2, 2), SnapshotPart.MARKER)),
    ("dimensions/item/2026-02-30.csv", None),
    ("dimensions/item/2026-02-02.csv.gz", None),
    ("dimensions/item/2026-02-02.csv_complete", None),
    ("dimensions/item/more/2026-02-02.csv", None),
    ("dimensions/shop/2026-02-02.csv", None),
    ("dimensions/item/2026-02-02.CSV", None),
])  # fmt: skip
def test_a_name_says_day_and_kind_or_is_none_of_ours(key: str, means: object) -> None:
    assert parse_name("item", key) == means


def test_csv_and_json_lines_say_the_same() -> None:
    items = [("1", 'a, "b"\nc', "ACTIVE", '{"price":"9"}'), ("2", "", "INACTIVE", '{"price":""}')]
    csv = b'\xef\xbb\xbfprice,id, name ,status\r\n9,1,"a, ""b""\nc",ACTIVE\r\n\r\n,2,,INACTIVE\r\n'
    assert items_of(csv, CSV) == [SnapshotItem(2, *items[0]), SnapshotItem(5, *items[1])]
    first = b'{"id": 1, "name": "a, \\"b\\"\\nc", "status": "ACTIVE", "price": "9"}\n\n'
    second = b'{"price": "", "status": "INACTIVE", "name": "", "id": "2"}'
    assert items_of(first + second, JSONL) == [SnapshotItem(1, *items[0]), SnapshotItem(3, *items[1])]
    assert items_of(b"id,name,status\n007,x,ACTIVE\n", CSV)[0].id == "007"
    (tagged,) = items_of(b'{"id":"1","name":null,"status":"A","tags":[2,1]}', JSONL)
    assert tagged == SnapshotItem(1, "1", None, "A", '{"tags":[2,1]}')


HEAD = b"id,name,status\n"
TOO_LONG = f"has more than {LONGEST:,} bytes, which TIDEMARK_MAX_LINE_BYTES allows"


def test_white_space_around_id_and_status_is_left_out_and_told_and_everything_else_stays_as_spelled() -> None:
    assert items_of(HEAD + b' 7,\ta b ,"ACTIVE\xe2\x80\x8b "\n8,c,IN USE\n', CSV) == [
        SnapshotItem(2, "7", "\ta b ", "ACTIVE", None, is_trimmed=True),
        SnapshotItem(3, "8", "c", "IN USE", None),
    ]
    (item,) = items_of(b'{"id": "\\u00a07\\n", "name": " ", "status": "A", "more": " x "}', JSONL)
    assert item == SnapshotItem(1, "7", " ", "A", '{"more":" x "}', is_trimmed=True)
    assert not items_of(b'{"id": 7, "name": "", "status": "A"}', JSONL)[0].is_trimmed


def test_a_name_that_is_no_text_is_kept_as_its_json_text() -> None:
    for delivered, kept in (("7", "7"), ('{"de":"Köln"}', '{"de": "Köln"}'), ("true", "true"), ("null", None)):
        (item,) = items_of(f'{{"id":1,"name":{delivered},"status":"A"}}'.encode(), JSONL)
        assert item.name == kept


def test_a_line_of_as_many_bytes_as_are_allowed_is_read() -> None:
    for end in (b"", b"\n", b"\r\n"):
        rest = LONGEST - len(b"1,,A")
        (item,) = items_of(HEAD + b"1," + b"n" * 99_999 + b",A\n" + end, CSV)
        assert len(item.name or "") == 99_999
        body = b'{"id":1,"name":"","status":"A","x":"' + b"n" * (rest - 34) + b'"}'
        assert len(body) == LONGEST
        assert items_of(body + end, JSONL)[0].line == 1


def test_items_are_told_while_most_of_the_object_is_unread() -> None:
    """A reader that asked for everything at once would be at the end after the first item."""
    for body, part in (
        (HEAD + b"".join(b"%d,n,ACTIVE\n" % number for number in range(50_000)), CSV),
        (b"".join(b'{"id":%d,"name":"n","status":"A"}\n' % number for number in range(50_000)), JSONL),
    ):
        stored = io.BytesIO(body)
        items = read_snapshot(stored, part, LONGEST, DAY)
        assert next(items).id == "0"
        assert stored.tell() < len(body) / 20
        assert sum(1 for _ in items) == 49_999
        assert not stored.closed


@pytest.mark.parametrize(("body", "part", "reason"), [
    (b"\n", JSONL, "holds no item"),
    (b"id,name\n1,a\n", CSV, "line 1: the header names no column status, only 'id, name'"),
    (HEAD + b"\x7f,a,ACTIVE\n", CSV, "line 2: id is empty"),
    (HEAD + "1,a,\u200b\n".encode(), CSV, "line 2: status is empty or no text"),
    (HEAD + b"1,a,ACTIVE\n 1 ,b,ACTIVE\n", CSV, "line 3: the id '1' is already on line 2"),
    (HEAD + b"1,a,b,c\n", CSV, "line 2: has 4 fields, and the header names 3"),
    (HEAD + b"1,a,A\n2,a,A\n3,a,A\n9,\xc3", CSV, "line 5: is not UTF-8"),
    (HEAD + b"1,a,ACTIVE\n2," + b'"b\n",' * 70_000 + b"A\n", CSV, f"line 3: {TOO_LONG}"),
    (HEAD + b"1,a,ACTIVE\n2,b," + b"A" * 100_000 + "\u00e9".encode() * 60_000 + b"\n", CSV, f"line 3: {TOO_LONG}"),
    (b'{"id":1,"name":"a","status":"A"}\n{"id":2,"na', JSONL, "line 2: is not whole JSON"),
    (b'{"id":1,"name":"a"}', JSONL, "line 1: has no status"),
    (b"[1]", JSONL, "line 1: is no JSON object"),
    (b'{"id":true,"name":"a","status":"A"}', JSONL, "line 1: id is neither text nor a whole number"),
    (b'{"id":null,"name":"a","status":"A"}', JSONL, "line 1: id is neither text nor a whole number"),
    (b'{"id":1,"id":2,"name":"a","status":"A"}', JSONL, "line 1: names 'id' twice"),
    (b'{"id":1,"name":"a","status":"A","x":NaN}', JSONL, "line 1: is not whole JSON"),
    (
        b'{"id":2,"name":"b","status":"A","x":[-1e999]}',
        JSONL,
        "line 1: holds the number '-1e999', which is too large",
    ),
    (b'{"id":1,"name":"\\ud800","status":"A"}', JSONL, "line 1: holds half of a surrogate pair, which is no text"),
    (b'{"id":1,"name":"a","status":"A","x":' + b"[" * 100_000, JSONL, "line 1: is nested too deeply"),
])  # fmt: skip
def test_what_is_no_snapshot_is_refused_by_its_first_bad_line(body: bytes, part: SnapshotPart, reason: str) -> None:
    """Beside the cases of docs/bad-inputs.md (unit/test_bad_inputs_beside_exports.py)."""
    with pytest.raises(BadSnapshotError) as refused:
        items_of(body, part)
    assert str(refused.value) == reason


def test_a_line_is_read_or_refused_however_deep_it_is_nested() -> None:
    """JSON's reader and writer give up at different depths, by interpreter: all depths around them are tried."""
    told = set()
    for depth in range(200, 1_200):
        body = b'{"id":1,"name":"a","status":"A","x":' + b"[" * depth + b"]" * depth + b"}"
        try:
            items_of(body, JSONL)
        except BadSnapshotError as refused:
            told.add(str(refused))
    assert told == {"line 1: is nested too deeply"}


DAY = date(2026, 2, 10)
LONGEST_INTERVAL = 1000
"""Bytes of a line."""
HEADER = "id,status,active_start_date,active_end_date"


def _intervals(body: bytes, part: SnapshotPart = CSV) -> list[Interval]:
    return list(read_intervals(io.BytesIO(body), part, LONGEST_INTERVAL, DAY))


def _read(*lines: str, header: str = HEADER) -> list[tuple[object, ...]]:
    rows = _intervals("\n".join([header, *lines, ""]).encode())
    rows.sort(key=lambda row: (row.id, row.active_start_date))
    return [(r.id, r.status, str(r.active_start_date), str(r.active_end_date), r.attributes) for r in rows]


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


@pytest.mark.parametrize(("lines", "reason"), [
    (["1,ACTIVE,20260201,"], "line 2: active_start_date '20260201' is no day such as 2026-02-02"),
    (["1,A,2026-02-05,", "2,A,2026-02-01,", "1,B,2026-02-01,2026-02-05"],
     "line 4: the interval of the id '1' overlaps with the one on line 2"),
    (["1,ACTIVE,2026-02-11,"],
     "line 2: active_start_date 2026-02-11 lies after 2026-02-10, the day that the delivery tells of"),
])  # fmt: skip
def test_what_is_no_history_is_refused_with_its_line(lines: list[str], reason: str) -> None:
    """Beside the cases of docs/bad-inputs.md, which also hold what becomes of good intervals."""
    with pytest.raises(BadSnapshotError) as caught:
        _read(*lines)
    assert str(caught.value) == reason
