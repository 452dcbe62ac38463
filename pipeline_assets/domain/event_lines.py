"""One exported line to the typed values of an event, or the reason why it is quarantined.

Lives here: the fast typed parser and the lenient one behind it, equal by test. Put here: how a delivered value is read.
Keep out: files and bytes (domain/object_bodies.py), batches of rows (transforms/parse.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

import msgspec

from pipeline_assets.domain.quarantine_reasons import QuarantineReason
from pipeline_assets.domain.vendor import DELIVERED_KEYS, DOLLAR_COLUMNS, VENDOR_COLUMNS, ColumnType

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_NULL = b"null"
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"[+-]?\d+(?:\.0*)?")
_Long = Annotated[int, msgspec.Meta(ge=_LONG_MIN, le=_LONG_MAX)]

_FIELD_TYPES: dict[ColumnType, tuple[Any, Any]] = {
    ColumnType.STRING: (str | None, None),
    ColumnType.LONG: (_Long | None, None),
    ColumnType.TIMESTAMP: (datetime | None, None),
    ColumnType.DOUBLE: (float | None, None),
    ColumnType.BOOLEAN: (bool | None, None),
    ColumnType.JSON: (msgspec.Raw, msgspec.Raw(_NULL)),
}
_Event: Any = msgspec.defstruct(
    "_Event",
    [(name, *_FIELD_TYPES[kind]) for name, kind in VENDOR_COLUMNS.items()],
    rename={column: key for key, column in DELIVERED_KEYS.items()},
    forbid_unknown_fields=True,
    gc=False,
)
COLUMN_NAMES = tuple(VENDOR_COLUMNS)
_KINDS = tuple(VENDOR_COLUMNS.values())
_JSON_PLACES = tuple(i for i, kind in enumerate(_KINDS) if kind is ColumnType.JSON)
_TIME_PLACES = tuple(i for i, kind in enumerate(_KINDS) if kind is ColumnType.TIMESTAMP)
_EVENT_TIME = COLUMN_NAMES.index("event_time")
_APP = COLUMN_NAMES.index("app")
_ALIASES = {name: f"${name}" for name in DOLLAR_COLUMNS}


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """An event: its values in the order of COLUMN_NAMES, then `_extra`; times are aware UTC datetimes."""

    values: list[Any]
    extra: str | None
    replaced_surrogates: int = 0


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is quarantined."""

    reason: QuarantineReason
    detail: str


class _RefusedError(Exception):
    def __init__(self, reason: QuarantineReason, detail: str) -> None:
        super().__init__(detail)
        self.refused = RefusedLine(reason, detail)


