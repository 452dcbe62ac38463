"""Parsing whole columns at once equals parsing line by line, or declines."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pipeline_assets.formats.amplitude.line_blocks import ColumnParser
from pipeline_assets.formats.amplitude.lines import COLUMN_NAMES, LineParser
from pipeline_assets.formats.base import EXTRA_COLUMN, ParsedLine, RefusedLine
from pipeline_assets.transforms import parse
from tests.support.builders import PROJECT, an_event
from tests.support.read_objects import Objects, a_share, read
from tests.unit.formats.test_event_lines import REAL_OBJECTS, members, nested

DAY = date(2026, 2, 2)
MAX_LINE_BYTES = 100_000
LINES = LineParser(PROJECT, DAY, MAX_LINE_BYTES)
COLUMNS = ColumnParser(PROJECT, DAY, MAX_LINE_BYTES)
TIME = '"event_time":"2026-02-02 10:00:00.000000"'


def parsed(lines: list[bytes], columns: ColumnParser = COLUMNS) -> dict[str, pa.Array] | None:
    return columns.parse(b"".join(b"%b\n" % line for line in lines), len(lines))


def taken(lines: list[bytes], project: str = PROJECT, day: date = DAY) -> bool:
    """Whether the fast path took the lines; asserts that it equals the line parser."""
    columns = parsed(lines, ColumnParser(project, day, MAX_LINE_BYTES))
    if columns is None:
        return False
    answers = [LineParser(project, day, MAX_LINE_BYTES).parse(line) for line in lines]
    rows = [row for row in answers if isinstance(row, ParsedLine)]
    assert len(rows) == len(lines)
    for place, name in enumerate(COLUMN_NAMES):
        assert columns[name].to_pylist() == [row.values[place] for row in rows], name
    times = [row.values[COLUMN_NAMES.index("event_time")] for row in rows]
    assert columns["event_date"].to_pylist() == [time.date() for time in times]
    assert all(row.extra is None for row in rows)
    return True


@settings(max_examples=600)
@given(st.lists(st.lists(members(), max_size=4), min_size=1, max_size=3))
@example([['"client_event_time":"0000-01-01 00:00:00.000000"']])
@example([['"client_event_time":"1582-10-10 00:00:00.000000"']])
@example([['"client_event_time":"2026-02-30 00:00:00.000000"']])
@example([['"city":"a"', '"city":null']])
@example([['"data":{"a":"\\ud83d"}']])
def test_what_is_taken_is_what_the_line_parser_reads(lines: list[list[str]]) -> None:
    taken([("{" + ",".join([TIME, *line]) + "}").encode("utf-8", "surrogatepass") for line in lines])


@pytest.mark.parametrize("member", [
    f'"app":{int(PROJECT) + 1}', '"event_time":null', '"event_time":"2026-02-04 00:00:00.000000"', '"new":1',
    '"event_id":1.0', '"city":"\\ud83d"', '"data":' + "[" * 600 + "]" * 600, '"library":"' + "x" * MAX_LINE_BYTES + '"',
    '"event_time":"2026-02-02"', '"processed_time":"2026-02-02T10:00:00Z"',
])  # fmt: skip
def test_a_line_that_needs_a_look_is_left_to_the_line_parser(member: str) -> None:
    good = ("{" + TIME + "}").encode()
    assert taken([good, good])
    assert parsed([good, ("{" + TIME + "," + member + "}").encode()]) is None


def test_a_line_holds_one_event_and_an_event_one_line() -> None:
    """A decoder of many lines takes values wherever they end; those of another line are rejected."""
    good = ("{" + TIME + "}").encode()
    within = [("{" + TIME + ',"data":[{}').encode(), b",{}]}"]
    for odd in ([good + good, b""], [*within, good + good], [good + good, *within], [b"", good + good], [good, b"  "]):
        assert parsed(odd) is None
    assert taken([good + b" ", good])
    assert taken([good + b"\r", b" " + good])


def test_invalid_utf8_inside_of_a_bag_is_found() -> None:
    assert parsed([("{" + TIME + ',"data":{"a":"@"}}').encode().replace(b"@", b"\xff")]) is None


def test_times_before_1970_lie_on_their_day() -> None:
    assert taken([b'{"event_time":"1969-12-31 23:59:59.999999"}', b'{"event_time":"1900-01-01 00:00:00.000000"}'])
    for text in (b"1899-12-31 23:59:59.999999", b"0001-01-01 00:00:00.000000"):
        assert parsed([b'{"event_time":"%b"}' % text]) is None


def test_bags_delivered_as_text_are_taken_and_text_that_holds_none_is_left_to_the_line_parser() -> None:
    """Outcome: bags as text are as fast, and a column may hold both forms."""
    bags = [r'{"a":"\\"}', r'"{\"a\":1}"', r'"{\"a\":\"\\ud83d\"}"', '""', "null"]
    lines = [f'{{{TIME},"event_properties":{bag},"sample_rate":"{{"}}'.encode() for bag in bags]
    assert taken(lines)
    assert parsed([*lines, f'{{{TIME},"event_properties":"no bag"}}'.encode()]) is None


def test_empty_texts_of_times_are_taken_as_nulls() -> None:
    lines = [b'{%b,"processed_time":"%b"}' % (TIME.encode(), text) for text in (b"", b"2026-02-02 10:00:00.000000")]
    assert taken(lines)
    assert parsed([b'{"event_time":""}']) is None


def test_the_deepest_line_allowed_is_taken() -> None:
    assert taken([nested(499).replace(b'"event_time":"2026-02-02 10:00:00"', TIME.encode())])


def test_usual_events_and_the_vendors_own_are_taken() -> None:
    """Otherwise the agreement would be vacuous."""
    assert taken([json.dumps(an_event(city=f"ü{n}", event_properties={"n": n})).encode() for n in range(50)])
    for path in REAL_OBJECTS:
        lines = gzip.decompress(path.read_bytes()).splitlines()
        assert taken(lines, str(json.loads(lines[0])["app"]), date(2030, 1, 1))


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*["good"] * 3, "bad", "blank", "extra", "long bag"]), max_size=60), st.booleans())
def test_odd_lines_among_good_ones_keep_their_place(kinds: list[str], ends_with_a_break: bool) -> None:
    """Every line ends as a row, a refused line or a blank, with its number and offset, in order."""
    forms = {
        "good": lambda n: json.dumps(an_event(event_id=n)).encode(),
        "bad": lambda n: b'{"event_type":"open","device_id":"d1"}',
        "blank": lambda n: b"  ",
        "extra": lambda n: json.dumps(an_event(event_id=n) | {"new": n}).encode(),
        "long bag": lambda n: json.dumps(an_event(event_id=n, event_properties={"x": "y" * 2000})).encode() + b"\r",
    }
    # An object of bad lines alone, or with a bad end, is refused whole (tests/unit/transforms/test_whole_objects.py).
    assume("bad" not in kinds or {*kinds} - {"bad", "blank"})
    ends_with_a_break = ends_with_a_break or kinds[-1:] == ["bad"]
    lines = [forms[kind](number) for number, kind in enumerate(kinds, 1)]
    text = b"\n".join(lines) + (b"\n" if ends_with_a_break and lines else b"")
    work = parse.ObjectWork(Objects({"k": gzip.compress(text)}), 1 << 24, MAX_LINE_BYTES)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parse, "_BATCH_ROWS", 16)
        patched.setattr(parse, "_ODD_LINES", 3)
        told = read(work, [a_share("k")])
    rows, refused = told.rows, {row["line_number"]: row for row in told.refused}
    (summary,) = told.summaries
    good = [number for number, kind in enumerate(kinds, 1) if kind not in ("bad", "blank")]
    assert [row["_line_number"] for row in rows] == good
    for row in rows:
        parsed = LINES.parse(lines[row["_line_number"] - 1].removesuffix(b"\r"))
        assert isinstance(parsed, ParsedLine)
        assert [row[name] for name in COLUMN_NAMES] == parsed.values
        assert row[EXTRA_COLUMN] == parsed.extra
        assert row["event_date"] == datetime(2026, 2, 2, tzinfo=UTC).date()
    assert list(refused) == [number for number, kind in enumerate(kinds, 1) if kind == "bad"]
    for number, row in refused.items():
        assert text[row["byte_offset"] : row["byte_offset"] + row["byte_length"]] == lines[number - 1]
        answer = LINES.parse(lines[number - 1])
        assert isinstance(answer, RefusedLine)
        assert (row["reason"], row["detail"]) == (answer.reason.value, answer.detail)
    counted = [summary[name] for name in ("lines", "rows", "quarantined", "blank")]
    odd = [kinds.count(kind) for kind in ("bad", "blank")]
    assert counted == [len(lines) - (lines[-1:] == [b""]), len(good), *odd]
