"""From bytes to lines: every way an object can be broken has its name."""

from __future__ import annotations

import gzip

import pytest

from pipeline_assets.domain.object_bodies import BadObjectError, decompress, lines
from pipeline_assets.domain.quarantine_reasons import QuarantineReason as Reason

TEXT = b'{"a": 1}\n' * 500
GOOD = gzip.compress(TEXT)


def _flip(body: bytes, place: int) -> bytes:
    return body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", Reason.EMPTY_OBJECT),
        (b"<Error>AccessDenied</Error>", Reason.NOT_GZIP),
        (GOOD[:20], Reason.TRUNCATED_GZIP),
        (GOOD[:-4], Reason.TRUNCATED_GZIP),
        (_flip(GOOD, len(GOOD) - 6), Reason.CRC_ERROR),
        (GOOD + b"garbage", Reason.TRAILING_GARBAGE),
        (gzip.compress(b"0" * 200_000), Reason.OBJECT_TOO_LARGE),
    ],
)
def test_a_broken_object_is_refused_whole(body: bytes, reason: Reason) -> None:
    with pytest.raises(BadObjectError) as caught:
        decompress(body, 100_000)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("body", "text"),
    [(GOOD, TEXT), (GOOD + GOOD, TEXT + TEXT), (GOOD + b"\0" * 100, TEXT), (gzip.compress(b""), b"")],
)
def test_a_good_object_is_read(body: bytes, text: bytes) -> None:
    assert decompress(body, 100_000) == text


def test_lines_know_their_place() -> None:
    text = b"\xef\xbb\xbfab\r\n\n  \ncd"
    found = list(lines(text))
    assert [(line.number, line.text, line.is_blank) for line in found] == [
        (1, b"ab", False), (2, b"", True), (3, b"  ", True), (4, b"cd", False),
    ]  # fmt: skip
    for line in found:
        assert text[line.offset : line.offset + len(line.text)] == line.text
