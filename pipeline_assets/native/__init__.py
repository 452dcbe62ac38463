"""Calls the optional library in Rust (`native/`): lines to Arrow columns, and hashes of rows of Arrow columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

VARIABLE = "TIDEMARK_NATIVE"
"""An environment variable; any value but `on` switches the library off."""
_ON = "on"
_ABI = 2
"""The interface version; `ABI` in native/src/ffi.rs."""
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
PLACE = Path(sys.prefix) / "lib" / "tidemark" / f"libtidemark_native{_SUFFIX}"
"""Written by native/build.sh. Each interpreter's environment has its own; nothing in a working folder is ever loaded."""


class Rules(Structure):
    """Rules for all lines of a block; `Rules` in native/src/lines.rs."""

    _fields_ = (
        ("most_bytes", c_uint64),
        ("time", c_uint64),
        ("first", c_int64),
        ("end", c_int64),
        ("project", c_uint64),
        ("value", c_int64),
    )


class Buffers(Structure):
    """A column in Arrow's layout; `Buffers` in native/src/ffi.rs."""

    _fields_ = (
        ("validity", c_void_p),
        ("offsets", c_void_p),
        ("values", c_void_p),
        ("length", c_uint64),
        ("present", c_uint64),
    )


class Bytes(Structure):
    """The bytes of a buffer; `Bytes` in native/src/ffi.rs."""

    _fields_ = (("start", c_void_p), ("length", c_uint64))


class HashedColumn(Structure):
    """A column of rows to hash, in Arrow's layout; `HashedColumn` in native/src/ffi.rs."""

    _fields_ = (("kind", c_uint64), ("validity", Bytes), ("offsets", Bytes), ("values", Bytes), ("first_bit", c_uint64))


_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "tidemark_format_new": (c_void_p, c_char_p, c_void_p, c_char_p, c_uint64),
    "tidemark_format_free": (None, c_void_p),
    "tidemark_scan": (c_void_p, c_void_p, c_char_p, c_uint64, c_uint64, POINTER(Rules)),
    "tidemark_table_columns": (POINTER(Buffers), c_void_p),
    "tidemark_table_free": (None, c_void_p),
    "tidemark_row_hashes": (
        c_uint32,
        POINTER(HashedColumn),
        c_uint64,
        c_char_p,
        c_uint64,
        c_uint64,
        c_void_p,
        c_void_p,
    ),
}


@cache
def library() -> CDLL | None:
    """The library; None if it is switched off, missing, for another machine, or of another version."""
    if os.environ.get(VARIABLE, _ON) != _ON or not PLACE.is_file():
        return None
    try:
        found = CDLL(str(PLACE))
        if found.tidemark_abi() != _ABI:
            return None
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return found


class Kind(IntEnum):
    """The content of a column, and how it is delivered; `Kind` in native/src/columns.rs."""

    TEXT = 0
    LONG = 1
    TIME = 2
    DOUBLE = 3
    BOOLEAN = 4
    JSON = 5
    BAG = 6
    """JSON that is never a string; the scanner is not sure of one."""

    @property
    def arrow(self) -> pa.DataType:
        """The type of such a column."""
        return _TYPES.get(self, pa.string())


_TYPES = {
    Kind.LONG: pa.int64(),
    Kind.TIME: pa.timestamp("us", tz="UTC"),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
}


@dataclass(frozen=True, slots=True)
class ScannedColumn:
    """A column of a format."""

    key: str
    name: str
    kind: Kind


