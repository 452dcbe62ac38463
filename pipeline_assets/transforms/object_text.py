"""Reads objects of landing in tasks: hashes, decompresses or refuses them at the listed version."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import IO, Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from pipeline_assets.domain.deliveries import NOT_READABLE, Delivery, QuarantineReason
from pipeline_assets.domain.errors import ObjectMovedError, UnreadableObjectError
from pipeline_assets.domain.machine import most_text_bytes, naming_the_disk, require_room
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.skew import balanced, part_weight, parts_of
from pipeline_assets.formats.base import EVENT_TIME, EXTRA_COLUMN, ParsedLine
from pipeline_assets.formats.gzip_lines import BOM, BadObjectError, Line, blocks, decompress
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.data_files import arrow_schema

_COLUMN_NAMES = EXPORT_FORMAT.column_names
_EVENT_TIME = _COLUMN_NAMES.index(EVENT_TIME)
_ROW_TYPES = {
    "project_id": "string",
    "_arrival_date": "date",
    "_object_key": "string",
    "_object_etag": "string",
    **EXPORT_FORMAT.spark_types,
    EXTRA_COLUMN: "string",
    "event_date": "date",
    "_line_number": "int",
}
_REFUSED_TYPES = {
    "source": "string",
    "arrival_date": "date",
    "project_id": "string",
    "object_key": "string",
    "object_etag": "string",
    "line_number": "int",
    "byte_offset": "bigint",
    "byte_length": "bigint",
    "reason": "string",
    "detail": "string",
    "sample": "binary",
}
ROWS, REFUSED = arrow_schema(_ROW_TYPES), arrow_schema(_REFUSED_TYPES)
"""Raw's columns without hashes; raw.quarantine's without `is_batch_accepted` (line_number is null for a whole object)."""
SUMMARY_COUNTS = ("lines", "rows", "quarantined", "blank")

Summary: TypeAlias = dict[str, Any]
"""The result of reading an object or a part: object_key, size_bytes, sha256, SUMMARY_COUNTS, error, error_detail, line_reasons.

size_bytes as listed; sha256 of the stored bytes (None if unread). lines = rows + quarantined + blank, all 0 if `error` is a
QuarantineReason of the object, MOVED or NOT_READABLE. line_reasons: JSON text of `DeliveryRecord.line_reasons`, or None.
"""


class Found(NamedTuple):
    """One result of reading, of one of three kinds."""

    rows: pa.RecordBatch | None = None
    refused: pa.RecordBatch | None = None
    summaries: Sequence[Summary] = ()


def begun_summary(delivery: Delivery) -> Summary:
    """The summary of an unread object."""
    return {
        "object_key": delivery.key,
        "size_bytes": delivery.size_bytes,
        **dict.fromkeys(SUMMARY_COUNTS, 0),
        **dict.fromkeys(("sha256", "error", "error_detail", "line_reasons")),
    }


def rows_of(delivery: Delivery, columns: Mapping[str, Any], count: int) -> Found:
    """`count` good lines; `columns` vary from line to line, other values are the object's."""
    names = {
        "project_id": delivery.batch.project_id,
        "_arrival_date": delivery.batch.arrival_date,
        "_object_key": delivery.key,
        "_object_etag": delivery.etag,
    }
    return Found(rows=batch_of(ROWS, names, columns, count))


def rows_of_events(delivery: Delivery, events: Sequence[ParsedLine], numbers: Sequence[int]) -> Found:
    """Good lines of one object; `numbers` holds their line numbers, from 1."""
    columns: dict[str, Any] = dict(
        zip(_COLUMN_NAMES, zip(*(event.values for event in events), strict=True), strict=True)
    )
    columns[EXTRA_COLUMN] = [event.extra for event in events]
    columns["event_date"] = [event.values[_EVENT_TIME].date() for event in events]
    columns["_line_number"] = numbers
    return rows_of(delivery, columns, len(events))


def refused_of(delivery: Delivery, records: Sequence[Mapping[str, Any]]) -> Found:
    """Refused lines of an object, or the object itself; all records have the same columns."""
    names = {
        "source": delivery.batch.source.value,
        "arrival_date": delivery.batch.arrival_date,
        "project_id": delivery.batch.project_id,
        "object_key": delivery.key,
        "object_etag": delivery.etag,
    }
    columns = {name: [record[name] for record in records] for name in records[0]}
    return Found(refused=batch_of(REFUSED, names, columns, len(records)))