class LineParser:
    """Parses the lines of one object."""

    def __init__(self, project_id: str, arrival_date: date, max_line_bytes: int) -> None:
        """`project_id` and `arrival_date` (UTC) come from the object's name."""
        self._app = int(project_id)
        # More than a day after the arrival day: a device clock that no lateness explains.
        self._too_late = datetime(arrival_date.year, arrival_date.month, arrival_date.day, tzinfo=UTC) + timedelta(
            days=2
        )
        self._max_line_bytes = max_line_bytes
        self._decoder = msgspec.json.Decoder(_Event)

    def parse(self, line: bytes) -> ParsedLine | RefusedLine:
        """Typed values of one non-blank line, or why it is refused; never raises for bad input."""
        if len(line) > self._max_line_bytes:
            return RefusedLine(QuarantineReason.LINE_TOO_LONG, f"{len(line)} bytes, at most {self._max_line_bytes}")
        try:
            parsed = self._fast(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            try:
                parsed = parse_leniently(line)
            except _RefusedError as error:
                return error.refused
        return self._checked(parsed)

    def _fast(self, line: bytes) -> ParsedLine:
        values = list(msgspec.structs.astuple(self._decoder.decode(line)))
        for place in _JSON_PLACES:
            raw = bytes(values[place])
            values[place] = None if raw == _NULL else raw.decode("utf-8")
        for place in _TIME_PLACES:
            if values[place] is not None:
                values[place] = _utc(values[place])
        return ParsedLine(values, None)

    def _checked(self, parsed: ParsedLine) -> ParsedLine | RefusedLine:
        event_time, app = parsed.values[_EVENT_TIME], parsed.values[_APP]
        if event_time is None:
            return RefusedLine(QuarantineReason.EVENT_TIME_MISSING, "no event_time")
        if event_time >= self._too_late:
            return RefusedLine(QuarantineReason.EVENT_TIME_IN_FUTURE, f"event_time {event_time.isoformat()}")
        if app is not None and app != self._app:
            return RefusedLine(QuarantineReason.PROJECT_MISMATCH, f"app {app} in an object of project {self._app}")
        return parsed


def parse_leniently(line: bytes) -> ParsedLine:
    """What the typed parser cannot take: unknown keys, numbers as text, lone surrogates; raises _RefusedError.

    A duplicate key counts once, the last one, as in every JSON parser.
    """
    members = _members(line)
    extra: dict[str, str] = {}
    delivered: dict[str, str] = {}
    for key, text in members.items():
        if key in DELIVERED_KEYS:
            delivered[DELIVERED_KEYS[key]] = text
        elif key in _ALIASES and members.get(_ALIASES[key], "null") == "null":
            delivered[key] = text
        else:
            extra[key] = text
    replaced = 0
    values: list[Any] = []
    for name, kind in VENDOR_COLUMNS.items():
        text = delivered.get(name, "null")
        value = None if text == "null" else _read(name, kind, text)
        if kind is ColumnType.STRING and value is not None:
            value, count = _SURROGATE.subn("�", value)
            replaced += count
        values.append(value)
    extra_text = None
    if extra:
        extra_text = "{" + ",".join(f"{json.dumps(key)}:{extra[key]}" for key in sorted(extra)) + "}"
    return ParsedLine(values, extra_text, replaced)


def _members(line: bytes) -> dict[str, str]:
    """Key -> JSON text of each member, byte for byte."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _RefusedError(QuarantineReason.INVALID_UTF8, str(error)) from None
    try:
        decoded = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        return {key: bytes(raw).decode("utf-8") for key, raw in decoded.items()}
    except RecursionError:
        raise _RefusedError(QuarantineReason.TOO_DEEP, "nested too deeply") from None
    except msgspec.ValidationError:
        raise _RefusedError(QuarantineReason.NOT_AN_OBJECT, f"starts with {text[:20]!r}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        # msgspec refuses lone surrogates, which real exports hold (a cut emoji); the standard parser takes them.
        return _members_with_surrogates(text)


def _members_with_surrogates(text: str) -> dict[str, str]:
    try:
        decoded = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _RefusedError(QuarantineReason.TOO_DEEP, "nested too deeply") from None
    except ValueError as error:
        raise _RefusedError(QuarantineReason.BAD_JSON, str(error)) from None
    if not isinstance(decoded, dict):
        raise _RefusedError(QuarantineReason.NOT_AN_OBJECT, f"starts with {text[:20]!r}")
    # Walk the members with the standard scanner, which tells where each value ends, to keep its text as delivered.
    scan = json.JSONDecoder(parse_constant=_no_constant)
    members: dict[str, str] = {}
    place = _skip(text, text.index("{") + 1)
    while text[place] != "}":
        key, place = scan.raw_decode(text, place)
        start = _skip(text, _skip(text, place) + 1)
        _, end = scan.raw_decode(text, start)
        members[_SURROGATE.sub("�", key)] = text[start:end]
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return members


def _skip(text: str, place: int) -> int:
    while text[place] in " \t\r\n":
        place += 1
    return place


def _no_constant(name: str) -> None:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _read(name: str, kind: ColumnType, text: str) -> Any:
    if kind is ColumnType.JSON:
        return text
    value = json.loads(text, parse_int=str, parse_float=str) if text[0] != '"' else json.loads(text)
    if kind is ColumnType.STRING:
        # A number or bag where text belongs keeps its JSON text: lossless.
        return value if text[0] == '"' else text
    if kind is ColumnType.BOOLEAN:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    if isinstance(value, str):
        if kind is ColumnType.LONG:
            return _long(name, value)
        if kind is ColumnType.DOUBLE:
            return _double(name, value)
        if kind is ColumnType.TIMESTAMP and text[0] == '"':
            return _time(name, value)
    reason = QuarantineReason.VALUE_UNREADABLE
    if name == "event_time":
        reason = QuarantineReason.EVENT_TIME_UNREADABLE
    raise _RefusedError(reason, f"{name} is {text[:80]}")


def _long(name: str, value: str) -> int:
    if not _INTEGER.fullmatch(value.strip()):
        raise _RefusedError(QuarantineReason.VALUE_UNREADABLE, f"{name} is {value[:80]!r}, not an integer")
    digits = value.strip().split(".")[0]
    if len(digits) > 20 or not _LONG_MIN <= int(digits) <= _LONG_MAX:
        raise _RefusedError(QuarantineReason.VALUE_OUT_OF_RANGE, f"{name} is {value[:80]}, beyond 64 bits")
    return int(digits)


def _double(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if number != number or number in (float("inf"), float("-inf")):
        raise _RefusedError(QuarantineReason.VALUE_UNREADABLE, f"{name} is {value[:80]!r}, not a number")
    return number


def _time(name: str, value: str) -> datetime:
    try:
        return _utc(msgspec.convert(value, datetime))
    except (msgspec.ValidationError, OverflowError):
        is_event_time = name == "event_time"
        reason = QuarantineReason.EVENT_TIME_UNREADABLE if is_event_time else QuarantineReason.VALUE_UNREADABLE
        raise _RefusedError(reason, f"{name} is {value[:80]!r}, not a time") from None


def _utc(value: datetime) -> datetime:
    """Without a zone = UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
