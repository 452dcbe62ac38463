"""Reads the objects of dimensions, snapshots and histories of intervals: CSV with a header, or one JSON object per line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import StrEnum
from math import isfinite
from typing import IO, Any

from pipeline_assets.domain.days import day_in
from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.domain.json_members import is_encodable, no_constant
from pipeline_assets.domain.plain_text import shown

FOLDER = "dimensions"
_NAME = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(?P<rest>\.csv|\.jsonl|_complete)")


class SnapshotPart(StrEnum):
    """The kind of an object in a dimension's folder."""

    CSV = ".csv"
    JSONL = ".jsonl"
    MARKER = "_complete"


def folder_of(dimension: str) -> str:
    """The folder of a dimension's objects, such as `dimensions/item`."""
    return f"{FOLDER}/{dimension}"


def parse_name(dimension: str, key: str) -> tuple[date, SnapshotPart] | None:
    """The day and kind of an object by its full key; None for any other name."""
    match = _NAME.fullmatch(key.removeprefix(f"{folder_of(dimension)}/"))
    day = day_in(match["day"]) if match else None
    return None if match is None or day is None else (day, SnapshotPart(match["rest"]))


_SEEN = re.compile(f"{SOMETHING_TO_SEE}(?:.*{SOMETHING_TO_SEE})?", re.DOTALL)
_DELETE = "\x7f"
_TO_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))
_LONGEST_SHOWN = 80


class BadSnapshotError(ValueError):
    """An object that is refused; `line` counts from 1 and is 0 for the whole object."""

    def __init__(self, line: int, reason: str) -> None:
        """`reason`: one sentence without the object's name, which the caller adds."""
        super().__init__(f"line {line}: {reason}" if line else reason)