class Scanner:
    """Scans lines of one format; threads may share it."""

    def __init__(self, library: CDLL, columns: Sequence[ScannedColumn]) -> None:
        keys = [column.key.encode() for column in columns]
        ends = (c_uint64 * len(keys))(*accumulate(map(len, keys)))
        kinds = bytes(column.kind for column in columns)
        self._library, self._free = library, library.tidemark_format_free
        self._columns = tuple(columns)
        self._format = library.tidemark_format_new(b"".join(keys), ends, kinds, len(keys))
        if not self._format:
            msg = "the native scanner does not take these columns"
            raise ValueError(msg)

    def __del__(self) -> None:
        """Free the library's side."""
        if format_ := getattr(self, "_format", None):
            self._free(format_)

    def place(self, name: str) -> int:
        """The place of a column, as rules name it."""
        return next(place for place, column in enumerate(self._columns) if column.name == name)

    def scan(self, text: bytes, count: int, rules: Rules) -> dict[str, pa.Array] | None:
        """Column -> values of `count` lines with their line breaks; None if unsure, or if a line breaks a rule."""
        table = self._library.tidemark_scan(self._format, text, len(text), count, byref(rules))
        if not table:
            return None
        owner = _Table(self._library, table)
        buffers = self._library.tidemark_table_columns(table)
        return {
            column.name: _array(column.kind.arrow, buffers[place], count, owner)
            for place, column in enumerate(self._columns)
        }


class _Table:
    """Owns the library's allocations for a block, until the last array is gone."""

    def __init__(self, library: CDLL, table: int) -> None:
        self._free, self._table = library.tidemark_table_free, table

    def __del__(self) -> None:
        self._free(self._table)


def _array(kind: pa.DataType, column: Buffers, rows: int, owner: _Table) -> pa.Array:
    if not column.present:
        return pa.nulls(rows, kind)
    nulls = rows - column.present
    buffers = [pa.foreign_buffer(column.validity, (rows + 7) // 8, owner) if nulls else None]
    if column.offsets:
        buffers.append(pa.foreign_buffer(column.offsets, 4 * (rows + 1), owner))
    buffers.append(pa.foreign_buffer(column.values, column.length, owner) if column.length else pa.py_buffer(b""))
    return pa.Array.from_buffers(kind, rows, buffers, nulls)


class HashedKind(IntEnum):
    """The content of a column; `Kind` in native/src/rows.rs."""

    NOTHING = 0
    TEXT = 1
    LONG = 2
    INT = 3
    BOOLEAN = 4
    DOUBLE = 5


_KINDS = {
    pa.string(): (HashedKind.TEXT, 0),
    pa.binary(): (HashedKind.TEXT, 0),
    pa.int64(): (HashedKind.LONG, 8),
    pa.int32(): (HashedKind.INT, 4),
    pa.bool_(): (HashedKind.BOOLEAN, 0),
    pa.float64(): (HashedKind.DOUBLE, 8),
}
_OFFSET_BYTES = 4


def row_hashes(columns: Sequence[pa.Array], version: str) -> tuple[pa.Array, pa.Array] | None:
    """Both halves (int64) of each row's hash, as in `transforms/event_hashes.py`; None without library or for other types."""
    found, count = library(), len(columns[0])
    if found is None or count == 0 or any(one.null_count < count and one.type not in _KINDS for one in columns):
        return None
    halves = np.empty(count, np.int64), np.empty(count, np.int64)
    first, second = (half.ctypes.data for half in halves)
    given = (HashedColumn * len(columns))(*map(_column, columns))
    told = version.encode()
    if not found.tidemark_row_hashes(given, len(columns), told, len(told), count, first, second):
        return None
    return pa.array(halves[0]), pa.array(halves[1])


def _column(values: pa.Array) -> HashedColumn:
    if values.null_count == len(values):
        return HashedColumn(kind=HashedKind.NOTHING)
    kind, width = _KINDS[values.type]
    validity, *others = values.buffers()
    offsets = _from(others[0], values.offset * _OFFSET_BYTES) if kind is HashedKind.TEXT else Bytes()
    data = _from(others[-1], values.offset * width)
    return HashedColumn(kind, _from(validity if values.null_count else None, 0), offsets, data, values.offset)


def _from(buffer: pa.Buffer | None, start: int) -> Bytes:
    return Bytes() if buffer is None else Bytes(buffer.address + start, buffer.size - start)
