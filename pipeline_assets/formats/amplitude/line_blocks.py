"""Parses many lines to Arrow columns at once, if every line follows the contract; else returns None."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.formats.amplitude.columns import BAG_COLUMNS, DELIVERED_KEYS, VENDOR_COLUMNS
from pipeline_assets.formats.amplitude.lines import (
    COLUMN_NAMES,
    FIRST_MOMENT,
    MAX_DEPTH,
    bag_text,
    event_decoder,
    is_too_deep,
    too_late,
)
from pipeline_assets.formats.base import EVENT_TIME, ColumnType
from pipeline_assets.native import Kind, Rules, ScannedColumn, Scanner, library

_KINDS = {
    ColumnType.STRING: Kind.TEXT,
    ColumnType.LONG: Kind.LONG,
    ColumnType.TIMESTAMP: Kind.TIME,
    ColumnType.DOUBLE: Kind.DOUBLE,
    ColumnType.BOOLEAN: Kind.BOOLEAN,
    ColumnType.JSON: Kind.JSON,
}
PROJECTS = range(1 << 63)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Scan = Callable[[bytes, int], dict[str, pa.Array] | None]
"""Lines with their line breaks, and their number -> columns; None if the Python parser must decide."""


def native_scan(project_id: str, arrival_date: date, max_line_bytes: int) -> Scan | None:
    """A function that scans lines of one project and arrival day; None without a library, or for an id that no column holds."""
    scanner = _scanner()
    if scanner is None or int(project_id) not in PROJECTS:
        return None
    rules = Rules(
        most_bytes=max_line_bytes,
        time=scanner.place(EVENT_TIME),
        first=_microseconds(FIRST_MOMENT),
        end=_microseconds(too_late(arrival_date)),
        project=scanner.place("app"),
        value=int(project_id),
    )
    return partial(scanner.scan, rules=rules)


@cache
def _scanner() -> Scanner | None:
    found = library()
    return None if found is None else Scanner(found, columns())


def columns() -> tuple[ScannedColumn, ...]:
    """The vendor's columns, in the order of tables."""
    keys = {name: key for key, name in DELIVERED_KEYS.items()}
    return tuple(
        ScannedColumn(keys[name], name, Kind.BAG if name in BAG_COLUMNS else _KINDS[VENDOR_COLUMNS[name]])
        for name in COLUMN_NAMES
    )


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


