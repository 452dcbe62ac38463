"""An object is read whole or refused whole, within its bound, and every byte lies in a numbered line."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.deliveries import QuarantineReason as Reason
from pipeline_assets.formats import gzip_lines as object_bodies
from pipeline_assets.formats.gzip_lines import BadObjectError, Line, blocks

TEXT = b'{"a": 1}\n' * 500
GOOD = gzip.compress(TEXT, mtime=0)


def decompress(body: bytes, max_bytes: int) -> bytes:
    """As a worker does, from file to file."""
    with object_bodies.decompress(io.BytesIO(body), max_bytes) as text:
        return text.read()


def lines(text: bytes) -> list[Line]:
    whole = [line for block in blocks(io.BytesIO(text), 1000, 1 << 20, 1 << 20) for line in block.each()]
    for max_lines, max_bytes in ((1, 1 << 20), (2, 7), (3, 1)):
        found = blocks(io.BytesIO(text), max_lines, max_bytes, 1 << 20)
        parts = [part for block in found for part in (block, *block.halves())]
        assert [line for block in parts[::3] for line in block.each()] == whole
        halves = [half for index, half in enumerate(parts) if index % 3]
        assert [line for half in halves for line in half.each()] == whole
    return whole


def _flip(body: bytes, place: int) -> bytes:
    return body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :]


BOUND = 1 << 20
GOOD_BODIES = {
    "one member": (GOOD, TEXT),
    "two members": (GOOD + GOOD, TEXT + TEXT),
    "an empty member between": (GOOD + gzip.compress(b"", mtime=0) + GOOD, TEXT + TEXT),
    "valid and empty": (gzip.compress(b"", mtime=0), b""),
    "padded with zeros": (GOOD + b"\0" * 512, TEXT),
    "exactly the bound": (gzip.compress(b"0" * BOUND, mtime=0), b"0" * BOUND),
    "a header longer than one step": (GOOD[:3] + b"\x08" + GOOD[4:10] + b"n" * 200_000 + b"\0" + GOOD[10:], TEXT),
    "a line across members": (gzip.compress(b'{"a"', mtime=0) + gzip.compress(b":1}\n"), b'{"a":1}\n'),
}

BAD_BODIES = {
    "plain text": (TEXT, Reason.NOT_GZIP),
    "only zeros": (b"\0" * 20, Reason.NOT_GZIP),
    "unknown method": (_flip(GOOD, 2), Reason.NOT_GZIP),
    "broken deflate stream": (_flip(GOOD, 10), Reason.NOT_GZIP),
    "second member cut": (GOOD + GOOD[:-3], Reason.TRUNCATED_GZIP),
    "wrong sum": (_flip(GOOD, len(GOOD) - 8), Reason.CRC_ERROR),
    "wrong length": (_flip(GOOD, len(GOOD) - 1), Reason.CRC_ERROR),
    "wrong sum in the first of two": (_flip(GOOD, len(GOOD) - 8) + GOOD, Reason.CRC_ERROR),
    "text behind": (GOOD + b"{}\n", Reason.TRAILING_GARBAGE),
    "zeros, then text": (GOOD + b"\0\0{}", Reason.TRAILING_GARBAGE),
    "zeros, then a member": (GOOD + b"\0" * 8 + GOOD, Reason.TRAILING_GARBAGE),
    "a byte over the bound": (gzip.compress(b"0" * (BOUND + 1)), Reason.OBJECT_TOO_LARGE),
    "over the bound in sum": (gzip.compress(b"0" * BOUND, mtime=0) + gzip.compress(b"0"), Reason.OBJECT_TOO_LARGE),
}


@pytest.mark.parametrize(("body", "text"), GOOD_BODIES.values(), ids=GOOD_BODIES)
def test_a_good_object_is_read_whole(body: bytes, text: bytes) -> None:
    assert decompress(body, BOUND) == text


@pytest.mark.parametrize(("body", "reason"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_bad_object_is_refused_with_its_reason(body: bytes, reason: Reason) -> None:
    with pytest.raises(BadObjectError) as caught:
        decompress(body, BOUND)
    assert caught.value.reason is reason
    assert caught.value.detail


def _member(flags: int, text: bytes = b"late\n") -> tuple[bytes, int]:
    """A gzip member whose header has these flags' parts, and the header's length."""
    header = b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\xff"
    header += (b"\x05\0extra" if flags & 4 else b"") + (b"name\0" if flags & 8 else b"")
    header += b"comment\0" if flags & 16 else b""
    header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") if flags & 2 else b""
    stored = zlib.compressobj(0, wbits=-15)
    body = stored.compress(text) + stored.flush()
    return header + body + zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(4, "little"), len(header)


@pytest.mark.parametrize("flags", [0, 2, 4, 8, 16, 30])
def test_a_header_is_read_wherever_reads_divide_it(flags: int) -> None:
    """Scenario: short reads; a second header across the end of a 64 KiB read. Outcome: the text of all members."""

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 3))

    late, length = _member(flags)
    with object_bodies.decompress(Slow(late * 2), 1 << 20) as text:
        assert text.read() == b"late\n" * 2
    for before in range(1, length + 2):
        first = b"x" * (65_000 - 1)
        gap = (1 << 16) - before - len(_member(0, first + b"\n")[0])
        first += b"x" * gap + b"\n"
        body = _member(0, first)[0]
        assert len(body) == (1 << 16) - before
        assert decompress(body + late, 1 << 20) == first + b"late\n"


def test_flags_that_no_gzip_has_are_refused() -> None:
    for flag in (32, 64, 128):
        with pytest.raises(BadObjectError, match="unknown header flags set") as refusal:
            decompress(_member(flag)[0], 1000)
        assert refusal.value.reason is Reason.NOT_GZIP


def test_no_cut_of_an_object_passes_for_a_shorter_one() -> None:
    reasons = []
    for end in range(len(GOOD)):
        with pytest.raises(BadObjectError) as refused:
            decompress(GOOD[:end], BOUND)
        reasons.append(refused.value.reason)
    assert reasons == [Reason.EMPTY_OBJECT, Reason.NOT_GZIP, *[Reason.TRUNCATED_GZIP] * (len(GOOD) - 2)]


_WORKER = """
import gzip, io, resource, sys
from pipeline_assets.formats.gzip_lines import BadObjectError, blocks, decompress
body = io.BytesIO(gzip.compress(bytes(64 << 20), 1, mtime=0) * 32)
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(body, int(sys.argv[1]))
    print("read")
