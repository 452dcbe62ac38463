"""Every line becomes its event, or one named refusal; the fast and the lenient parser agree."""

from __future__ import annotations

import gzip
import json
import random
import re
import time
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.deliveries import QuarantineReason as Reason
from pipeline_assets.formats.amplitude.columns import DELIVERED_KEYS, NEEDED_COLUMNS, VENDOR_COLUMNS
from pipeline_assets.formats.amplitude.lines import COLUMN_NAMES, MAX_DEPTH, LineParser, parse_leniently
from pipeline_assets.formats.base import ColumnType, ParsedLine, RefusedLine
from pipeline_assets.formats.registry import EXPORT_FORMAT
from tests.support.builders import PROJECT
from tests.support.cases import cases

MAX_LINE_BYTES = 100_000
PARSER = LineParser(PROJECT, date(2026, 2, 2), MAX_LINE_BYTES)


def test_there_are_55_columns() -> None:
    assert len(COLUMN_NAMES) == len(VENDOR_COLUMNS) == len(DELIVERED_KEYS) == 55


BAGS = ("data", "event_properties", "global_user_properties", "group_properties", "groups", "plan", "user_properties")


@pytest.mark.parametrize("bag", [
    r'{"$revenue": 20,  "note":"5\" \\ \u00e9 é 👍"}',
    r'{"nested":"{\"a\":\"\\u0041\"}","n":1e400,"n":12345678901234567890}',
    r'{"half":"\ud83d"}',
    "{}",
])  # fmt: skip
def test_a_bag_delivered_as_text_is_the_bag(bag: str) -> None:
    """Outcome: bags as text, with escapes undone once, give the same row."""
    for column in BAGS:
        as_object = read(a_line(f'"{column}":{bag}'))
        for text in (json.dumps(bag), json.dumps(f" {bag}\n"), json.dumps(bag, ensure_ascii=False)):
            assert read(a_line(f'"{column}":{text}')) == as_object


