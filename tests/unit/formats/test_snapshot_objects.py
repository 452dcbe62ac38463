"""A snapshot is read whole or refused in one sentence that names the line; names say which day it is of."""

from __future__ import annotations

from datetime import date

import pytest

from pipeline_assets.formats.snapshot_lines import BadSnapshotError, SnapshotPart
from pipeline_assets.formats.snapshot_objects import SnapshotRow, parse_name, read_snapshot

CSV, JSONL = SnapshotPart.CSV, SnapshotPart.JSONL


@pytest.mark.parametrize(
    ("key", "means"),
    [
        ("dimensions/item/2026-02-02.csv", (date(2026, 2, 2), CSV)),
        ("dimensions/item/2026-02-02.jsonl", (date(2026, 2, 2), JSONL)),
        ("dimensions/item/2026-02-02_complete", (date(2026, 2, 2), SnapshotPart.MARKER)),
        ("dimensions/item/2026-02-30.csv", None),
        ("dimensions/item/2026-02-02.csv.gz", None),
        ("dimensions/item/2026-02-02.csv_complete", None),
        ("dimensions/item/more/2026-02-02.csv", None),
        ("dimensions/shop/2026-02-02.csv", None),
        ("dimensions/item/2026-02-02.CSV", None),
    ],
)
def test_a_name_says_day_and_kind_or_is_none_of_ours(key: str, means: object) -> None:
    assert parse_name("item", key) == means


def test_csv_and_json_lines_say_the_same() -> None:
    items = [("1", 'a, "b"\nc', "ACTIVE", '{"price":"9"}'), ("2", "", "INACTIVE", '{"price":""}')]
    csv = b'\xef\xbb\xbfprice,id, name ,status\r\n9,1,"a, ""b""\nc",ACTIVE\r\n\r\n,2,,INACTIVE\r\n'
    assert read_snapshot(csv, CSV) == [SnapshotRow(2, *items[0]), SnapshotRow(5, *items[1])]
    json = (
        b'{"id": 1, "name": "a, \\"b\\"\\nc", "status": "ACTIVE", "price": "9"}\n\n'
        b'{"price": "", "status": "INACTIVE", "name": "", "id": "2"}'
    )
    assert read_snapshot(json, JSONL) == [SnapshotRow(1, *items[0]), SnapshotRow(3, *items[1])]
    assert read_snapshot(b"id,name,status\n007,x,ACTIVE\n", CSV)[0].id == "007"
    assert read_snapshot(b'{"id":"1","name":null,"status":"A","tags":[2,1]}', JSONL)[0] == SnapshotRow(
        1, "1", None, "A", '{"tags":[2,1]}'
    )


HEAD = b"id,name,status\n"


@pytest.mark.parametrize(
    ("body", "part", "reason"),
    [
        (b"", CSV, "is empty: not even a header is there"),
        (HEAD, CSV, "holds no item"),
        (b"\n", JSONL, "holds no item"),
        (b"id,name\n1,a\n", CSV, "line 1: the header names no column status, only 'id, name'"),
        (b"id,name,status,id\n1,a,A,1\n", CSV, "line 1: the header names the column 'id' twice"),
        (HEAD + b"1,a,ACTIVE\n2,b,ACTIVE\n1,c,ACTIVE\n", CSV, "line 4: the id '1' is already on line 2"),
        (HEAD + b" ,a,ACTIVE\n", CSV, "line 2: id is empty"),
        (HEAD + b"1,a,\n", CSV, "line 2: status is empty or no text"),
        (HEAD + b"1,a\n", CSV, "line 2: has 2 fields, and the header names 3"),
        (HEAD + b"1,a,b,c\n", CSV, "line 2: has 4 fields, and the header names 3"),
        (HEAD + b'1,a,ACTIVE\n2,"b,ACTIVE\n3,c,ACTIVE\n', CSV, "line 3: a quote is not closed"),
        (HEAD + b"1,a,ACTIVE\n2,\xff,ACTIVE\n", CSV, "line 3: is not UTF-8"),
        (b'{"id":1,"name":"a","status":"A"}\n{"id":2,"na', JSONL, "line 2: is not whole JSON"),
        (b'{"id":1,"name":"a"}', JSONL, "line 1: has no status"),
        (b"[1]", JSONL, "line 1: is no JSON object"),
        (b'{"id":1.5,"name":"a","status":"A"}', JSONL, "line 1: id is neither text nor a whole number"),
        (b'{"id":true,"name":"a","status":"A"}', JSONL, "line 1: id is neither text nor a whole number"),
        (b'{"id":null,"name":"a","status":"A"}', JSONL, "line 1: id is neither text nor a whole number"),
        (b'{"id":1,"name":7,"status":"A"}', JSONL, "line 1: name is no text"),
        (b'{"id":1,"id":2,"name":"a","status":"A"}', JSONL, "line 1: names 'id' twice"),
        (b'{"id":1,"name":"a","status":"A","x":NaN}', JSONL, "line 1: is not whole JSON"),
        (
            b'{"id":1,"name":"a","status":"A"}\n{"id":2,"name":"b","status":"A","x":[-1e999]}',
            JSONL,
            "line 2: holds the number '-1e999', which is too large",
        ),
        (b'{"id":1,"name":"\\ud800","status":"A"}', JSONL, "line 1: holds half of a surrogate pair, which is no text"),
        (b'{"id":1,"name":"a","status":"A","x":' + b"[" * 100_000, JSONL, "line 1: is nested too deeply"),
    ],
)
def test_what_is_no_snapshot_is_refused_by_its_first_bad_line(body: bytes, part: SnapshotPart, reason: str) -> None:
    with pytest.raises(BadSnapshotError) as refused:
        read_snapshot(body, part)
    assert str(refused.value) == reason


def test_a_line_is_read_or_refused_however_deep_it_is_nested() -> None:
    """Reading and writing JSON give up at different depths, which depend on the interpreter: every depth around them is tried."""
    told = set()
    for depth in range(200, 1_200):
        body = b'{"id":1,"name":"a","status":"A","x":' + b"[" * depth + b"]" * depth + b"}"
        try:
            read_snapshot(body, JSONL)
        except BadSnapshotError as refused:
            told.add(str(refused))
    assert told == {"line 1: is nested too deeply"}
