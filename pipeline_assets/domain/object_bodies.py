"""From an object's bytes to its lines, or the reason why the whole object is refused.

Lives here: bounded decompression, what is wrong with a gzip, splitting. Put here: another way for an object to be broken.
Keep out: what is in a line (domain/event_lines.py). Source of the framing rules: RFC 1952.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline_assets.domain.quarantine_reasons import QuarantineReason

_BOM = b"\xef\xbb\xbf"
_MAGIC = b"\x1f\x8b"
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
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
    """The decompressed object, all gzip members of it; raises BadObjectError.

    Holds at most `max_bytes` and one step of output. Zero bytes up to the end of the object are padding, which gzip's
    own tool allows; anything else that is no member refuses the object, and so do zero bytes between members.
    """
    if not body:
        raise BadObjectError(QuarantineReason.EMPTY_OBJECT, "the object has no bytes")
    text = io.BytesIO()
    place = 0
    while place < len(body):
        left = len(body) - place
        if not body.startswith(_MAGIC, place):
            if place == 0:
                raise BadObjectError(QuarantineReason.NOT_GZIP, f"starts with {body[:4]!r}")
            if body.count(0, place) == left:
                break
            raise BadObjectError(QuarantineReason.TRAILING_GARBAGE, f"{left} bytes after the last gzip member")
        place = _member(body, place, text, max_bytes)
    return text.getvalue()


def _member(body: bytes, place: int, text: io.BytesIO, max_bytes: int) -> int:
    """Append the member that starts at `place`; returns where it ends."""
    # In small steps on both sides: zlib copies what it leaves unread, and one step may expand a thousandfold.
    member = zlib.decompressobj(wbits=31)
    pending = b""
    while not member.eof:
        if not pending:
            pending = body[place : place + _READ_BYTES]
            place += len(pending)
        is_at_end = not pending
        try:
            part = member.decompress(pending, _WRITE_BYTES)
        except zlib.error as error:
            reason = QuarantineReason.CRC_ERROR if "check" in str(error) else QuarantineReason.NOT_GZIP
            raise BadObjectError(reason, str(error)) from None
        if text.tell() + len(part) > max_bytes:
            raise BadObjectError(QuarantineReason.OBJECT_TOO_LARGE, f"decompresses to more than {max_bytes} bytes")
        text.write(part)
        pending = member.unconsumed_tail
        if is_at_end and not part and not member.eof:
            raise BadObjectError(QuarantineReason.TRUNCATED_GZIP, f"ends after {text.tell()} decompressed bytes")
    return place - len(member.unused_data)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of an object."""

    first_number: int
    """Of the first line, from 1."""
    first_offset: int
    """Of the first line, bytes from the start of the decompressed object."""
    lines: Sequence[bytes]
    """Without their `\\n`."""

    def halves(self) -> tuple[Block, Block]:
        """The first and the second half."""
        middle = len(self.lines) // 2
        first = self.lines[:middle]
        offset = self.first_offset + sum(map(len, first)) + middle
        return (
            Block(self.first_number, self.first_offset, first),
            Block(self.first_number + middle, offset, self.lines[middle:]),
        )

    def each(self) -> Iterator[Line]:
        """Its lines one by one, each with its place."""
        offset = self.first_offset
        for number, line in enumerate(self.lines, self.first_number):
            yield Line(number, offset, line.removesuffix(b"\r"))
            offset += len(line) + 1


def blocks(text: bytes, max_lines: int, max_bytes: int) -> Iterator[Block]:
    """All lines in blocks of so many lines at most, ended by the line that reaches so many bytes; without a byte order mark."""
    offset = len(_BOM) if text.startswith(_BOM) else 0
    number = 1
    while offset < len(text):
        end = text.find(b"\n", offset + max_bytes - 1) + 1 or len(text)
        found = text[offset:end].split(b"\n")
        if not found[-1]:
            found.pop()
        for start in range(0, len(found), max_lines):
            part = found[start : start + max_lines]
            yield Block(number, offset, part)
            number += len(part)
            offset += sum(map(len, part)) + len(part)