@pytest.mark.parametrize("text", [
    '"[object Object]"', r'"{\"cut\":"', r'"[{\"revenue\":5}]"', '"5"', json.dumps(json.dumps("{}")), r'"{\"a\":NaN}"',
    json.dumps('{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH),
])  # fmt: skip
def test_text_that_holds_no_bag_is_null_and_counted_by_its_column(text: str) -> None:
    parsed = read(a_line(f'"event_properties":{text}'))
    kept = f'{{"event_properties":{text}}}'
    assert (value(parsed, "event_properties"), parsed.unreadable, parsed.extra) == (None, ("event_properties",), kept)


REAL_OBJECTS = sorted((Path(__file__).parents[2] / "data" / "airbyte_source_amplitude").glob("*.gz"))
EVENT_TIME = '"event_time":"2026-02-02 10:00:00"'


def a_line(*members: str, event_time: str = EVENT_TIME) -> bytes:
    """A line whose members are JSON text, which `json.dumps` would never write."""
    return ("{" + ",".join(part for part in (event_time, *members) if part) + "}").encode()


def nested(levels: int, *, key: str = "data") -> bytes:
    """A line whose deepest value lies `levels` deep, its own braces included."""
    return a_line(f'"{key}":' + "[" * (levels - 1) + "]" * (levels - 1))


def read(line: bytes) -> ParsedLine:
    parsed = PARSER.parse(line)
    assert isinstance(parsed, ParsedLine), parsed
    return parsed


def value(parsed: ParsedLine, column: str) -> Any:
    return parsed.values[COLUMN_NAMES.index(column)]


REFUSED = {
    Reason.BAD_JSON: [
        b"{", b"nonsense", a_line()[:-1], a_line() + b" {}", a_line() + "\u00a0".encode(), b"\xef\xbb\xbf" + a_line(),
        b'{"a":1,}', b"[1", b"NaN", a_line('"location_lat":NaN'), a_line('"location_lat":-Infinity'),
        a_line('"data":{"a":NaN}'), a_line('"data":{"a":01}'), a_line('"city":"a\x01b"'),
        a_line('"data":{"a":"a\x01b"}'), a_line('"city":["a\x01"]'), a_line(r'"city":"\x"'),
    ],
    Reason.NOT_AN_OBJECT: [b"[1]", b'"text"', b"null", b'["\\ud83d"]', b"9" * 5000],
    Reason.INVALID_UTF8: [
        a_line('"city":"?"').replace(b"?", b"\xff"), a_line('"data":{"a":"?"}').replace(b"?", b"\xff"),
        a_line('"?":1').replace(b"?", b"\xff"), a_line('"data":"?"').replace(b"?", b"\xed\xa0\xbd"),
    ],
    Reason.TOO_DEEP: [
        nested(MAX_DEPTH + 1), nested(MAX_DEPTH + 1, key="city"), nested(MAX_DEPTH + 1, key="unknown"), nested(40_000),
        b"[" * 50_000,
    ],
    Reason.LINE_TOO_LONG: [b" " * (MAX_LINE_BYTES + 1), a_line(f'"city":"{"x" * MAX_LINE_BYTES}"')],
    Reason.VALUE_OUT_OF_RANGE: [a_line('"app":9223372036854775808')],
    Reason.VALUE_UNREADABLE: [
        a_line('"app":1.5'), a_line('"app":"10001 or so"'), a_line('"server_upload_time":"2022:05:27 06:00:00.047099"'),
        a_line('"server_upload_time":1770000000'),
    ],
    Reason.PROJECT_MISMATCH: [a_line('"app":10002'), a_line('"app":"10002"')],
    Reason.EVENT_TIME_MISSING: [
        a_line(event_time=""), a_line(event_time='"event_time":null'), a_line(event_time='"event_time":""'),
    ],
    Reason.EVENT_TIME_UNREADABLE: [
        a_line(event_time='"event_time":"soon"'), a_line(event_time='"event_time":1770000000'),
        a_line(event_time='"event_time":"0001-01-01T00:00:00+23:00"'),
        a_line(event_time='"event_time":"0001-01-01T00:00:00Z"'),
        a_line(event_time='"event_time":"1899-12-31 23:59:59.999999"'),
    ],
    Reason.EVENT_TIME_IN_FUTURE: [
        a_line(event_time='"event_time":"2026-02-04 00:00:00"'),
        a_line(event_time='"event_time":"2026-02-03T23:00:00-01:00"'),
    ],
}  # fmt: skip
REFUSALS = [(line, reason) for reason, lines in REFUSED.items() for line in lines]


@pytest.mark.parametrize(("line", "reason"), REFUSALS, ids=[f"{reason}-{i}" for i, (_, reason) in enumerate(REFUSALS)])
def test_every_kind_of_bad_line_has_its_reason(line: bytes, reason: Reason) -> None:
    refused = PARSER.parse(line)
    assert isinstance(refused, RefusedLine), refused
    assert refused.reason is reason
    assert refused.detail
    refused.detail.encode("utf-8")  # a lone surrogate in a detail would fail the whole job when it is stored


def test_every_reason_for_a_line_is_held_by_an_example() -> None:
    gzips = {Reason.EMPTY_OBJECT, Reason.TRUNCATED_GZIP, Reason.NOT_GZIP, Reason.CRC_ERROR, Reason.TRAILING_GARBAGE}
    for_objects = gzips | {Reason.OBJECT_TOO_LARGE, Reason.NOT_AN_EXPORT, Reason.CUT_OFF}
    assert {reason for _, reason in REFUSALS} == set(Reason) - for_objects


TIMES = [
    ("2026-02-02 10:00:00", datetime(2026, 2, 2, 10)),
    ("2026-02-02T10:00:00Z", datetime(2026, 2, 2, 10)),
    ("2026-02-02 10:00:00.1", datetime(2026, 2, 2, 10, 0, 0, 100_000)),
    ("2026-02-02 10:00:00.000001", datetime(2026, 2, 2, 10, 0, 0, 1)),
    ("2026-02-02 10:00:00.123456000", datetime(2026, 2, 2, 10, 0, 0, 123_456)),
    ("2026-02-02T00:30:00+01:00", datetime(2026, 2, 1, 23, 30)),
    ("2026-02-02T00:30:00-0130", datetime(2026, 2, 2, 2, 0)),
    ("0001-01-01 00:00:00", datetime(1, 1, 1)),
]
VALUES = {
    "client_event_time": [(f'"{text}"', at.replace(tzinfo=UTC)) for text, at in TIMES],
    "city": [
        ('"a"', "a"), ('""', ""), ("null", None), (r'"\ud83d\ude00"', "😀"), (r'"a\u0000\"\\"', 'a\0"\\'),
        (r'"x","\u0063ity":"a"', "a"), ("1.50", "1.50"), ("true", "true"), ('{"a" : 1}', '{"a" : 1}'),
        ("9" * 5000, "9" * 5000), ('1,"city":"b"', "b"),
    ],
    "event_id": [
        ('"x","event_id":1', 1), ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)), ("12", 12),
        ('"12"', 12), ('" -12 "', -12), ("1.0", 1), ("1.7e12", 1_700_000_000_000), ('"9223372036854775807.0"', 2**63 - 1),
    ],
    "location_lat": [("1", 1.0), ("-1.25e2", -125.0), ('"52.5"', 52.5), ('".5"', 0.5)],
    "paying": [("false", False), ('"true"', True), ('"False"', False)],
    "data": [
        ("{}", "{}"), ("null", None), (" null ", None), ('"null"', '"null"'),
        (' { "b" : 1.0,\t"b":[ ] } ', '{ "b" : 1.0,\t"b":[ ] }'),
        ('{"city":1,"City":2,"a.b":3}', '{"city":1,"City":2,"a.b":3}'), (r'{"a":"\ud83d"}', r'{"a":"\ud83d"}'),
        (r'{"a":"\u00fc\/ü"}', r'{"a":"\u00fc\/ü"}'), (r'"{\"half\":\"\ud83d\"}"', r'{"half":"\ud83d"}'),
    ],
    "event_properties": [('""', '""'), ('" "', '" "'), ("[]", "[]")],
    "sample_rate": [('"{}"', '"{}"'), ("null", None)],
    "amplitude_attribution_ids": [('"a"', '"a"')],
    "app": [('"10001"', 10001)],
}  # fmt: skip
"""Column -> texts of its value, and what is read."""
VALUES_BY_ID = {f"{column}:{text[:40]}": (column, text, value) for column, of in VALUES.items() for text, value in of}


