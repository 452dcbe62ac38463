"""Finds and loads the library, and declares its functions; without it callers do the same work in Python."""

from __future__ import annotations

import os
import sys
from ctypes import CDLL, POINTER, Structure, c_char_p, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

VARIABLE = "TIDEMARK_NATIVE"
"""An environment variable; the library is not used where it has another value than `on`."""
_ON = "on"
_ABI = 2
"""The interface that this code calls; `ABI` in native/src/ffi.rs."""
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
PLACE = Path(sys.prefix) / "lib" / "tidemark" / f"libtidemark_native{_SUFFIX}"
"""Where native/build.sh puts it. It belongs to the environment of the interpreter, so workers with their own have their own,
and nothing that lies in a working folder is ever loaded."""


class Rules(Structure):
    """What all lines of a block keep to; `Rules` in native/src/lines.rs."""

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

    _fields_ = (
        ("kind", c_uint64),
        ("validity", Bytes),
        ("offsets", Bytes),
        ("values", Bytes),
        ("first_bit", c_uint64),
    )


@cache
def library() -> CDLL | None:
    """The library; None where it is switched off, missing, for another machine, or of another version than this code."""
    if os.environ.get(VARIABLE, _ON) != _ON or not PLACE.is_file():
        return None
    try:
        found = CDLL(str(PLACE))
        if found.tidemark_abi() != _ABI:
            return None
        _declare(found)
    except (OSError, AttributeError):
        return None
    return found


def _declare(found: CDLL) -> None:
    found.tidemark_format_new.argtypes = (c_char_p, c_void_p, c_char_p, c_uint64)
    found.tidemark_format_new.restype = c_void_p
    found.tidemark_format_free.argtypes = (c_void_p,)
    found.tidemark_format_free.restype = None
    found.tidemark_scan.argtypes = (c_void_p, c_char_p, c_uint64, c_uint64, POINTER(Rules))
    found.tidemark_scan.restype = c_void_p
    found.tidemark_table_columns.argtypes = (c_void_p,)
    found.tidemark_table_columns.restype = POINTER(Buffers)
    found.tidemark_table_free.argtypes = (c_void_p,)
    found.tidemark_table_free.restype = None
    found.tidemark_row_hashes.argtypes = (
        POINTER(HashedColumn),
        c_uint64,
        c_char_p,
        c_uint64,
        c_uint64,
        c_void_p,
        c_void_p,
    )
    found.tidemark_row_hashes.restype = c_uint32
