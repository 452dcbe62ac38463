"""Parses one exported line to the typed values of an event, or to the reason why it is quarantined."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Set
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec

from pipeline_assets.domain.deliveries import QuarantineReason
from pipeline_assets.domain.json_members import no_constant
from pipeline_assets.formats.amplitude import columns
from pipeline_assets.formats.base import EVENT_TIME, ColumnType, ParsedLine, RefusedLine

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
# Each digit matches in one way only: an ambiguous expression would backtrack over every split of a run of digits.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FINER_THAN_MICROSECONDS = re.compile(r"(:[0-9]{2}\.[0-9]{6})[0-9]+")
_STRING_OR_BRACKET = re.compile(rb'(?s)"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]')
MAX_DEPTH = 500
"""Most nested arrays and objects, the line's own included. Interpreters' recursion limits vary; a lower bound does not."""
_Long = Annotated[int, msgspec.Meta(ge=_LONG_MIN, le=_LONG_MAX)]

_FIELD_TYPES: dict[ColumnType, tuple[Any, Any]] = {
    ColumnType.STRING: (str | None, None),
    ColumnType.LONG: (_Long | None, None),
    ColumnType.TIMESTAMP: (str | None, None),
    ColumnType.DOUBLE: (float | None, None),
    ColumnType.BOOLEAN: (bool | None, None),
    ColumnType.JSON: (msgspec.Raw, msgspec.Raw(b"null")),
}
_Event: Any = msgspec.defstruct(
    "_Event",
    [(name, *_FIELD_TYPES[kind]) for name, kind in columns.VENDOR_COLUMNS.items()],
    rename={column: key for key, column in columns.DELIVERED_KEYS.items()},
    forbid_unknown_fields=True,
    gc=False,
)
COLUMN_NAMES = tuple(columns.VENDOR_COLUMNS)
_KINDS = tuple(columns.VENDOR_COLUMNS.values())
_JSON_PLACES = tuple(i for i, kind in enumerate(_KINDS) if kind is ColumnType.JSON)
_TIME_PLACES = tuple(i for i, kind in enumerate(_KINDS) if kind is ColumnType.TIMESTAMP)
_EVENT_TIME = COLUMN_NAMES.index(EVENT_TIME)
_APP = COLUMN_NAMES.index("app")
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _RefusedError(Exception):
    def __init__(self, reason: QuarantineReason, detail: str, column: str | None = None) -> None:
        super().__init__(detail)
        self.refused = RefusedLine(reason, detail, column)


class LineParser:
    """Parses the lines of one object one by one."""

    def __init__(self, project_id: str, arrival_date: date, max_line_bytes: int) -> None:
        self._app = int(project_id)
        self._too_late = too_late(arrival_date)
        self._max_line_bytes = max_line_bytes
        self._decoder = event_decoder()

    def parse(self, line: bytes, length: int = 0) -> ParsedLine | RefusedLine:
        """As `base.LineParser`."""
        length = max(length, len(line))
        if length > self._max_line_bytes:
            return RefusedLine(QuarantineReason.LINE_TOO_LONG, f"{length} bytes, at most {self._max_line_bytes}")
        if is_too_deep(line):
            return RefusedLine(QuarantineReason.TOO_DEEP, f"nested more than {MAX_DEPTH} deep")
        try:
            return self._checked(self._fast(line) or parse_leniently(line))
        except _RefusedError as error:
            return error.refused

    def _fast(self, line: bytes) -> ParsedLine | None:
        try:
            values = list(msgspec.structs.astuple(self._decoder.decode(line)))
            for place in _JSON_PLACES:
                text = str(values[place], "utf-8")
                if text[0] == '"' and COLUMN_NAMES[place] in columns.BAG_COLUMNS:
                    return None
                values[place] = None if text == "null" else text
            for place in _TIME_PLACES:
                text = values[place]
                values[place] = _instant(text) if text else None
                if text and values[place] is None:
                    return None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return ParsedLine(values, None)

    def _checked(self, parsed: ParsedLine) -> ParsedLine | RefusedLine:
        event_time, app = parsed.values[_EVENT_TIME], parsed.values[_APP]
        if event_time is None:
            return RefusedLine(QuarantineReason.EVENT_TIME_MISSING, "no event_time")
        if event_time < FIRST_MOMENT:
            return RefusedLine(
                QuarantineReason.EVENT_TIME_UNREADABLE, f"event_time {event_time.isoformat()}: no clock's"
            )
        if event_time >= self._too_late:
            return RefusedLine(QuarantineReason.EVENT_TIME_IN_FUTURE, f"event_time {event_time.isoformat()}")
        if app is not None and app != self._app:
            return RefusedLine(QuarantineReason.PROJECT_MISMATCH, f"app {app} in an object of project {self._app}")
        return parsed


def event_decoder() -> msgspec.json.Decoder[Any]:
    """A decoder of a line to a struct of COLUMN_NAMES; raises DecodeError for a value of another type."""
    return msgspec.json.Decoder(_Event)


FIRST_MOMENT = datetime(1900, 1, 1, tzinfo=UTC)
"""Earlier times are zero values of clients without a clock (years 1, 1601, 1899), or too early for Spark and Python."""


def too_late(arrival_date: date) -> datetime:
    """The first time refused as in the future: more than a day after the arrival day."""
    return datetime.combine(arrival_date, time.min, UTC) + timedelta(days=2)


def is_too_deep(line: bytes) -> bool:
    """Whether a line is nested deeper than MAX_DEPTH."""
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(line):
        if token[0] in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif token[0] in b"]}":
            depth -= 1
    return False


def line_keys(line: bytes) -> Set[str] | None:
    """The keys of a line that is a JSON object in UTF-8, else None."""
    try:
        return None if is_too_deep(line) else _members(line).keys()
    except _RefusedError:
        return None


def parse_leniently(line: bytes) -> ParsedLine:
    """Parse what the typed parser refuses: unknown keys, numbers and bags as text, lone surrogates; raises _RefusedError.

    The last of duplicate keys counts; `$insert_id` precedes `insert_id` unless null. Other values in a string column become JSON
    text. Empty text in a column without texts and unreadable values outside of NEEDED_COLUMNS become null.
    """
    members = _members(line)
    delivered = {columns.DELIVERED_KEYS[key]: text for key, text in members.items() if key in columns.DELIVERED_KEYS}
    extra: dict[str, str] = {}
    for key in members.keys() - columns.DELIVERED_KEYS.keys():
        if key in columns.DOLLAR_COLUMNS and delivered.get(key, "null") == "null":
            delivered[key] = members[key]
        else:
            extra[key] = members[key]
    values: list[Any] = []
    unreadable: list[str] = []
    for name, kind in columns.VENDOR_COLUMNS.items():
        text = delivered.get(name, "null")
        value: Any = None
        if text != "null" and (text != '""' or kind.spark_type == "string"):
            try:
                value = _read(name, kind, text)
            except _RefusedError:
                if name in columns.NEEDED_COLUMNS:
                    raise
                unreadable.append(name)
                # The name with the dollar is this column's own delivered key, so no other key takes it.
                extra[f"${name}" if name in extra else name] = text
            if kind is ColumnType.STRING:
                value = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
        values.append(value)
    members_text = ",".join(f"{json.dumps(key)}:{extra[key]}" for key in sorted(extra))
    return ParsedLine(values, f"{{{members_text}}}" if extra else None, tuple(unreadable))


def _members(line: bytes) -> dict[str, str]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _RefusedError(QuarantineReason.INVALID_UTF8, str(error)) from None
    try:
        return {key: str(raw, "utf-8") for key, raw in _RAW_MEMBERS.decode(line).items()}
    except msgspec.DecodeError:
        # msgspec refuses lone surrogates, which real exports contain (a cut emoji); the standard parser accepts them.
        return _members_with_surrogates(text)


def _members_with_surrogates(text: str) -> dict[str, str]:
    # Numbers stay text: the interpreter refuses integers of thousands of digits.
    scan = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=no_constant)
    try:
        decoded = scan.decode(text)
    except ValueError as error:
        raise _RefusedError(QuarantineReason.BAD_JSON, str(error)) from None
    if not isinstance(decoded, dict):
        raise _RefusedError(QuarantineReason.NOT_AN_OBJECT, f"starts with {text[:20]!r}")
    members: dict[str, str] = {}
    place = _skip(text, text.index("{") + 1)
    while text[place] != "}":
        key, place = scan.raw_decode(text, place)
        start = _skip(text, _skip(text, place) + 1)
        _, end = scan.raw_decode(text, start)
        members[key] = text[start:end]
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return members


def bag_text(name: str, text: str) -> str | None:
    """The JSON text of a JSON column; a bag delivered as text is unescaped once (empty and `null` stay), None if no object."""
    if text[0] != '"' or name not in columns.BAG_COLUMNS:
        return text
    # Half a surrogate pair cannot be stored; it stays escaped, as in a bag delivered as an object.
    bag = _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", json.loads(text)).strip(" \t\r\n")
    if bag in ("", "null"):
        return text
    with suppress(_RefusedError):
        if not is_too_deep(b"[%b]" % bag.encode()):
            _members(bag.encode())
            return bag
    return None


def _skip(text: str, place: int) -> int:
    while text[place] in " \t\r\n":
        place += 1
    return place


def _read(name: str, kind: ColumnType, text: str) -> Any:
    if kind is ColumnType.JSON and (bag := bag_text(name, text)) is not None:
        return bag
    is_string = text[0] == '"'
    value: str = text
    if is_string:
        value = json.loads(text) if "\\" in text else text[1:-1]
    if kind is ColumnType.STRING:
        return value
    if kind is ColumnType.BOOLEAN and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind is ColumnType.LONG and _NUMBER.fullmatch(value.strip()):
        return _long(name, value.strip())
    if kind is ColumnType.DOUBLE and _NUMBER.fullmatch(value.strip()) and math.isfinite(float(value)):
        return float(value)
    if kind is ColumnType.TIMESTAMP and is_string:
        instant = _instant(value)
        if instant is not None:
            return instant
    is_event_time = name == EVENT_TIME
    reason = QuarantineReason.EVENT_TIME_UNREADABLE if is_event_time else QuarantineReason.VALUE_UNREADABLE
    detail = f"{name} is {text[:80]}, which does not read as {kind.value} without loss"
    raise _RefusedError(reason, detail, None if is_event_time else name)


def _long(name: str, number: str) -> int:
    try:
        value = Decimal(number)
    except InvalidOperation:  # the exponent exceeds even decimal's limit
        value = Decimal("Infinity")
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise _RefusedError(QuarantineReason.VALUE_OUT_OF_RANGE, f"{name} is {number[:80]}, beyond 64 bits", name)
    if value != int(value):
        raise _RefusedError(QuarantineReason.VALUE_UNREADABLE, f"{name} is {number[:80]}, not an integer", name)
    return int(value)


def _instant(text: str) -> datetime | None:
    """The text as a UTC time (the default zone), cut at microseconds; None if it is no time."""
    try:
        if (
            len(text) == 26
            and text[4] == text[7] == "-"
            and text[10] == " "
            and text[19] == "."
            and text[20:].isdigit()
        ):
            # The vendor's own form, in a fifth of the general case's time.
            return datetime.fromisoformat(text + "+00:00")
        # msgspec would round a finer fraction, possibly into another day.
        value = msgspec.convert(_FINER_THAN_MICROSECONDS.sub(r"\1", text), datetime)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        return None  # no time, a lone surrogate, or a UTC year outside of 1 to 9999