@cases(("column", "text", "expected"), VALUES_BY_ID)
def test_a_value_is_read_as_its_column_says(column: str, text: str, expected: Any) -> None:
    parsed = read(a_line(f'"{column}":{text}'))
    assert value(parsed, column) == expected
    assert type(value(parsed, column)) is type(expected)
    assert parsed.extra is None
    others = {name: v for name, v in zip(COLUMN_NAMES, parsed.values, strict=True) if v is not None}
    assert others.keys() <= {column, "event_time"}


UNREADABLE = [
    '"event_id":9223372036854775808', '"event_id":-9223372036854775809', '"event_id":18446744073709551616',
    '"event_id":"9223372036854775808"', f'"event_id":{"9" * 5000}', '"event_id":1e999999999',
    '"event_id":1e99999999999999999999', '"event_id":1.5', '"event_id":1e-999999999', '"event_id":"twelve"',
    '"event_id":"١٢"', '"event_id":true', '"event_id":{}', '"location_lat":"1_0"', '"location_lat":"nan"',
    '"location_lat":"Infinity"', '"location_lat":1e400', '"location_lat":false', '"paying":1', '"paying":"yes"',
    r'"paying":"\ud83d"', r'"client_event_time":"\ud83d"', '"client_event_time":1770000000',
    '"client_event_time":"2026-02-30 00:00:00"', '"client_event_time":"2026-02-02"',
    '"client_event_time":"0000-01-01 00:00:00"', '"client_event_time":"10000-01-01 00:00:00"',
    '"client_event_time":"0001-01-01T00:00:00+23:00"', '"client_event_time":"9999-12-31T23:59:59-01:00"',
]  # fmt: skip


@pytest.mark.parametrize("member", UNREADABLE, ids=[member[:40] for member in UNREADABLE])
def test_a_value_that_nothing_rests_on_is_null_and_its_text_is_kept(member: str) -> None:
    """The line stays: such a column decides neither key, nor day, nor first rank."""
    key, _, text = member.partition(":")
    column = key.strip('"')
    parsed = read(a_line(member, '"zeta":1', '"city":"a"'))
    assert (value(parsed, column), value(parsed, "city")) == (None, "a")
    assert parsed.unreadable == (column,)
    assert parsed.extra == f'{{{key}:{text},"zeta":1}}'


