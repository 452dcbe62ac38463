"""Reads the bytes of an object as lines, or gives the reason why the whole object is refused."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from isal import isal_zlib
from isal.igzip_lib import IsalError

from pipeline_assets.domain.deliveries import QuarantineReason
from pipeline_assets.domain.machine import a_spool

BOM = b"\xef\xbb\xbf"
_MAGIC = b"\x1f\x8b"
_RESERVED_FLAGS = 0b1110_0000
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an object."""

    number: int
    offset: int
    """In bytes from the start of the decompressed object."""
    text: bytes
    left_out: int = 0
    """Bytes at its end that were dropped, if it exceeds the longest allowed line."""
    is_blank_beyond: bool = True

    @property
    def length(self) -> int:
        """Length in bytes without the line break."""
        return len(self.text) + self.left_out

    @property
    def is_blank(self) -> bool:
        """Whether it is empty or white space only; such a line is counted and never quarantined."""
        return self.is_blank_beyond and not self.text.strip()


class BadObjectError(Exception):
    """The object cannot be read as a whole; none of its lines is used."""

    def __init__(self, reason: QuarantineReason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


def decompress(stored: IO[bytes], max_bytes: int) -> IO[bytes]:
    """The decompressed object; the caller closes it. Raises BadObjectError for all but gzip members and zero bytes at the end."""
    text = a_spool()
    try:
        _members(stored, text, max_bytes)
    except BaseException:
        text.close()
        raise
    text.seek(0)
    return text


def _members(stored: IO[bytes], text: IO[bytes], max_bytes: int) -> None:
    pending = stored.read(_READ_BYTES)
    if not pending:
        raise BadObjectError(QuarantineReason.EMPTY_OBJECT, "the object has no bytes")
    is_first = True
    while pending:
        # Isal misreads the checksum of a header in parts, so a header of up to 64 KiB is read as a whole.
        while len(pending) < _READ_BYTES and (more := stored.read(_READ_BYTES)):
            pending += more
        if not pending.startswith(_MAGIC):
            if is_first:
                raise BadObjectError(QuarantineReason.NOT_GZIP, f"starts with {pending[:4]!r}")
            _require_padding(pending, stored)
            return
        if int.from_bytes(pending[3:4]) & _RESERVED_FLAGS:
            raise BadObjectError(QuarantineReason.NOT_GZIP, "unknown header flags set")
        pending = _member(pending, stored, text, max_bytes) or stored.read(_READ_BYTES)
        is_first = False


def _require_padding(pending: bytes, stored: IO[bytes]) -> None:
    left, is_padding = 0, True
    while pending:
        left, is_padding = left + len(pending), is_padding and not pending.strip(b"\0")
        pending = stored.read(_READ_BYTES)
    if not is_padding:
        raise BadObjectError(QuarantineReason.TRAILING_GARBAGE, f"{left} bytes after the last gzip member")


def _member(pending: bytes, stored: IO[bytes], text: IO[bytes], max_bytes: int) -> bytes:
    """Append the gzip member that starts with `pending` to `text`; return the bytes read beyond its end."""
    # Small steps: unread input is copied, and a step may expand a thousandfold.
    member = isal_zlib.decompressobj(wbits=31)
    while not member.eof:
        pending = pending or stored.read(_READ_BYTES)
        is_at_end = not pending
        try:
            part = member.decompress(pending, _WRITE_BYTES)
        except IsalError as error:  # type: ignore[misc]  # isal's stub declares an instance of it
            reason = QuarantineReason.CRC_ERROR if "checksum" in str(error) else QuarantineReason.NOT_GZIP
            raise BadObjectError(reason, str(error)) from None
        if text.tell() + len(part) > max_bytes:
            raise BadObjectError(QuarantineReason.OBJECT_TOO_LARGE, f"decompresses to more than {max_bytes} bytes")
        text.write(part)
        pending = member.unconsumed_tail
        if is_at_end and not part and not member.eof:
            raise BadObjectError(QuarantineReason.TRUNCATED_GZIP, f"ends after {text.tell()} decompressed bytes")
    return member.unused_data


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of an object."""

    first_number: int
    first_offset: int
    text: bytes
    count: int
    left_out: int = 0
    """Dropped bytes of its only line, if that exceeds the longest allowed line."""
    is_blank_beyond: bool = True

    @property
    def lines(self) -> Sequence[bytes]:
        """The lines without their line breaks."""
        return self.text.split(b"\n")[:-1]

    @property
    def is_blank(self) -> bool:
        """Whether all its lines are blank."""
        return self.is_blank_beyond and self.text[:1].isspace() and not self.text.strip()

    def halves(self) -> tuple[Block, Block]:
        """The first and the second half of the lines, as blocks."""
        middle = self.count // 2
        end = int(_ends(self.text)[middle - 1]) if middle else 0
        return (
            Block(self.first_number, self.first_offset, self.text[:end], middle),
            Block(self.first_number + middle, self.first_offset + end, self.text[end:], self.count - middle),
        )

    def each(self) -> Iterator[Line]:
        """Yield its lines, each with its number and its offset."""
        offset = self.first_offset
        for number, line in enumerate(self.lines, self.first_number):
            text = line if self.left_out else line.removesuffix(b"\r")
            yield Line(number, offset, text, self.left_out, self.is_blank_beyond)
            offset += len(line) + 1


def blocks(text: IO[bytes], max_lines: int, max_bytes: int, max_line_bytes: int) -> Iterator[Block]:
    """Yield all lines in blocks up to `max_lines` or the line that reaches `max_bytes`; cuts a line over `max_line_bytes`."""
    head = text.read(len(BOM))
    offset, number = (len(BOM), 1) if head == BOM else (0, 1)
    head = b"" if head == BOM else head
    while part := head + text.read(max(0, max_bytes - len(head))):
        head = b""
        if not part.endswith(b"\n"):
            part += text.readline(max_line_bytes + 1)
        start = len(part) if part.endswith(b"\n") else part.rfind(b"\n") + 1
        last, part = part[start:], part[:start]
        ends, start = _ends(part), 0
        count = len(ends)
        cuts = [] if count <= max_lines else ends[max_lines - 1 :: max_lines].tolist()
        for end in dict.fromkeys((*cuts, len(part)) if part else ()):
            lines = min(max_lines, count)
            yield Block(number, offset, part[start:end], lines)
            number, count, offset, start = number + lines, count - lines, offset + end - start, end
        if last:
            kept = last[: max_line_bytes + 1]
            is_ended, rest, is_blank = _skip_line(text, last[-1:])
            is_blank = is_blank and not last[len(kept) :].strip()
            yield Block(number, offset, kept + b"\n", 1, max(0, len(last) - len(kept) + rest - is_ended), is_blank)
            number += 1
            offset += len(last) + rest


def _ends(text: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1


def _skip_line(text: IO[bytes], before: bytes) -> tuple[int, int, bool]:
    skipped, is_blank = 0, True
    while part := text.readline(_WRITE_BYTES):
        skipped += len(part)
        is_blank = is_blank and not part.strip()
        if part.endswith(b"\n"):
            return (2 if (before + part).endswith(b"\r\n") else 1), skipped, is_blank
        before = part[-1:]
    return 0, skipped, is_blank


class _Counted(io.BytesIO):
    """Counts and hashes written bytes without keeping them."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.hash = hashlib.sha256()

    def write(self, part: Any) -> int:
        self.size += len(part)
        self.hash.update(part)
        return len(part)

    def tell(self) -> int:
        return self.size


def measure(stored: IO[bytes], max_bytes: int) -> tuple[int, str]:
    """Size and SHA-256 of the decompressed object, which is not kept; raises BadObjectError as `decompress` does."""
    counted = _Counted()
    _members(stored, counted, max_bytes)
    return counted.size, counted.hash.hexdigest()
