"""Snapshots of a dimension as objects: what one is called, and reading its rows.

Contains: names `dimensions/{dimension}/{date}.csv|.jsonl`, markers `{date}_complete`, and both formats.
Add here: another format of snapshots.
Does not contain: events (amplitude/), opening objects (resources/landing/), what is published of them (load/).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from math import isfinite
from typing import Any

from pipeline_assets.domain.plain_text import shown

FOLDER = "dimensions"
REQUIRED = ("id", "name", "status")
"""What every snapshot tells of an item; further columns are kept as `attributes`."""
_NAME = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(?P<rest>\.csv|\.jsonl|_complete)")
_LONGEST_SHOWN = 80


class SnapshotPart(StrEnum):
    """What an object below a dimension's folder is."""

    CSV = ".csv"
    JSONL = ".jsonl"
    MARKER = "_complete"


@dataclass(frozen=True)
class SnapshotRow:
    """One item of a snapshot."""

    line: int
    """Where it begins, from 1."""
    id: str
    name: str | None
    status: str
    attributes: str | None
    """JSON text of the further columns, keys sorted; None where there are none."""


class BadSnapshotError(ValueError):
    """A snapshot that cannot be taken as it is; `line` from 1, 0 for the whole object."""

    def __init__(self, line: int, reason: str) -> None:
        """One sentence without the object's name, which the caller knows."""
        super().__init__(f"line {line}: {reason}" if line else reason)


def folder_of(dimension: str) -> str:
    """`dimensions/item`: where the objects of a dimension lie."""
    return f"{FOLDER}/{dimension}"


def parse_name(dimension: str, key: str) -> tuple[date, SnapshotPart] | None:
    """The day and kind of an object by its full key; None for one that is no part of a snapshot."""
    match = _NAME.fullmatch(key.removeprefix(f"{folder_of(dimension)}/"))
    if match is None:
        return None
    try:
        return date.fromisoformat(match["day"]), SnapshotPart(match["rest"])
    except ValueError:
        return None


def read_snapshot(content: bytes, part: SnapshotPart) -> list[SnapshotRow]:
    """All items of a snapshot; raises BadSnapshotError for the first thing that makes it none.

    Keys are unique and not empty. All of it is in memory: the caller bounds the bytes.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSnapshotError(content.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None
    rows = list(_csv_rows(text) if part is SnapshotPart.CSV else _json_rows(text))
    if not rows:
        raise BadSnapshotError(0, "holds no item")
    lines: dict[str, int] = {}
    for row in rows:
        if row.id in lines:
            raise BadSnapshotError(row.line, f"the id {_told(row.id)} is already on line {lines[row.id]}")
        lines[row.id] = row.line
    return rows


def _csv_rows(text: str) -> Iterator[SnapshotRow]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    begins = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            unclosed = "unexpected end of data" in str(error)
            raise BadSnapshotError(begins, "a quote is not closed" if unclosed else f"{error}") from None
        line, begins = begins, reader.line_num + 1
        if fields is None:
            break
        if header is None:
            header = _header(line, fields)
        elif fields:
            if len(fields) != len(header):
                raise BadSnapshotError(line, f"has {len(fields)} fields, and the header names {len(header)}")
            yield _row(line, dict(zip(header, fields, strict=True)))
    if header is None:
        raise BadSnapshotError(0, "is empty: not even a header is there")


def _header(line: int, fields: Sequence[str]) -> list[str]:
    names = [name.strip() for name in fields]
    for name in REQUIRED:
        if name not in names:
            raise BadSnapshotError(line, f"the header names no column {name}, only {_told(', '.join(names))}")
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise BadSnapshotError(line, f"the header names the column {_told(doubled)} twice")
    return names


def _json_rows(text: str) -> Iterator[SnapshotRow]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite)
        except RecursionError:
            raise BadSnapshotError(number, "is nested too deeply") from None
        except ValueError as error:
            told = str(error) if isinstance(error, _BadLineError) else "is not whole JSON"
            raise BadSnapshotError(number, told) from None
        if not isinstance(fields, dict):
            raise BadSnapshotError(number, "is no JSON object")
        for name in REQUIRED:
            if name not in fields:
                raise BadSnapshotError(number, f"has no {name}")
        try:
            row = _row(number, fields)
        except RecursionError:
            raise BadSnapshotError(number, "is nested too deeply") from None
        yield row


class _BadLineError(ValueError):
    """JSON that is whole and says what no snapshot may say; the text tells what."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise _BadLineError(f"names {_told(doubled)} twice")
    return found


def _no_number(text: str) -> None:
    raise ValueError(text)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        # It would be written as `Infinity`, which is no JSON.
        msg = f"holds the number {_told(text)}, which is too large"
        raise _BadLineError(msg)
    return number


def _row(line: int, fields: dict[str, Any]) -> SnapshotRow:
    name = fields["name"]
    if name is not None and not isinstance(name, str):
        raise BadSnapshotError(line, "name is no text")
    status = fields["status"]
    if not isinstance(status, str) or not status.strip():
        raise BadSnapshotError(line, "status is empty or no text")
    more = {key: value for key, value in fields.items() if key not in REQUIRED}
    attributes = json.dumps(more, sort_keys=True, ensure_ascii=False, separators=(",", ":")) if more else None
    row = SnapshotRow(line, _id(line, fields["id"]), name, status, attributes)
    for text in (row.id, row.name, row.status, row.attributes):
        if text is not None and _is_unstorable(text):
            raise BadSnapshotError(line, "holds half of a surrogate pair, which is no text")
    return row


def _id(line: int, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise BadSnapshotError(line, "id is neither text nor a whole number")
    if not value.strip():
        raise BadSnapshotError(line, "id is empty")
    return value


def _is_unstorable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _told(text: str) -> str:
    return repr(shown(text, _LONGEST_SHOWN))