def test_only_what_key_day_and_first_rank_rest_on_refuses_a_line() -> None:
    """Text is always read; of all 55 columns only these three refuse the line when unreadable."""
    needed = {"app", "event_time", "server_upload_time"}
    for key, column in DELIVERED_KEYS.items():
        members = [f'"{key}":["no value of it"]']
        parsed = PARSER.parse(a_line(*members, event_time="" if column == "event_time" else EVENT_TIME))
        assert isinstance(parsed, RefusedLine) == (column in needed), column
        if isinstance(parsed, ParsedLine):
            is_text = VENDOR_COLUMNS[column] in (ColumnType.STRING, ColumnType.JSON)
            assert parsed.unreadable == (() if is_text else (column,))
    roles = EXPORT_FORMAT.identity.names, EXPORT_FORMAT.rank_columns
    assert needed <= {"event_time", *roles[0], roles[1][0]} == NEEDED_COLUMNS


def test_an_empty_text_is_null_but_in_a_text_column() -> None:
    for key, column in DELIVERED_KEYS.items():
        if column == "event_time":
            continue
        for unknown in ("", '"unknown":1'):
            parsed = read(a_line(f'"{key}":""', unknown))
            kept = {ColumnType.STRING: "", ColumnType.JSON: '""'}.get(VENDOR_COLUMNS[column])
            assert (value(parsed, column), parsed.unreadable) == (kept, ())
            assert parsed.extra == ('{"unknown":1}' if unknown else None)


def test_a_kept_text_takes_no_delivered_key_and_none_takes_its_own() -> None:
    """`schema` is the one typed column whose name may also be an unknown key, beside `$schema`."""
    both = read(a_line('"$schema":"v1"', '"schema":7'))
    assert (value(both, "schema"), both.extra) == (None, '{"$schema":"v1","schema":7}')
    for key in ("$schema", "schema"):
        assert read(a_line(f'"{key}":"v1"')).extra == '{"schema":"v1"}'


@pytest.mark.parametrize("unknown", ["", '"unknown":1'], ids=["fast", "lenient"])
def test_a_finer_fraction_is_cut_and_never_rounded_into_another_day(unknown: str) -> None:
    event_time, client = EVENT_TIME[:-1] + '.999999999"', '"client_event_time":"2026-02-02T10:00:00.1234567Z"'
    parsed = read(a_line(client, unknown, event_time=event_time))
    second = datetime(2026, 2, 2, 10, 0, 0, tzinfo=UTC)
    assert value(parsed, "client_event_time") == second.replace(microsecond=123_456)
    assert value(parsed, "event_time") == second.replace(microsecond=999_999)
    assert parsed.unreadable == ()


@pytest.mark.parametrize("text", ["2026-02-03 23:59:59.999999", "2026-02-04T00:30:00+01:00", "2019-01-01 00:00:00"])
def test_a_day_after_arrival_and_any_time_before_are_good(text: str) -> None:
    read(a_line(event_time=f'"event_time":"{text}"'))


EXTRAS = [
    (['"z":1', '"a": {"x" : 1.0} '], '{"a":{"x" : 1.0},"z":1}'),
    (['"unknown":null'], '{"unknown":null}'),
    (['"unknown":1', '"unknown":2'], '{"unknown":2}'),
    ([r'"unknown":"\ud83d"'], r'{"unknown":"\ud83d"}'),
    ([r'"k\ud83d" : [ 1 ]', r'"k\ud83e":2'], r'{"k\ud83d":[ 1 ],"k\ud83e":2}'),
    (['"ü":"ü"'], r'{"\u00fc":"ü"}'),
    (['"City":"a"'], '{"City":"a"}'),
    (['"$city":"a"'], '{"$city":"a"}'),
    ([f'"unknown":{"9" * 5000}'], '{"unknown":' + "9" * 5000 + "}"),
    ([r'"k\ud83d":' + "9" * 5000], r'{"k\ud83d":' + "9" * 5000 + "}"),
]


@pytest.mark.parametrize(("members", "extra"), EXTRAS, ids=[row[0][0][:30] for row in EXTRAS])
def test_unknown_keys_are_kept_byte_for_byte_in_key_order(members: list[str], extra: str) -> None:
    for order in (members, members[::-1] if members[0][:9] != members[-1][:9] else members):
        parsed = read(a_line(*order))
        assert parsed.extra == extra
        json.loads(extra, parse_int=str)
        assert sum(v is not None for v in parsed.values) == 1


