"""The items of a snapshot, read line by line: however large the object is, a line and the hashes of ids are in memory.

Contains: both formats, CSV and a JSON object a line, and all that makes an object no snapshot.
Add here: another format of snapshots.
Does not contain: names of objects (snapshot_objects.py), how many items are kept at once
(transforms/snapshot_rows.py), what becomes of a refused snapshot (load/).
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.formats.snapshot_objects import SnapshotPart

REQUIRED = ("id", "name", "status")
"""What every snapshot tells of an item; further columns are kept as `attributes`."""
_SEEN = re.compile(f"{SOMETHING_TO_SEE}(?:.*{SOMETHING_TO_SEE})?", re.DOTALL)
_DELETE = "\x7f"
_TO_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))
_LONGEST_SHOWN = 80
_READ_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class SnapshotItem:
    """One item of a snapshot."""

    line: int
    """Where it begins, from 1."""
    id: str
    name: str | None
    status: str
    attributes: str | None
    """JSON text of the further columns, keys sorted; None where there are none."""
    is_trimmed: bool = False
    """Whether white space around id or status was left out."""


class BadSnapshotError(ValueError):
    """A snapshot that cannot be taken as it is; `line` from 1, 0 for the whole object."""

    def __init__(self, line: int, reason: str) -> None:
        """One sentence without the object's name, which the caller knows."""
        super().__init__(f"line {line}: {reason}" if line else reason)


def read_snapshot(stored: IO[bytes], part: SnapshotPart, max_line_bytes: int) -> Iterator[SnapshotItem]:
    """The items of a snapshot, one after the other; raises BadSnapshotError for what makes it none.

    An id that is there twice is known at the end alone: the items are those of a snapshot when all were read. `stored` can be
    sought in, is at its start, and stays open. A line, in CSV a record of several, has at most `max_line_bytes`.
    """
    ids = _Ids()
    for item in _items(stored, part, max_line_bytes):
        ids.add(item.id)
        yield item
    if not len(ids):
        raise BadSnapshotError(0, "holds no item")
    doubtful = ids.twice()
    lines: dict[str, int] = {}
    for item in _items(stored, part, max_line_bytes) if doubtful else ():
        if hash(item.id) not in doubtful:
            continue
        if item.id in lines:
            raise BadSnapshotError(item.line, f"the id {_told(item.id)} is already on line {lines[item.id]}")
        lines[item.id] = item.line


class _Ids:
    """Which ids may be there twice, by eight bytes for each: a hash that is there once is the hash of one id."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, key: str) -> None:
        self._hashes.append(hash(key))

    def twice(self) -> frozenset[int]:
        values = pa.Array.from_buffers(pa.int64(), len(self._hashes), [None, pa.py_buffer(self._hashes)])
        ordered = values.take(pc.array_sort_indices(values))
        is_same = pc.equal(ordered[1:], ordered[:-1])
        return frozenset(ordered[1:].filter(is_same).to_pylist())


class _Lines:
    """The lines of a text with their ends, none of them longer than it may be."""

    def __init__(self, text: io.TextIOWrapper, max_line_bytes: int) -> None:
        self._text, self._most, self._size = text, max_line_bytes, 0
        self._begins = 1

    @property
    def begins(self) -> int:
        """On which line the present record does, which may have several lines."""
        return self._begins

    @begins.setter
    def begins(self, line: int) -> None:
        self._begins, self._size = line, 0

    def __iter__(self) -> Iterator[str]:
        # One more than the longest end of a line: a line that was cut is too long.
        while line := self._text.readline(self._most + 3):
            kept = line.rstrip("\r\n")
            self._size += len(kept) if kept.isascii() else len(kept.encode())
            if self._size > self._most:
                raise BadSnapshotError(
                    self._begins, f"has more than {self._most:,} bytes, which TIDEMARK_MAX_LINE_BYTES allows"
                )
            yield line


def _items(stored: IO[bytes], part: SnapshotPart, max_line_bytes: int) -> Iterator[SnapshotItem]:
    stored.seek(0)
    is_csv = part is SnapshotPart.CSV
    text = io.TextIOWrapper(stored, encoding="utf-8-sig", newline="" if is_csv else "\n")
    try:
        lines = _Lines(text, max_line_bytes)
        yield from _csv_items(lines) if is_csv else _json_items(lines)
    except UnicodeDecodeError:
        raise BadSnapshotError(_undecodable_line(stored), "is not UTF-8") from None
    finally:
        # It would close what it reads.
        text.detach()


def _undecodable_line(stored: IO[bytes]) -> int:
    stored.seek(0)
    decoder, lines, is_whole = codecs.getincrementaldecoder("utf-8")(), 1, False
    while not is_whole:
        block = stored.read(_READ_BYTES)
        is_whole = not block
        try:
            decoder.decode(block, final=is_whole)
        except UnicodeDecodeError as error:
            return lines + error.object.count(b"\n", 0, error.start)
        lines += block.count(b"\n")
    return lines


def _csv_items(lines: _Lines) -> Iterator[SnapshotItem]:
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise BadSnapshotError(lines.begins, _told_by(error)) from None
        line, lines.begins = lines.begins, reader.line_num + 1
        if fields is None:
            break
        if header is None:
            header = _header(line, fields)
        elif fields:
            if len(fields) != len(header):
                raise BadSnapshotError(line, f"has {len(fields)} fields, and the header names {len(header)}")
            yield _item(line, dict(zip(header, fields, strict=True)))
    if header is None:
        raise BadSnapshotError(0, "is empty: not even a header is there")


def _told_by(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "a quote is not closed"
    if "field larger than field limit" in str(error):
        return f"a field has more than {csv.field_size_limit():,} characters, or a quote is not closed"
    return str(error)


def _header(line: int, fields: Sequence[str]) -> list[str]:
    names = [name.strip() for name in fields]
    for name in REQUIRED:
        if name not in names:
            raise BadSnapshotError(line, f"the header names no column {name}, only {_told(', '.join(names))}")
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise BadSnapshotError(line, f"the header names the column {_told(doubled)} twice")
    return names


def _json_items(lines: _Lines) -> Iterator[SnapshotItem]:
    for number, line in enumerate(lines, 1):
        lines.begins = number + 1
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
            item = _item(number, fields)
        except RecursionError:
            raise BadSnapshotError(number, "is nested too deeply") from None
        yield item


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


def _item(line: int, fields: dict[str, Any]) -> SnapshotItem:
    name = fields["name"]
    if name is not None and not isinstance(name, str):
        raise BadSnapshotError(line, "name is no text")
    status = _seen(fields["status"]) if isinstance(fields["status"], str) else None
    if not status:
        raise BadSnapshotError(line, "status is empty or no text")
    more = {key: value for key, value in fields.items() if key not in REQUIRED}
    attributes = _TO_JSON.encode(more) if more else None
    key = _id(line, fields["id"])
    is_trimmed = status != fields["status"] or (isinstance(fields["id"], str) and key != fields["id"])
    for text in (key, name, status, attributes):
        if text is not None and _is_unstorable(text):
            raise BadSnapshotError(line, "holds half of a surrogate pair, which is no text")
    return SnapshotItem(line, key, name, status, attributes, is_trimmed)


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
    """The text from its first to its last character that a reader sees."""
    if text.isascii() and " " < text[:1] < _DELETE and " " < text[-1:] < _DELETE:
        # Almost all are such.
        return text
    found = _SEEN.search(text)
    return found.group() if found is not None else ""


def _is_unstorable(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _told(text: str) -> str:
    return repr(shown(text, _LONGEST_SHOWN))
