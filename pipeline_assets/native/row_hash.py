"""Hashes of rows by the library, or nothing where it is not there."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import pyarrow as pa

from pipeline_assets.native.library import Bytes, HashedColumn, library


class Kind(IntEnum):
    """What a column holds; `Kind` in native/src/rows.rs."""

    NOTHING = 0
    TEXT = 1
    LONG = 2
    INT = 3
    BOOLEAN = 4
    DOUBLE = 5


_KINDS = {
    pa.string(): (Kind.TEXT, 0),
    pa.binary(): (Kind.TEXT, 0),
    pa.int64(): (Kind.LONG, 8),
    pa.int32(): (Kind.INT, 4),
    pa.bool_(): (Kind.BOOLEAN, 0),
    pa.float64(): (Kind.DOUBLE, 8),
}
"""Type of a column -> what it holds, and the bytes of a value that is a number."""
_OFFSET_BYTES = 4


def row_hashes(columns: Sequence[pa.Array], version: str) -> tuple[pa.Array, pa.Array] | None:
    """Both halves (int64) of the hash of each row, as `transforms/event_hashes.py` defines it.

    None where there is no library, or a column has another type than texts, bytes, int64, int32, booleans and doubles have.
    """
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
    """The column from its first row on; its buffers live as long as `values`."""
    if values.null_count == len(values):
        return HashedColumn(kind=Kind.NOTHING)
    kind, width = _KINDS[values.type]
    validity, *others = values.buffers()
    offsets = _from(others[0], values.offset * _OFFSET_BYTES) if kind is Kind.TEXT else Bytes()
    data = _from(others[-1], values.offset * width)
    return HashedColumn(kind, _from(validity if values.null_count else None, 0), offsets, data, values.offset)


def _from(buffer: pa.Buffer | None, start: int) -> Bytes:
    return Bytes() if buffer is None else Bytes(buffer.address + start, buffer.size - start)