ALIASES = [
    (['"insert_id":"a"'], "a", None),
    (['"$insert_id":"b"', '"insert_id":"a"'], "b", '{"insert_id":"a"}'),
    (['"$insert_id":null', '"insert_id":"a"'], "a", None),
    (['"$insert_id":null', '"insert_id":null'], None, None),
]


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("members", "insert_id", "extra"), ALIASES)
def test_the_key_with_the_dollar_wins_and_nothing_is_lost(
    members: list[str], insert_id: str | None, extra: str | None, is_reversed: bool
) -> None:
    parsed = read(a_line(*(members[::-1] if is_reversed else members)))
    assert (value(parsed, "insert_id"), parsed.extra) == (insert_id, extra)


def test_a_lone_surrogate_in_a_string_column_is_replaced() -> None:
    parsed = read(a_line(r'"city":"x\ud83dy\ude00"', r'"region":"\udead"', r'"data":["\ud83d"]'))
    assert (value(parsed, "city"), value(parsed, "region"), value(parsed, "data")) == ("x�y�", "�", r'["\ud83d"]')


@pytest.mark.parametrize("key", ["data", "city", "unknown", r"k\ud83d"])
def test_the_deepest_line_allowed_is_read_by_every_path(key: str) -> None:
    read(nested(MAX_DEPTH, key=key))


def test_brackets_in_text_are_not_depth() -> None:
    brackets = "[{" * 2000
    parsed = read(a_line(rf'"city":"{brackets}\"{brackets}\\"', f'"sample_rate":"{brackets}"'))
    assert value(parsed, "sample_rate") == f'"{brackets}"'
    siblings = "[" + ",".join(["{}"] * 2000) + "]"
    assert value(read(a_line(f'"data":{siblings}')), "data") == siblings


def test_a_line_of_exactly_the_bound_is_read_and_its_other_columns_are_null() -> None:
    line = a_line()
    assert sum(v is not None for v in read(line + b" " * (MAX_LINE_BYTES - len(line))).values) == 1


def test_every_field_of_the_real_events_equals_the_source() -> None:
    seen = 0
    for path in REAL_OBJECTS:
        project, arrived, _ = path.name.split("_")
        parser = LineParser(project, date.fromisoformat(arrived), MAX_LINE_BYTES)
        for line in gzip.decompress(path.read_bytes()).splitlines():
            parsed = parser.parse(line)
            assert isinstance(parsed, ParsedLine), parsed
            assert parsed.extra is None
            source = json.loads(line)
            assert source.keys() <= DELIVERED_KEYS.keys()
            for key, column in DELIVERED_KEYS.items():
                expected, actual = source.get(key), value(parsed, column)
                if expected is not None and VENDOR_COLUMNS[column] is ColumnType.TIMESTAMP:
                    assert actual == datetime.fromisoformat(expected).replace(tzinfo=UTC)
                elif expected is not None and VENDOR_COLUMNS[column] is ColumnType.JSON:
                    assert json.loads(actual) == expected
                    assert f'"{key}": {actual}'.encode() in line
                else:
                    assert actual == expected, column
            seen += 1
    assert seen == 8


