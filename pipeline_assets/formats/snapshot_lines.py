"""Objects of dimensions as lines: CSV with a header, or a JSON object a line, each with the names that must be there.

Contains: decoding, splitting into records, and what all records have: an id, a status, and further columns as text.
Add here: another format of such objects.
Does not contain: what a record means (snapshot_objects.py, interval_objects.py).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from math import isfinite
from typing import Any

from pipeline_assets.domain.plain_text import shown

_LONGEST_SHOWN = 80


class SnapshotPart(StrEnum):
    """What an object below a dimension's folder is."""

    CSV = ".csv"
    JSONL = ".jsonl"
    MARKER = "_complete"


class BadSnapshotError(ValueError):
    """An object that cannot be taken as it is; `line` from 1, 0 for the whole object."""

    def __init__(self, line: int, reason: str) -> None:
        """One sentence without the object's name, which the caller knows."""
        super().__init__(f"line {line}: {reason}" if line else reason)


def records(content: bytes, part: SnapshotPart, required: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line from 1 and fields by name, of each record; raises BadSnapshotError for the first thing that is none.

    Every record has the required names. All of it is in memory: the caller bounds the bytes.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSnapshotError(content.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None
    return _csv_records(text, required) if part is SnapshotPart.CSV else _json_records(text, required)


def id_in(line: int, fields: Mapping[str, Any]) -> str:
    """The id of a record, as text; raises BadSnapshotError for one that is empty or something else."""
    value = fields["id"]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise BadSnapshotError(line, "id is neither text nor a whole number")
    if not value.strip():
        raise BadSnapshotError(line, "id is empty")
    return value


def status_in(line: int, fields: Mapping[str, Any]) -> str:
    """The status of a record; raises BadSnapshotError for one that is empty or no text."""
    status = fields["status"]
    if not isinstance(status, str) or not status.strip():
        raise BadSnapshotError(line, "status is empty or no text")
    return status


def attributes_in(line: int, fields: Mapping[str, Any], required: Collection[str]) -> str | None:
    """JSON text of the further columns, keys sorted; None where there are none."""
    more = {key: value for key, value in fields.items() if key not in required}
    try:
        return json.dumps(more, sort_keys=True, ensure_ascii=False, separators=(",", ":")) if more else None
    except RecursionError:
        raise BadSnapshotError(line, "is nested too deeply") from None


def require_storable(line: int, *texts: str | None) -> None:
    """Raise BadSnapshotError for a text that no table can hold."""
    for text in texts:
        if text is not None and _is_unstorable(text):
            raise BadSnapshotError(line, "holds half of a surrogate pair, which is no text")


def told(text: str) -> str:
    """A text of the object, as a reason may show it."""
    return repr(shown(text, _LONGEST_SHOWN))


def _csv_records(text: str, required: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
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


def _json_records(text: str, required: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
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
        for name in required:
            if name not in fields:
                raise BadSnapshotError(number, f"has no {name}")
        yield number, fields


class _BadLineError(ValueError):
    """JSON that is whole and says what no snapshot may say; the text tells what."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise _BadLineError(f"names {told(doubled)} twice")
    return found


def _no_number(text: str) -> None:
    raise ValueError(text)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        # It would be written as `Infinity`, which is no JSON.
        msg = f"holds the number {told(text)}, which is too large"
        raise _BadLineError(msg)
    return number


def _is_unstorable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