except BadObjectError as error:
    print(error.reason.value)
text = decompress(io.BytesIO(gzip.compress(b"x" * (256 << 20), 1, mtime=0)), 1 << 30)
(line,) = [line for block in blocks(text, 10_000, 16 << 20, 8 << 20) for line in block.each()]
print(len(line.text), line.length, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024)
"""


def test_a_bomb_and_an_endless_line_cost_a_worker_little_memory() -> None:
    """Two megabytes that hold two gigabytes, and a line of 256 MiB, in their own process: the system's peak memory."""
    command = [sys.executable, "-c", _WORKER, str(256 * BOUND)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    reason, kept, length, mebibytes = done.stdout.split()
    assert reason == "object_too_large"
    assert (int(kept), int(length)) == ((8 << 20) + 1, 256 << 20)
    assert int(mebibytes) < 160


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_however_an_object_is_cut_into_members_it_says_the_same(parts: list[bytes]) -> None:
    assert decompress(b"".join(gzip.compress(part, mtime=0) for part in parts), BOUND) == b"".join(parts)


def test_members_larger_than_one_step_are_read_to_their_end() -> None:
    text = bytes(range(256)) * 20_000
    stored = gzip.compress(text, compresslevel=0, mtime=0)
    assert decompress(stored + stored, len(text) * 2) == text + text


LINES = [
    (b"", []), (b"\xef\xbb\xbf", []), (b"a", [(1, 0, b"a")]), (b"a\n", [(1, 0, b"a")]),
    (b"a\r\nb", [(1, 0, b"a"), (2, 3, b"b")]), (b"a\rb\n", [(1, 0, b"a\rb")]),
    (b"\xef\xbb\xbfa\nb\n", [(1, 3, b"a"), (2, 5, b"b")]),
    (b"a\n\xef\xbb\xbfb", [(1, 0, b"a"), (2, 2, b"\xef\xbb\xbfb")]), (b"\n\n", [(1, 0, b""), (2, 1, b"")]),
    (b"\xef\xbb\xbfab\r\n\n  \ncd", [(1, 3, b"ab"), (2, 7, b""), (3, 8, b"  "), (4, 11, b"cd")]),
    (b"\xe2\x80\xa8\x0b\x85\n", [(1, 0, b"\xe2\x80\xa8\x0b\x85")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), LINES)
def test_lines_end_at_line_feeds_only(text: bytes, expected: list[tuple[int, int, bytes]]) -> None:
    assert [(line.number, line.offset, line.text) for line in lines(text)] == expected


@pytest.mark.parametrize(("text", "is_blank"), [(b"", True), (b" \t\r", True), (b"\0", False), (b"\xc2\xa0", False)])
def test_white_space_alone_is_blank(text: bytes, is_blank: bool) -> None:
    assert [line.is_blank for line in lines(text + b"\n")] == [is_blank]


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b" ", b"\xef\xbb\xbf", b"\xff"]), max_size=12).map(b"".join))
def test_every_byte_is_a_line_a_break_or_the_mark(text: bytes) -> None:
    end = 3 if text.startswith(b"\xef\xbb\xbf") else 0
    for number, line in enumerate(lines(text), start=1):
        assert (line.number, line.offset) == (number, end)
        assert text[line.offset : line.offset + len(line.text)] == line.text
        end = line.offset + len(line.text)
        rest = text[end : end + 2]
        end += 2 if rest == b"\r\n" else 1 if rest[:1] in (b"\n", b"\r") else 0
    assert end == len(text)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [4, 5, 6, 7, 12, 40])
@pytest.mark.parametrize("step", [1, 3, 8, 64])
def test_a_line_longer_than_any_may_be_keeps_its_place_and_its_length(size: int, step: int, end: bytes) -> None:
    text = b"ab\n" + b"c" * size + end + (b"de\n" if end else b"")
    found = [line for block in blocks(io.BytesIO(text), 2, step, 4) for line in block.each()]
    expected = [(1, 0, 2), (2, 3, size), (3, 3 + size + len(end), 2)]
    assert [(line.number, line.offset, line.length) for line in found] == expected[: 3 if end else 2]
    assert max(len(line.text) for line in found) <= step + 5
    assert (len(found[1].text) > 4) == (size > 4)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("step", [8, 1000])
def test_what_a_long_line_is_depends_on_no_boundary(step: int, end: bytes) -> None:
    """White space beyond `max_line_bytes` is blank; one character makes it a line, wherever the block ends."""
    for text, is_blank in ((b" " * 100, True), (b" " * 99 + b"x", False), (b" " * 50 + b"x" + b" " * 49, False)):
        (block,) = blocks(io.BytesIO(text + end), 2, step, 4)
        (line,) = block.each()
        assert (block.is_blank, line.is_blank, line.length) == (is_blank, is_blank, 100)