def records(
    stored: IO[bytes], part: SnapshotPart, required: Sequence[str], max_line_bytes: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line (from 1) and fields by name of each record; raises BadSnapshotError for the first bad record.

    A record has the `required` names and at most `max_line_bytes`. `stored`: seekable, read from its start, stays open.
    """
    stored.seek(0)
    is_csv = part is SnapshotPart.CSV
    text = io.TextIOWrapper(stored, encoding="utf-8-sig", newline="" if is_csv else "\n")
    try:
        lines = _Lines(text, max_line_bytes)
        yield from _csv_records(lines, required) if is_csv else _json_records(lines, required)
    except UnicodeDecodeError:
        raise BadSnapshotError(_undecodable_line(stored), "is not UTF-8") from None
    finally:
        text.detach()


def subject_of(
    line: int, fields: Mapping[str, Any], required: Collection[str], *texts: str | None
) -> tuple[str, str, str | None, bool]:
    """Id, status, further columns (JSON text), and whether one was trimmed; raises BadSnapshotError if one cannot be stored."""
    status = _seen(fields["status"]) if isinstance(fields["status"], str) else None
    if not status:
        raise BadSnapshotError(line, "status is empty or no text")
    more = {key: value for key, value in fields.items() if key not in required}
    try:
        attributes = _TO_JSON.encode(more) if more else None
    except RecursionError:
        raise BadSnapshotError(line, "is nested too deeply") from None
    key = _id(line, fields["id"])
    is_trimmed = status != fields["status"] or (isinstance(fields["id"], str) and key != fields["id"])
    for text in (key, status, attributes, *texts):
        if text is not None and not is_encodable(text):
            raise BadSnapshotError(line, "holds half of a surrogate pair, which is no text")
    return key, status, attributes, is_trimmed


def told(text: str) -> str:
    """A text of the object, shortened and quoted for an error's reason."""
    return repr(shown(text, _LONGEST_SHOWN))


class _Lines:
    """The lines of a text with their line breaks; raises BadSnapshotError for a record that is too long."""

    def __init__(self, text: io.TextIOWrapper, max_line_bytes: int) -> None:
        self._text, self._most = text, max_line_bytes
        self.begin(1)

    def begin(self, line: int) -> None:
        self.begins, self._size = line, 0

    def __iter__(self) -> Iterator[str]:
        # Beyond the longest line break, so a line that is cut here is always too long.
        while line := self._text.readline(self._most + 3):
            kept = line.rstrip("\r\n")
            self._size += len(kept) if kept.isascii() else len(kept.encode())
            if self._size > self._most:
                raise BadSnapshotError(
                    self.begins, f"has more than {self._most:,} bytes, which TIDEMARK_MAX_LINE_BYTES allows"
                )
            yield line


def _undecodable_line(stored: IO[bytes]) -> int:
    stored.seek(0)
    body = stored.read()
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return body.count(b"\n", 0, error.start) + 1
    return 0


def _csv_records(lines: _Lines, required: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            reason = str(error)
            if "unexpected end of data" in reason:
                reason = "a quote is not closed"
            elif "field larger than field limit" in reason:
                reason = f"a field has more than {csv.field_size_limit():,} characters, or a quote is not closed"
            raise BadSnapshotError(lines.begins, reason) from None
        line = lines.begins
        lines.begin(reader.line_num + 1)
        if fields is None:
            break
        if header is None:
            header = _header(line, fields, required)
        elif fields:
            if len(fields) != len(header):
                raise BadSnapshotError(line, f"has {len(fields)} fields, and the header names {len(header)}")
            yield line, dict(zip(header, fields, strict=True))
    if header is None:
        raise BadSnapshotError(0, "is empty: not even a header is there")


def _header(line: int, fields: Sequence[str], required: Sequence[str]) -> list[str]:
    names = [name.strip() for name in fields]
    for name in required:
        if name not in names:
            raise BadSnapshotError(line, f"the header names no column {name}, only {told(', '.join(names))}")
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise BadSnapshotError(line, f"the header names the column {told(doubled)} twice")
    return names


def _json_records(lines: _Lines, required: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        lines.begin(number + 1)
        if not line.strip():
            continue
        try:
            fields = json.loads(line, object_pairs_hook=_unique, parse_constant=no_constant, parse_float=_finite)
        except RecursionError:
            raise BadSnapshotError(number, "is nested too deeply") from None
        except ValueError as error:
            reason = str(error) if isinstance(error, _BadLineError) else "is not whole JSON"
            raise BadSnapshotError(number, reason) from None
        if not isinstance(fields, dict):
            raise BadSnapshotError(number, "is no JSON object")
        for name in required:
            if name not in fields:
                raise BadSnapshotError(number, f"has no {name}")
        yield number, fields


class _BadLineError(ValueError):
    """Valid JSON that no dimension object may contain; the message says why."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise _BadLineError(f"names {told(doubled)} twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        # It would be written as `Infinity`, which is not valid JSON.
        msg = f"holds the number {told(text)}, which is too large"
        raise _BadLineError(msg)
    return number


def _id(line: int, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise BadSnapshotError(line, "id is neither text nor a whole number")
    key = _seen(value)
    if not key:
        raise BadSnapshotError(line, "id is empty")
    return key


def _seen(text: str) -> str:
    if text.isascii() and " " < text[:1] < _DELETE and " " < text[-1:] < _DELETE:
        return text
    found = _SEEN.search(text)
    return found.group() if found is not None else ""


SNAPSHOT_COLUMNS = ("id", "name", "status")
"""Required columns of a snapshot; further columns are kept as `attributes`."""


@dataclass(frozen=True, slots=True)
class SnapshotItem:
    """One item of a snapshot."""

    line: int
    id: str
    name: str | None
    status: str
    attributes: str | None
    is_trimmed: bool = False


def read_snapshot(stored: IO[bytes], part: SnapshotPart, max_line_bytes: int, _day: date) -> Iterator[SnapshotItem]:
    """Yield a snapshot's items as they are read, holding their ids; raises BadSnapshotError. Arguments: see `records`."""
    line_of: dict[str, int] = {}
    for line, fields in records(stored, part, SNAPSHOT_COLUMNS, max_line_bytes):
        name = fields["name"]
        # A name that is no text refuses no snapshot.
        name = name if name is None or isinstance(name, str) else json.dumps(name, ensure_ascii=False)
        key, status, attributes, is_trimmed = subject_of(line, fields, SNAPSHOT_COLUMNS, name)
        if (first := line_of.setdefault(key, line)) != line:
            raise BadSnapshotError(line, f"the id {told(key)} is already on line {first}")
        yield SnapshotItem(line, key, name, status, attributes, is_trimmed)
    if not line_of:
        raise BadSnapshotError(0, "holds no item")


START, END = "active_start_date", "active_end_date"
INTERVAL_COLUMNS = ("id", "status", START, END)
"""Required columns of a history; further columns are kept as `attributes`."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Interval:
    """The status of one id over consecutive days."""

    line: int
    id: str
    status: str
    active_start_date: date
    active_end_date: date
    """The last known day with this status, never after the day of the delivery."""
    attributes: str | None
    is_trimmed: bool = False


def folder_of_intervals(dimension: str) -> str:
    """The folder of a dimension's delivered intervals, below `dimensions/`."""
    return f"{dimension}_validity"


def read_intervals(stored: IO[bytes], part: SnapshotPart, max_line_bytes: int, as_of: date) -> Iterator[Interval]:
    """All intervals of a history up to the day `as_of`; raises BadSnapshotError for the first fault or overlap.

    Adjacent equal intervals are joined, open and later ends cut to `as_of`. Holds all of them. Arguments: see `records`.
    """
    by_id: dict[str, list[Interval]] = {}
    for line, fields in records(stored, part, INTERVAL_COLUMNS, max_line_bytes):
        key, status, attributes, is_trimmed = subject_of(line, fields, INTERVAL_COLUMNS)
        start, end = _day(line, START, fields[START]), _day(line, END, fields[END])
        if start is None:
            raise BadSnapshotError(line, f"{START} is empty")
        if start > as_of:
            raise BadSnapshotError(line, f"{START} {start} lies after {as_of}, the day that the delivery tells of")
        if end is not None and end < start:
            raise BadSnapshotError(line, f"{END} {end} lies before {START} {start}")
        last = as_of if end is None else min(end, as_of)
        by_id.setdefault(key, []).append(Interval(line, key, status, start, last, attributes, is_trimmed))
    if not by_id:
        raise BadSnapshotError(0, "holds no interval")
    for own in by_id.values():
        yield from _joined(sorted(own, key=lambda one: one.active_start_date))


def _joined(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Join adjacent intervals of one id, sorted by first day; raises BadSnapshotError if two overlap."""
    last: Interval | None = None
    for interval in intervals:
        if last is not None and interval.active_start_date <= last.active_end_date:
            first, second = sorted((last.line, interval.line))
            reason = f"the interval of the id {told(interval.id)} overlaps with the one on line {first}"
            raise BadSnapshotError(second, reason)
        is_next = last is not None and interval.active_start_date == last.active_end_date + timedelta(days=1)
        if last is not None and is_next and (interval.status, interval.attributes) == (last.status, last.attributes):
            is_trimmed = last.is_trimmed or interval.is_trimmed
            last = replace(last, active_end_date=interval.active_end_date, is_trimmed=is_trimmed)
            continue
        if last is not None:
            yield last
        last = interval
    if last is not None:
        yield last


def _day(line: int, name: str, value: object) -> date | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    day = day_in(value.strip()) if isinstance(value, str) and _DAY.fullmatch(value.strip()) else None
    if day is None:
        raise BadSnapshotError(line, f"{name} {told(str(value))} is no day such as 2026-02-02")
    return day
