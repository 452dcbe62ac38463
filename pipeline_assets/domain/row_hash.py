"""The hash of a row: 128 bits of SHA-256 over an encoding that no two different rows share."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

ROW_HASH_VERSION = 2
"""Incremented whenever the hashed columns or the encoding change: hashes of different versions cannot be compared. Version 1 was
a pair of xxhash64, for which anybody can construct collisions."""

NULL = "-"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_MASK = (1 << 64) - 1
PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
SPARK_SEED = 42


def row_hash(row: Mapping[str, Any], types: Mapping[str, str]) -> tuple[int, int]:
    """The first 16 bytes of the hash, as two signed longs; `types`: column -> Spark type, in hashing order."""
    first, second = struct.unpack(">qq", hashlib.sha256(encoding(row, types)).digest()[:16])
    return first, second


def encoding(row: Mapping[str, Any], types: Mapping[str, str]) -> bytes:
    """`version;numbers;texts`: one number per column, `-` for null, then all texts concatenated.

    The number of a text is its length in bytes, so that texts cannot run together; for any other value it is the value.
    """
    numbers: list[str] = []
    texts: list[bytes] = []
    for name, kind in types.items():
        value = row[name]
        if value is None:
            numbers.append(NULL)
        elif is_text(kind):
            text = _text(value, kind).encode()
            numbers.append(str(len(text)))
            texts.append(text)
        else:
            numbers.append(str(_number(value, kind)))
    return f"{ROW_HASH_VERSION};{','.join(numbers)};".encode() + b"".join(texts)


def is_text(kind: str) -> bool:
    """Whether values of a Spark type are hashed as text; raises ValueError for a type that has no encoding."""
    if kind.startswith("decimal("):
        # Java writes small decimals with more than six places with an exponent.
        if int(kind.rstrip(")").partition(",")[2]) <= 6:
            return True
    elif kind in ("string", "binary"):
        return True
    elif kind in ("bigint", "int", "boolean", "date", "timestamp", "double"):
        return False
    msg = f"rows with a column of type {kind} have no hash"
    raise ValueError(msg)


def _text(value: Any, kind: str) -> str:
    if kind == "binary":
        return bytes(value).hex().upper()
    if isinstance(value, Decimal):
        return f"{value:.{kind.rstrip(')').partition(',')[2]}f}"
    return str(value)


def _number(value: Any, kind: str) -> int:
    if kind == "timestamp":
        since = value - _EPOCH
        return int(since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds)
    if kind == "date":
        return int((value - _EPOCH_DAY).days)
    return hash_of_bits(_bits(value)) if kind == "double" else int(value)


def _bits(value: float) -> int:
    """The bits of a double; all NaNs get the same bits."""
    return 0x7FF8000000000000 if value != value else int.from_bytes(struct.pack(">d", value))


def hash_of_bits(bits: int) -> int:
    """Spark's xxhash64 of a double with these bits, as a signed long.

    On 64 bits it is a bijection, so two different doubles never share a hash. It is used because Spark has no other way to
    a double's bits, and the text of a double differs between versions of Java.
    """
    one, two, three, four, five = PRIMES
    accumulator = (SPARK_SEED + five + 8) & _MASK
    accumulator ^= _rotated(bits * two & _MASK, 31) * one & _MASK
    accumulator = (_rotated(accumulator, 27) * one + four) & _MASK
    accumulator = (accumulator ^ accumulator >> 33) * two & _MASK
    accumulator = (accumulator ^ accumulator >> 29) * three & _MASK
    accumulator ^= accumulator >> 32
    return accumulator - (1 << 64) if accumulator >> 63 else accumulator


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


NEGATIVE_ZERO = hash_of_bits(1 << 63)
"""Spark hashes -0.0 like the equal 0.0; the hash keeps the two apart because the delivered values differ."""
