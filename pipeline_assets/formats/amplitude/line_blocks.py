"""Parses many lines to Arrow columns at once, provided that every line follows the contract; otherwise returns None."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.formats.amplitude.columns import BAG_COLUMNS, VENDOR_COLUMNS
from pipeline_assets.formats.amplitude.lines import (
    COLUMN_NAMES,
    FIRST_MOMENT,
    bag_text,
    event_decoder,
    is_too_deep,
    too_late,
)
from pipeline_assets.formats.amplitude.native_lines import native_scan
from pipeline_assets.formats.base import EVENT_TIME, ColumnType

_ARROW_TYPES = {
    ColumnType.STRING: pa.string(),
    ColumnType.LONG: pa.int64(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.BOOLEAN: pa.bool_(),
}
_INSTANT = pa.timestamp("us")
UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
_VENDOR_FORM_CHARACTERS = 26
"""Length of `YYYY-MM-DD HH:MM:SS.ffffff`, by far the most frequent form."""
_FIRST_INSTANT = pa.scalar(datetime(1, 1, 1, tzinfo=UTC), UTC_TIMESTAMP).cast(_INSTANT)
"""The line parser accepts no earlier time; Arrow also accepts the year 0."""


class ColumnParser:
    """Parses lines of one project and arrival day, many at once."""

    def __init__(self, project_id: str, arrival_date: date, max_line_bytes: int) -> None:
        """`project_id` and `arrival_date` (UTC) come from the object's name."""
        self._app = int(project_id)
        self._too_late = too_late(arrival_date)
        self._max_line_bytes = max_line_bytes
        self._decode = event_decoder().decode
        self._scan = native_scan(project_id, arrival_date, max_line_bytes)

    def parse(self, lines: Sequence[bytes]) -> dict[str, pa.Array] | None:
        """Column -> values of all lines, and `event_date`; None if any line must be parsed on its own."""
        columns = None if self._scan is None else self._scan(b"\n".join((*lines, b"")), len(lines))
        columns = self.decode(lines) if columns is None else columns
        if columns is None:
            return None
        return {**columns, "event_date": columns[EVENT_TIME].cast(pa.date32(), safe=False)}

    def decode(self, lines: Sequence[bytes]) -> dict[str, pa.Array] | None:
        """Column -> values of all lines, in Python; None if any line must be parsed on its own."""
        if max(map(len, lines)) > self._max_line_bytes or any(map(is_too_deep, lines)):
            return None
        try:
            values = zip(*map(msgspec.structs.astuple, map(self._decode, lines)), strict=True)
            columns = {name: _column(name, column) for name, column in zip(COLUMN_NAMES, values, strict=True)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, pa.ArrowInvalid):
            return None
        event_time = columns[EVENT_TIME]
        if event_time.null_count:
            return None
        span = pc.min_max(event_time).as_py()
        if span["min"] < FIRST_MOMENT or span["max"] >= self._too_late:
            return None
        if pc.any(pc.not_equal(columns["app"], self._app)).as_py():
            return None
        return columns

    def is_plain(self, lines: Sequence[bytes]) -> bool:
        """Whether every line has the form of an event; values of such a line may still be invalid."""
        try:
            for line in lines:
                self._decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return True


def _column(name: str, values: tuple[Any, ...]) -> pa.Array:
    """The values as an array; raises ArrowInvalid if a value needs the line parser."""
    kind = VENDOR_COLUMNS[name]
    if kind is ColumnType.TIMESTAMP:
        return _timestamps(pa.array([text or None for text in values], pa.string()))
    if kind is ColumnType.JSON:
        # The cast finds invalid UTF-8, which the decoder does not check within raw JSON.
        texts = pa.array(list(map(bytes, values)), pa.binary()).cast(pa.string())
        if name in BAG_COLUMNS and pc.any(pc.starts_with(texts, '"')).as_py():
            bags = [bag_text(name, text) for text in texts.to_pylist()]
            if None in bags:
                raise pa.ArrowInvalid("text that holds no bag")
            texts = pa.array(bags, pa.string())
        return pc.if_else(pc.equal(texts, "null"), None, texts)
    return pa.array(values, _ARROW_TYPES[kind])


def _timestamps(texts: pa.Array) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), UTC_TIMESTAMP)
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if lengths != {"min": _VENDOR_FORM_CHARACTERS, "max": _VENDOR_FORM_CHARACTERS}:
        raise pa.ArrowInvalid("not the vendor's form")
    instants = texts.cast(_INSTANT)
    if pc.less(pc.min(instants), _FIRST_INSTANT).as_py():
        raise pa.ArrowInvalid("before the year 1")
    return instants.cast(UTC_TIMESTAMP)