def batch_of(schema: pa.Schema, constants: Mapping[str, Any], columns: Mapping[str, Any], count: int) -> pa.RecordBatch:
    """A batch of `count` rows: `constants` are the same in all rows, columns in neither mapping are null."""
    arrays = []
    for entry in schema:
        if entry.name in columns:
            values = columns[entry.name]
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, entry.type))
        else:
            arrays.append(pa.repeat(pa.scalar(constants.get(entry.name), entry.type), count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_OBJECT_COST_BYTES = 64 * 1024
"""The cost of a request, in bytes read, so that thousands of empty hours count."""


class Share(NamedTuple):
    """The part of an object that one task reads: number `part` of `parts`, from 0."""

    delivery: Delivery
    part: int = 0
    parts: int = 1

    @property
    def weight(self) -> float:
        """The cost of reading it, in bytes: stored bytes plus a fixed cost per request."""
        return part_weight(self.delivery.size_bytes, self.parts) + _OBJECT_COST_BYTES

    @property
    def order(self) -> tuple[str, date, str, int]:
        """Sort key within a task."""
        batch = self.delivery.batch
        return batch.project_id, batch.arrival_date, self.delivery.key, self.part


def shares(deliveries: Sequence[Delivery], parallelism: int, *, is_divided: bool = False) -> list[list[Share]]:
    """The shares of each task: about equal bytes; with `is_divided`, a very large object is read in parts."""
    total = sum(delivery.size_bytes + _OBJECT_COST_BYTES for delivery in deliveries)
    listed = [
        Share(delivery, part, parts)
        for delivery in deliveries
        for parts in [parts_of(delivery.size_bytes, total, parallelism) if is_divided else 1]
        for part in range(parts)
    ]
    listed.sort(key=lambda share: (-share.weight, share.delivery.key, share.part))
    tasks: list[list[Share]] = [[] for _ in range(max(1, min(len(listed), parallelism)))]
    for share, task in zip(listed, balanced([share.weight for share in listed], parallelism), strict=True):
        tasks[task].append(share)
    return [sorted(task, key=lambda share: share.order) for task in tasks]


_HEAD_BYTES, _STEP_BYTES, _MOST_LINES = 4096, 1 << 16, 1000
_JSON = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
_ARCHIVES = (
    (rb"\x1f\x8b", "another gzip inside"), (rb"PK\x03\x04", "a zip archive"), (rb"(?s)(?!\{).{257}ustar", "a tar archive"),
    (rb"PAR1", "Parquet"), (rb"Obj\x01", "Avro"), (rb"ORC", "ORC"), (rb"\x28\xb5\x2f\xfd", "zstd inside"),
    (rb"BZh", "bzip2 inside"), (rb"\xfd7zXZ", "xz inside"),
)  # fmt: skip
_LOOKS = (
    (rb"\x00+\Z", "zero bytes alone"),
    (rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff|(?:[^\x00]\x00{3}){4}|(?:\x00{3}[^\x00]){4}", "UTF-32"),
    (rb"\xff\xfe|\xfe\xff|(?:[^\x00]\x00){4}|(?:\x00[^\x00]){4}", "UTF-16"),
    (rb"(?i)(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body)\b", "HTML"), (rb"(?:\xef\xbb\xbf)?\s*<", "XML"),
    (rb"(?:\xef\xbb\xbf)?\s*\[", "a JSON array"),
)  # fmt: skip


def open_export(stored: IO[bytes], max_bytes: int, max_line_bytes: int) -> IO[bytes]:
    """The decompressed object, which the caller closes; raises BadObjectError if it is unreadable, no export, or cut."""
    text = decompress(stored, max_bytes)
    try:
        if (look := _foreign_look(text, max_line_bytes)) is not None:
            raise BadObjectError(QuarantineReason.NOT_AN_EXPORT, look)
        _require_end(text, max_line_bytes)
    except BaseException:
        text.close()
        raise
    text.seek(0)
    return text


def _foreign_look(text: IO[bytes], max_line_bytes: int) -> str | None:
    head, first, lines = text.read(_HEAD_BYTES), None, 0
    if (archive := _begins(head, _ARCHIVES)) is not None:
        return archive  # which may hold whole lines of the vendor
    text.seek(0)
    for block in blocks(text, _MOST_LINES, _STEP_BYTES, max_line_bytes):
        for line in () if block.is_blank else block.each():
            lines += not line.is_blank
            if first is None and not line.is_blank:
                first = line
                # Event by event, the last one of an array would pass for a line of the vendor.
                if line.text.lstrip().startswith(b"[") and not _is_json(line.text):
                    return "a JSON array over several lines"
            keys = None if line.left_out else EXPORT_FORMAT.line_keys(line.text)
            if keys is not None and len(EXPORT_FORMAT.own_keys & keys) >= EXPORT_FORMAT.least_own_keys:
                return None
    is_odd_event = first is not None and lines == 1 and _began_as_event(first)
    return None if first is None or is_odd_event else _begins(head, _LOOKS) or _look_of(first)


def _began_as_event(line: Line) -> bool:
    """Whether invalid JSON began as an event of the vendor; a quiet hour may have only one line."""
    named = sum(b'"%b"' % key.encode() in line.text for key in EXPORT_FORMAT.own_keys)
    is_like_one = line.text.lstrip().startswith(b"{") and named >= EXPORT_FORMAT.least_own_keys
    return is_like_one and (line.left_out > 0 or EXPORT_FORMAT.line_keys(line.text) is None)


def _begins(head: bytes, looks: Sequence[tuple[bytes, str]]) -> str | None:
    return next((look for form, look in looks if re.match(form, head)), None)


def _look_of(line: Line) -> str:
    if line.left_out:
        return f"a line of {line.length} bytes, beyond TIDEMARK_MAX_LINE_BYTES"
    keys = EXPORT_FORMAT.line_keys(line.text)
    if keys is not None:
        own = ", ".join(sorted(EXPORT_FORMAT.own_keys))
        return f"no event of this vendor, which has at least {EXPORT_FORMAT.least_own_keys} of {own}; this has {few(keys, 6)}"
    if "\N{REPLACEMENT CHARACTER}" in line.text.decode("utf-8", "replace"):
        return "bytes that are not UTF-8"
    if line.text.lstrip().startswith(b"{"):
        return "no line is whole JSON, as where one object spans several lines"
    return "delimited text (CSV)" if re.search(rb"[,;\t|].*[,;\t|]", line.text) else "text that is no JSON"


def _require_end(text: IO[bytes], max_line_bytes: int) -> None:
    """An export ends in a line break or whole JSON; a text cut before compression does not."""
    size = text.seek(0, io.SEEK_END)
    for step in (_STEP_BYTES, max_line_bytes + 1):
        text.seek(max(0, size - step))
        _, line_break, last = text.read().rpartition(b"\n")
        if is_whole := bool(line_break) or step >= size:
            break
    last = last.removeprefix(BOM).strip()
    if last and not (_is_json(last) if is_whole else last.endswith(b"}")):
        detail = f"the text ends at byte {size} within a line, {len(last)} bytes after its start"
        raise BadObjectError(QuarantineReason.CUT_OFF, detail)


def _is_json(line: bytes) -> bool:
    try:
        _JSON.decode(line.decode("utf-8", "replace").strip())
    except ValueError:
        return False
    except RecursionError:
        pass  # too deep to tell; the line parser refuses it with that reason
    return True


MOVED = "moved"
"""`error` of an object that was overwritten or deleted between listing and reading."""
SAMPLE_BYTES = 512
_READ_BYTES = 1024**2


class ObjectReader(Protocol):
    """Reads exactly the listed version of an object; picklable (resources/landing/store.py)."""

    def open(self, key: str, etag: str) -> IO[bytes]:
        """Open the object; the caller closes it. Raises ObjectMovedError, LandingAccessError or LandingUnavailableError."""


def hashed_objects(reader: ObjectReader, group: Sequence[Share]) -> dict[str, str]:
    """Object key -> sha256 of the stored bytes, for readable objects: a task's work. Raises LandingUnavailableError."""
    found = {}
    for one in (share.delivery for share in group):
        with (
            naming_the_disk(),
            suppress(ObjectMovedError, UnreadableObjectError),
            reader.open(one.key, one.etag) as stored,
        ):
            found[one.key] = _fingerprint(stored)[0]
    return found


def export_text(
    reader: ObjectReader, delivery: Delivery, summary: Summary, max_object_bytes: int, max_line_bytes: int
) -> Generator[Found, None, IO[bytes] | None]:
    """The decompressed object, or None after records of a refused one. Raises TooLargeHereError beyond this process's limit."""
    size, sample = delivery.size_bytes, b""
    try:
        if size > max_object_bytes:
            detail = f"{size} bytes as listed, at most {max_object_bytes} when decompressed; not read"
            raise BadObjectError(QuarantineReason.OBJECT_TOO_LARGE, detail)
        with reader.open(delivery.key, delivery.etag) as stored:
            summary["sha256"], size, sample = _fingerprint(stored)
            return open_export(stored, most_text_bytes(max_object_bytes), max_line_bytes)
    except (ObjectMovedError, UnreadableObjectError) as error:
        kind = MOVED if isinstance(error, ObjectMovedError) else NOT_READABLE
        yield Found(summaries=[summary | {"error": kind, "error_detail": error.reason}])
    except BadObjectError as error:
        reason, detail = error.reason.value, error.detail
        if summary["sha256"] is not None and error.reason is QuarantineReason.OBJECT_TOO_LARGE:
            require_room(max_object_bytes)
        record = {"byte_offset": 0, "byte_length": size, "reason": reason, "detail": detail, "sample": sample}
        yield refused_of(delivery, [record])
        yield Found(summaries=[summary | {"error": reason, "error_detail": detail}])
    return None


def _fingerprint(stored: IO[bytes]) -> tuple[str, int, bytes]:
    digest, size, sample = hashlib.sha256(), 0, b""
    while part := stored.read(_READ_BYTES):
        digest.update(part)
        size += len(part)
        sample = sample or part[:SAMPLE_BYTES]
    stored.seek(0)
    return digest.hexdigest(), size, sample