_PLAIN = st.characters(exclude_characters='"\\', min_codepoint=32, exclude_categories=["Cs"])
_ODD_TEXTS = (r"\ud83d", r"\ud83d\ude00", r"\u0000", "null", "true", "12", "1.0", r"a\/b", r"\x")
_TEXTS = st.one_of(
    st.text(max_size=8).map(json.dumps),
    st.text(_PLAIN, max_size=8).map('"{}"'.format),
    st.sampled_from([f'"{text}"' for text in _ODD_TEXTS] + ['"']),
)
_NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True).filter(str.isascii),
    st.sampled_from(["-0", "0.0", "1.0", "1e3", "01", "NaN", "1e400", "5e-324", "2.2250738585072011e-308"]),
)
_INSTANTS = st.one_of(
    st.datetimes(min_value=datetime(1, 1, 1)).map(lambda t: f'"{t.isoformat(" ")}"'),
    st.from_regex(
        r'"[0-9]{4}-(0[1-9]|1[012])-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,9})?(Z|[+-][01][0-9]:?[0-5][0-9])?"',
        fullmatch=True,
    ).filter(str.isascii),
    st.sampled_from([f'"{text}"' for text, _ in TIMES]),
)
_SCALARS = st.one_of(_TEXTS, _NUMBERS, _INSTANTS, st.sampled_from(["null", "true", "false"]))
_JSON_TEXTS = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: "[" + " , ".join(parts) + "]"),
        st.lists(st.tuples(_TEXTS, inner), max_size=3).map(lambda ps: "{" + ",".join(f"{k} :{v}" for k, v in ps) + "}"),
    ),
    max_leaves=6,
)
_BY_KIND = {
    ColumnType.STRING: _TEXTS, ColumnType.LONG: _NUMBERS, ColumnType.TIMESTAMP: _INSTANTS, ColumnType.DOUBLE: _NUMBERS,
    ColumnType.BOOLEAN: st.sampled_from(["true", "false"]), ColumnType.JSON: _JSON_TEXTS,
}  # fmt: skip


@st.composite
def members(draw: st.DrawFn) -> str:
    others = ["insert_id", "schema", "unknown", r"k\ud83d", r"\u0063ity"]
    key = draw(st.sampled_from([*DELIVERED_KEYS, *DELIVERED_KEYS, *others]))
    fitting = _BY_KIND[VENDOR_COLUMNS[DELIVERED_KEYS[key]]] if key in DELIVERED_KEYS else _JSON_TEXTS
    # Mostly expected values, or the fast path would hardly be taken.
    return f'"{key}":{draw(fitting if draw(st.integers(0, 9)) else _JSON_TEXTS)}'


def _agrees(line: bytes) -> bool:
    """Parse both ways; whether the fast path took the line."""
    PARSER.parse(line)
    fast = PARSER._fast(line)
    if fast is not None:
        assert fast == parse_leniently(line)
    return fast is not None


@settings(max_examples=600)
@given(st.lists(members(), max_size=5))
@example(['"location_lat":1e-400'])
@example(['"client_event_time":"2026-02-02 10:00:00.9999999"'])
@example(['"location_lat":52.1234567'])
@example(['"city":"a"', '"city":null'])
def test_fast_and_lenient_agree_on_whatever_the_fast_one_takes(parts: list[str]) -> None:
    _agrees(a_line(*parts))


_DAMAGE = [b'"', b"\\", b"\xff", b"{", b",", b"\\ud83d", b"1", b"null", b":"]


@settings(max_examples=300)
@given(st.data())
def test_no_damage_to_a_line_stops_the_parser(data: st.DataObject) -> None:
    """Real lines with bytes changed, removed or doubled: an answer, never an exception, and the same either way."""
    line = bytearray(gzip.decompress(REAL_OBJECTS[0].read_bytes()).splitlines()[0])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(line) - 1))
        match data.draw(st.sampled_from(["change", "remove", "insert"])):
            case "change":
                line[place] = data.draw(st.integers(0, 255))
            case "remove":
                del line[place : place + data.draw(st.integers(1, 40))]
            case _:
                line[place:place] = data.draw(st.sampled_from(_DAMAGE))
        line = line or bytearray(b"{")
    _agrees(bytes(line))


def test_the_agreement_is_not_vacuous() -> None:
    """Plain lines with all 55 keys take the fast path."""
    numbers = random.Random(7)
    plain = {
        ColumnType.STRING: lambda: f'"ü{numbers.getrandbits(30)}"',
        ColumnType.LONG: lambda: str(numbers.getrandbits(62)),
        ColumnType.TIMESTAMP: lambda: f'"2026-02-02 10:00:00.{numbers.getrandbits(19):06d}"',
        ColumnType.DOUBLE: lambda: repr(numbers.uniform(-180, 180)),
        ColumnType.BOOLEAN: lambda: "true",
        ColumnType.JSON: lambda: f'{{"a": {numbers.getrandbits(80)}}}',
    }
    for _ in range(200):
        members = [f'"{key}":{plain[VENDOR_COLUMNS[column]]()}' for key, column in DELIVERED_KEYS.items()]
        assert _agrees(a_line(*members))


_STRICT_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,6})[0-9]*)?"
    r"(?:[Zz]|([+-])([0-9]{2}):?([0-9]{2}))?"
)


