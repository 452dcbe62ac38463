"""How one exported line is read, and why a bad one is quarantined."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.event_lines import COLUMN_NAMES, LineParser, ParsedLine, RefusedLine, parse_leniently
from pipeline_assets.domain.quarantine_reasons import QuarantineReason as Reason
from pipeline_assets.domain.vendor import DELIVERED_KEYS, VENDOR_COLUMNS, ColumnType
from tests.builders import PROJECT, an_event

PARSER = LineParser(PROJECT, date(2026, 2, 2), 100_000)


def _line(**changes: Any) -> bytes:
    return json.dumps(an_event(**changes)).encode()


def _raw(key: str, text: str) -> bytes:
    """A line in which one value is exactly this text."""
    return _line(**{key: "@@"}).replace(b'"@@"', text.encode("utf-8", "surrogatepass"))


def _value(line: bytes, column: str) -> Any:
    parsed = PARSER.parse(line)
    assert isinstance(parsed, ParsedLine), parsed
    return parsed.values[COLUMN_NAMES.index(column)]


def test_there_are_55_columns() -> None:
    assert len(COLUMN_NAMES) == len(VENDOR_COLUMNS) == len(DELIVERED_KEYS) == 55


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("event_id", "12", 12),
        ("event_id", '"12"', 12),
        ("event_id", "1.0", 1),
        ("event_id", str(2**63 - 1), 2**63 - 1),
        ("location_lat", '"1.5"', 1.5),
        ("location_lat", "2", 2.0),
        ("paying", '"true"', True),
        ("city", "5", "5"),
        ("city", "null", None),
        ("event_properties", '{"a": 1,  "A":"\\ud83d"}', '{"a": 1,  "A":"\\ud83d"}'),
        ("event_properties", "{}", "{}"),
        ("sample_rate", "null", None),
        ("client_event_time", '"2026-02-02T01:02:03Z"', datetime(2026, 2, 2, 1, 2, 3, tzinfo=UTC)),
        ("client_event_time", '"2026-02-02 01:02:03.5"', datetime(2026, 2, 2, 1, 2, 3, 500_000, tzinfo=UTC)),
        ("client_event_time", '"2026-02-02T01:02:03+02:00"', datetime(2026, 2, 1, 23, 2, 3, tzinfo=UTC)),
    ],
)
def test_a_delivered_value_is_read_without_loss(column: str, text: str, value: Any) -> None:
    assert _value(_raw(column, text), column) == value


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"$insert_id": "cut', Reason.BAD_JSON),
        (b'{"a": NaN}', Reason.BAD_JSON),
        (_line() + b" x", Reason.BAD_JSON),
        (b"[1, 2]", Reason.NOT_AN_OBJECT),
        (b"5", Reason.NOT_AN_OBJECT),
        (_line(city="@@").replace(b"@@", b"\xff"), Reason.INVALID_UTF8),
        (_line(event_properties={"a": "@@"}).replace(b"@@", b"\xff"), Reason.INVALID_UTF8),
        (_raw("event_properties", "[" * 40_000 + "]" * 40_000), Reason.TOO_DEEP),
        (_line(city="x" * 200_000), Reason.LINE_TOO_LONG),
        (_raw("event_id", str(2**63)), Reason.VALUE_OUT_OF_RANGE),
        (_raw("event_id", "1.5"), Reason.VALUE_UNREADABLE),
        (_raw("client_event_time", '"soon"'), Reason.VALUE_UNREADABLE),
        (_raw("paying", "7"), Reason.VALUE_UNREADABLE),
        (_line(app=10002), Reason.PROJECT_MISMATCH),
        (_line(event_time=None), Reason.EVENT_TIME_MISSING),
        (_line(event_time="yesterday"), Reason.EVENT_TIME_UNREADABLE),
        (_line(event_time="2026-02-04 00:00:00.000000"), Reason.EVENT_TIME_IN_FUTURE),
    ],
)
def test_a_bad_line_is_refused_with_its_reason(line: bytes, reason: Reason) -> None:
    parsed = PARSER.parse(line)
    assert isinstance(parsed, RefusedLine), parsed
    assert parsed.reason is reason


def test_a_clock_a_day_ahead_is_taken() -> None:
    assert isinstance(PARSER.parse(_line(event_time="2026-02-03 23:59:59.999999")), ParsedLine)


def test_unknown_keys_are_kept() -> None:
    parsed = PARSER.parse(_line(zeta={"a": [1, 2]}, alpha=None))
    assert isinstance(parsed, ParsedLine)
    assert parsed.extra == '{"alpha":null,"zeta":{"a": [1, 2]}}'


def test_lone_surrogates_are_replaced_in_text_and_counted() -> None:
    parsed = PARSER.parse(_raw("city", '"a\\ud83d"'))
    assert isinstance(parsed, ParsedLine)
    assert parsed.values[COLUMN_NAMES.index("city")] == "a�"
    assert parsed.replaced_surrogates == 1


def test_a_duplicate_key_counts_once_the_last() -> None:
    line = _line(city="first")[:-1] + b', "city": "last"}'
    assert _value(line, "city") == "last"


def test_the_undollared_alias_stands_in_for_an_absent_key() -> None:
    event = an_event()
    del event["$insert_id"]
    assert _value(json.dumps(event | {"insert_id": "i"}).encode(), "insert_id") == "i"


_VALUES = {
    ColumnType.STRING: st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    ColumnType.LONG: st.none() | st.integers(-(2**63), 2**63 - 1),
    ColumnType.DOUBLE: st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ColumnType.BOOLEAN: st.none() | st.booleans(),
    ColumnType.TIMESTAMP: st.none()
    | st.datetimes(datetime(1990, 1, 1), datetime(2026, 2, 1)).map(lambda t: t.strftime("%Y-%m-%d %H:%M:%S.%f")),
    ColumnType.JSON: st.none()
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.integers()),
}


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({key: _VALUES[VENDOR_COLUMNS[column]] for key, column in DELIVERED_KEYS.items()}))
def test_the_fast_and_the_lenient_parser_agree(event: dict[str, Any]) -> None:
    line = json.dumps(event | {"event_time": "2026-02-02 10:00:00.000000", "app": int(PROJECT)}).encode()
    assert PARSER.parse(line) == parse_leniently(line)
