"""From an object's bytes to its lines, or the reason why the whole object is refused.

Lives here: bounded decompression, what is wrong with a gzip, splitting. Put here: another way for an object to be broken.
Keep out: what is in a line (domain/event_lines.py). Source of the framing rules: RFC 1952.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline_assets.domain.quarantine_reasons import QuarantineReason

_BOM = b"\xef\xbb\xbf"
_STEP = 1 << 20


@dataclass(frozen=True)
class Line:
    """One line of an object."""

    number: int
    """From 1."""
    offset: int
    """Bytes from the start of the decompressed object."""
    text: bytes
    """Without the line break."""

    @property
    def is_blank(self) -> bool:
        """Empty or white space only: counted, never quarantined."""
        return not self.text.strip()


class BadObjectError(Exception):
    """The whole object cannot be read; none of its lines is used."""

    def __init__(self, reason: QuarantineReason, detail: str) -> None:
        """Name the reason of the contract and what was found."""
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


def decompress(body: bytes, max_bytes: int) -> bytes:
    """The decompressed object, all gzip members of it; raises BadObjectError. Never holds more than `max_bytes`."""
    if not body:
        raise BadObjectError(QuarantineReason.EMPTY_OBJECT, "the object has no bytes")
    parts: list[bytes] = []
    size, rest, is_first = 0, body, True
    while rest:
        if not is_first and not rest.strip(b"\0"):
            break  # zero padding after the last member is allowed by gzip's own tools
        if rest[:2] != b"\x1f\x8b":
            if is_first:
                raise BadObjectError(QuarantineReason.NOT_GZIP, f"starts with {rest[:4]!r}")
            raise BadObjectError(QuarantineReason.TRAILING_GARBAGE, f"{len(rest)} bytes after the last gzip member")
        member = zlib.decompressobj(wbits=31)
        pending = rest
        while not member.eof:
            try:
                part = member.decompress(pending, _STEP)
            except zlib.error as error:
                reason = QuarantineReason.CRC_ERROR if "check" in str(error) else QuarantineReason.NOT_GZIP
                raise BadObjectError(reason, str(error)) from None
            size += len(part)
            if size > max_bytes:
                raise BadObjectError(QuarantineReason.OBJECT_TOO_LARGE, f"decompresses to more than {max_bytes} bytes")
            parts.append(part)
            pending = member.unconsumed_tail
            if not member.eof and not pending and not part:
                raise BadObjectError(QuarantineReason.TRUNCATED_GZIP, f"ends after {size} decompressed bytes")
        rest, is_first = member.unused_data, False
    return b"".join(parts)


def lines(text: bytes) -> Iterator[Line]:
    """Every line with its place; a byte order mark at the start belongs to no line."""
    offset = len(_BOM) if text.startswith(_BOM) else 0
    number = 0
    while offset < len(text):
        end = text.find(b"\n", offset)
        end = len(text) if end < 0 else end
        number += 1
        yield Line(number, offset, text[offset:end].removesuffix(b"\r"))
        offset = end + 1
