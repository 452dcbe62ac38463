"""The hash of a row in plain Python: the reference for Arrow, Spark and the native library."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pipeline_assets.domain.slices import MEANING, NAN_BITS, NULL, ROW_HASH_VERSION, is_text, scale_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def row_hash(row: Mapping[str, Any], types: Mapping[str, str]) -> tuple[int, int]:
    """First 16 bytes of the hash as two signed longs; `types`: column -> Spark type, in hashing order."""
    first, second = struct.unpack(">qq", hashlib.sha256(encoding(row, types)).digest()[:16])
    return first, second


def event_hash(row: Mapping[str, Any], types: Mapping[str, str], transport: Collection[str]) -> tuple[int, int, int]:
    """Both halves of an event's hash, and the first half of its meaning's; `types`: column -> Spark type, in hashing
    order. The meaning is the columns not in `transport`; the event's hash covers the meaning's hash and `transport`, so
    long texts are hashed once."""
    meaning = row_hash(row, {name: kind for name, kind in types.items() if name not in transport})
    covered = MEANING | {name: kind for name, kind in types.items() if name in transport}
    first, second = row_hash({**row, **dict(zip(MEANING, meaning, strict=True))}, covered)
    return first, second, meaning[0]


def encoding(row: Mapping[str, Any], types: Mapping[str, str]) -> bytes:
    numbers: list[str] = []
    texts: list[bytes] = []
    for name, kind in types.items():
        value = row[name]
        if value is None:
            numbers.append(NULL)
        elif is_text(kind):
            text = bytes(value) if kind == "binary" else _text(value, kind).encode()
            numbers.append(str(len(text)))
            texts.append(text)
        else:
            numbers.append(str(_number(value, kind)))
    return f"{ROW_HASH_VERSION};{','.join(numbers)};".encode() + b"".join(texts)


def _text(value: Any, kind: str) -> str:
    if isinstance(value, Decimal):
        return f"{value:.{scale_of(kind)}f}"
    return str(value)


def _number(value: Any, kind: str) -> int:
    if kind == "timestamp":
        since = value - _EPOCH
        return int(since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds)
    if kind == "date":
        return int((value - date(1970, 1, 1)).days)
    return _bits(value) if kind == "double" else int(value)


def _bits(value: float) -> int:
    """A double's bits as a signed number: they keep -0.0 apart from the equal 0.0."""
    return NAN_BITS if value != value else int.from_bytes(struct.pack(">d", value), signed=True)