def _strictly(text: str) -> datetime | None:
    """The contract's times, read independently of the parser."""
    found = _STRICT_TIME.fullmatch(text)
    if found is None or (found[4] and (int(found[5]) > 23 or int(found[6]) > 59)):
        return None
    with suppress(ValueError, OverflowError):
        instant = datetime.strptime(f"{found[1]} {found[2]}.{found[3] or 0}", "%Y-%m-%d %H:%M:%S.%f")
        if found[2].endswith(":60") or found[2].endswith(":61"):
            return None  # strptime takes leap seconds
        shift = timedelta(hours=int(found[5] or 0), minutes=int(found[6] or 0))
        return (instant - shift if found[4] == "+" else instant + shift).replace(tzinfo=UTC)
    return None


@st.composite
def _nearly_times(draw: st.DrawFn) -> str:
    times = ["2026-02-02 10:00:00.123456", "2024-02-29 23:59:59.12345Z", "2026-02-02T10:00:00.1+0530"]
    characters = list(draw(st.sampled_from(times)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(characters) - 1))
        characters[place] = draw(st.sampled_from([*"0123456789-:.,+ TZWx", "", "00", "٣"]))
    return "".join(characters)


@settings(max_examples=1500)
@given(_nearly_times())
@example("2026-W05-1 10:00:00.123456")
@example("2026-02-02 10:00:00.12345Z")
@example("2026-02-02 10:00:00.1+0130")
@example("2026-02-02 10:00:00.٣23456")
@example("2026-02-02x10:00:00.123456")
@example("2026-02-02 10:00:00,123456")
@example("2026-02-02 10:00:00.12-010")
@example("2026-02-02 24:00:00.000000")
@example("2026-02-02 10:00:60.000000")
@example("20260202 100000.123456    ")
def test_what_is_nearly_a_time_is_a_time_or_null_never_another(text: str) -> None:
    parsed = read(a_line(f'"client_event_time":{json.dumps(text)}'))
    expected = _strictly(text)
    assert value(parsed, "client_event_time") == expected
    assert bool(parsed.unreadable) == (expected is None)


_LENGTH = 250_000
_ADVERSE = {
    "digits that end in a letter": lambda n: f'"{"1" * n}x"',
    "digits": lambda n: "1" * n,
    "digits as text": lambda n: f'"{"1" * n}"',
    "a fraction": lambda n: f'"1.{"0" * n}1"',
    "zeros": lambda n: f'"{"0" * n}1"',
    "an exponent": lambda n: f'"1e{"9" * n}"',
    "a small exponent": lambda n: f'"1{"0" * n}e-{n}"',
    "points": lambda n: f'"{"1." * (n // 2)}"',
    "signs": lambda n: f'"{"-" * n}1"',
    "blanks": lambda n: f'"{" " * n}x"',
    "seconds": lambda n: f'"2026-02-02 10:00:00.000000{"0" * n}x"',
    "colons": lambda n: f'"{":00.0000000" * (n // 11)}"',
    "surrogates": lambda n: '"' + "\\ud83d" * (n // 6) + '"',
    "brackets": lambda n: "[" + "[]," * (n // 3) + "1]",
    "escapes": lambda n: '"' + "\\\\[" * (n // 3) + '"',
    "quotes": lambda n: '"' + '\\"[' * (n // 3) + '"',
    "an open string": lambda n: '"' + "x" * n,
    "letters": lambda n: f'"{"true" * (n // 4)}"',
}


@pytest.mark.parametrize("name", ["session_id", "location_lat", "event_time", "unknown"])
@pytest.mark.parametrize("shape", _ADVERSE)
def test_a_long_value_is_read_or_refused_at_once(shape: str, name: str) -> None:
    """Scenario: 250 kB that cost a careless reader quadratic time (20 kB took 10 s). Outcome: two seconds of CPU."""
    value = _ADVERSE[shape](_LENGTH)
    for city in ("", ', "region": "\\ud83d"'):
        line = f'{{"event_time": "2026-02-02 10:00:00.000000"{city}, "{name}": {value}}}'.encode()
        began = time.process_time()
        LineParser("10001", date(2026, 2, 2), 1 << 30).parse(line)
        assert time.process_time() - began < 2
