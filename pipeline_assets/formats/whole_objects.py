"""Judges the decompressed text of an object as a whole: whether it holds events of this vendor, and whether its end is cut.

Contains: the two rules, and what a text looks like that is no export.
Add here: another look of a wrong file.
Does not contain: faults of the gzip file (gzip_lines.py), which keys are the vendor's (amplitude/own_lines.py).
"""

from __future__ import annotations

import io
import json
import re
from typing import IO

from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.quarantine_reasons import QuarantineReason
from pipeline_assets.formats.gzip_lines import BadObjectError, Line, blocks, decompress
from pipeline_assets.formats.registry import EXPORT_FORMAT

_BOM = b"\xef\xbb\xbf"
_STEP_BYTES = 1 << 16
_MOST_LINES = 1000
_MOST_KEYS = 6
_HEAD_BYTES = 4096
_JSON = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
_STARTS = (
    (b"\x1f\x8b", "another gzip inside"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PAR1", "Parquet"),
    (b"Obj\x01", "Avro"),
    (b"ORC", "ORC"),
    (b"\x28\xb5\x2f\xfd", "zstd inside"),
    (b"BZh", "bzip2 inside"),
    (b"\xfd7zXZ", "xz inside"),
)


def open_export(stored: IO[bytes], max_bytes: int, max_line_bytes: int) -> IO[bytes]:
    """The decompressed object, which the caller closes; raises BadObjectError where it is unreadable, no export, or cut."""
    text = decompress(stored, max_bytes)
    try:
        _require_events(text, max_line_bytes)
        _require_end(text, max_line_bytes)
    except BaseException:
        text.close()
        raise
    text.seek(0)
    return text


def _require_events(text: IO[bytes], max_line_bytes: int) -> None:
    """One line of the vendor suffices, and the first of a good object is: other lines stay under the batch's tolerance."""
    head, first = text.read(_HEAD_BYTES), None
    text.seek(0)
    archive = next((look for magic, look in _STARTS if head.startswith(magic)), None)
    archive = "a tar archive" if head[257:262] == b"ustar" else archive
    if archive is not None:
        # An archive that does not compress holds whole lines.
        raise BadObjectError(QuarantineReason.NOT_AN_EXPORT, archive)
    for block in blocks(text, _MOST_LINES, _STEP_BYTES, max_line_bytes):
        for line in () if block.is_blank else block.each():
            if line.is_blank:
                continue
            if first is None and line.text.lstrip().startswith(b"[") and not _is_json(line.text):
                # Written one event a line, its last event would pass for a line of the vendor.
                raise BadObjectError(QuarantineReason.NOT_AN_EXPORT, "a JSON array over several lines")
            if not line.left_out and EXPORT_FORMAT.is_own_line(line.text):
                return
            first = first or line
    if first is not None:
        raise BadObjectError(QuarantineReason.NOT_AN_EXPORT, _look(head, first))


def _require_end(text: IO[bytes], max_line_bytes: int) -> None:
    """An export ends in a line break, or at least in whole JSON; a text that was cut before it was compressed does not."""
    size = text.seek(0, io.SEEK_END)
    for step in (_STEP_BYTES, max_line_bytes + 1):
        text.seek(max(0, size - step))
        _, line_break, last = text.read().rpartition(b"\n")
        if line_break or step >= size:
            break
    last = last.removeprefix(_BOM).strip()
    if last and not (_is_json(last) if line_break or step >= size else last.endswith(b"}")):
        detail = f"the last line breaks off after {len(last)} bytes" if line_break else "its only line breaks off"
        raise BadObjectError(QuarantineReason.CUT_OFF, f"{detail}, at byte {size} of the decompressed text")


def _is_json(line: bytes) -> bool:
    try:
        _JSON.decode(line.decode("utf-8", "replace").strip())
    except ValueError:
        return False
    except RecursionError:
        pass  # nested too deep to tell; the line parser refuses it with that reason
    return True


def _look(head: bytes, first: Line) -> str:
    """What a text without any event of the vendor looks like, by its start."""
    start = head.removeprefix(_BOM).lstrip()
    if not head.strip(b"\0"):
        return "zero bytes alone"
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")) or head.count(0) > len(head) // 4:
        return "UTF-32" if head.count(0) > len(head) * 5 // 8 else "UTF-16"
    if start.startswith(b"<"):
        return "HTML" if re.match(rb"(?i)<(!doctype\s+html|html|head|body)\b", start) else "XML"
    if start.startswith(b"["):
        return "a JSON array"
    if first.left_out:
        return f"a line of {first.length} bytes, beyond TIDEMARK_MAX_LINE_BYTES"
    keys = EXPORT_FORMAT.line_keys(first.text)
    if keys is not None:
        return (
            f"no event of this vendor: it lacks {EXPORT_FORMAT.own_fields}; the first line has {few(keys, _MOST_KEYS)}"
        )
    if "\N{REPLACEMENT CHARACTER}" in first.text.decode("utf-8", "replace"):
        return "bytes that are not UTF-8"
    if start.startswith(b"{"):
        return "no line is whole JSON, as where one object spans several lines"
    if any(first.text.count(separator) > 1 for separator in (b",", b";", b"\t", b"|")):
        return "delimited text (CSV)"
    return "text that is no JSON"