_ARROW_TYPES = {
    ColumnType.STRING: pa.string(),
    ColumnType.LONG: pa.int64(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.BOOLEAN: pa.bool_(),
}
_INSTANT = pa.timestamp("us")
UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
_VENDOR_FORM_CHARACTERS = 26
_MOST_TEXT_BYTES = (1 << 31) - 1
_DEEP = 2 * (MAX_DEPTH - 1)
"""A shorter text of JSON cannot be nested too deeply."""
_FIRST_INSTANT = _microseconds(datetime.min.replace(tzinfo=UTC))
"""The line parser accepts no earlier time, but Arrow does. A number, since a process's first Arrow value imports pandas."""


class ColumnParser:
    """Parses lines of one project and arrival day, many at once."""

    def __init__(self, project_id: str, arrival_date: date, max_line_bytes: int) -> None:
        self._app = int(project_id)
        self._too_late = too_late(arrival_date)
        self._max_line_bytes = max_line_bytes
        decoder = event_decoder()
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        self._scan = native_scan(project_id, arrival_date, max_line_bytes)

    def parse(self, text: bytes, count: int) -> dict[str, pa.Array] | None:
        """As `base.BlockParser`."""
        columns = None if self._scan is None else self._scan(text, count)
        columns = self.decode(text, count) if columns is None else columns
        if columns is None:
            return None
        return {**columns, "event_date": columns[EVENT_TIME].cast(pa.date32(), safe=False)}

    def decode(self, text: bytes, count: int) -> dict[str, pa.Array] | None:
        """The columns of `parse` without `event_date`, in Python; None if any line must be parsed on its own."""
        if self._app not in PROJECTS or not _are_short(text, self._max_line_bytes):
            return None
        try:
            is_plain = _holds_one_object_a_line(text, count)
            events = self._decode_lines(text) if is_plain else map(self._decode, text.split(b"\n")[:-1])
            values = zip(*map(msgspec.structs.astuple, events), strict=True)
            columns = {name: _column(name, column) for name, column in zip(COLUMN_NAMES, values, strict=True)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, pa.ArrowInvalid):
            return None
        event_time = columns[EVENT_TIME]
        if len(event_time) != count or event_time.null_count:
            return None
        span = pc.min_max(event_time).as_py()
        if span["min"] < FIRST_MOMENT or span["max"] >= self._too_late:
            return None
        if pc.any(pc.not_equal(columns["app"], self._app)).as_py():
            return None
        return columns


def _are_short(text: bytes, most: int) -> bool:
    at = -1
    while len(text) - at > most + 2:
        at, before = text.rfind(b"\n", at + 1, at + most + 2), at
        if at <= before:
            return False
    return True


def _holds_one_object_a_line(text: bytes, count: int) -> bool:
    """As many values as lines are then one each: JSON has no line break in a text, and no `{` after a `}`."""
    # In numpy, since `bytes.count` takes three times as long.
    characters = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero(characters == ord("\n"))
    begins, ends = characters[np.concatenate([[0], breaks[:-1] + 1])], characters[breaks - 1]
    return len(breaks) == count and bool((begins == ord("{")).all() and (ends == ord("}")).all())


def _column(name: str, values: tuple[Any, ...]) -> pa.Array:
    """The values as an array; raises ArrowInvalid if a value needs the line parser."""
    kind = VENDOR_COLUMNS[name]
    if kind is ColumnType.JSON:
        return _texts_of_json(name, values)
    if values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), UTC_TIMESTAMP if kind is ColumnType.TIMESTAMP else _ARROW_TYPES[kind])
    if kind is ColumnType.TIMESTAMP:
        return _timestamps(pa.array(values, pa.string()))
    return pa.array(values, _ARROW_TYPES[kind])


def _texts_of_json(name: str, values: tuple[Any, ...]) -> pa.Array:
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    if any(is_too_deep(b"[%b]" % values[at]) for at in np.flatnonzero(lengths >= _DEEP)):
        raise pa.ArrowInvalid("a line that is too deep")
    data = b"".join(values)
    if len(data) > _MOST_TEXT_BYTES:
        raise pa.ArrowInvalid("more text than one array holds")
    buffers = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), data
    # The cast finds invalid UTF-8, which the decoder does not check within raw JSON.
    texts = pa.Array.from_buffers(pa.binary(), len(values), [None, *map(pa.py_buffer, buffers)]).cast(pa.string())
    if name in BAG_COLUMNS and pc.any(pc.starts_with(texts, '"')).as_py():
        bags = [bag_text(name, text) for text in texts.to_pylist()]
        if None in bags:
            raise pa.ArrowInvalid("text that holds no bag")
        texts = pa.array(bags, pa.string())
    return pc.if_else(pc.equal(texts, "null"), None, texts)


def _timestamps(texts: pa.Array) -> pa.Array:
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if lengths["min"] == 0:
        texts = pc.if_else(pc.equal(texts, ""), None, texts)
        if texts.null_count == len(texts):
            return pa.nulls(len(texts), UTC_TIMESTAMP)
        lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if lengths != {"min": _VENDOR_FORM_CHARACTERS, "max": _VENDOR_FORM_CHARACTERS}:
        raise pa.ArrowInvalid("not the vendor's form")
    instants = texts.cast(_INSTANT)
    if pc.min(instants).value < _FIRST_INSTANT:
        raise pa.ArrowInvalid("before the year 1")
    return instants.cast(UTC_TIMESTAMP)
