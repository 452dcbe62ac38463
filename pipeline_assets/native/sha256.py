"""SHA-256 of many texts, by the library where it is there, else by hashlib."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pipeline_assets.native.library import library

_HALF = np.dtype(">i8")


def sha256_halves(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Both halves (int64) of the first 16 bytes of each text's hash; `texts` (string or binary) holds no null."""
    count = len(texts)
    found, (_, offsets, data) = library(), texts.buffers()
    if found is None or count == 0:
        return in_python(texts)
    halves = np.empty(count, np.int64), np.empty(count, np.int64)
    place, length = (data.address, data.size) if data is not None else (None, 0)
    of_these = offsets.address + texts.offset * np.dtype(np.int32).itemsize
    first, second = (half.ctypes.data for half in halves)
    if not found.tidemark_sha256_halves(place, length, of_these, count, first, second):
        return in_python(texts)
    return pa.array(halves[0]), pa.array(halves[1])


def in_python(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The same by hashlib."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1].tolist()
    bytes_of = memoryview(texts.buffers()[2] or b"")
    sha256 = hashlib.sha256
    halves = b"".join(sha256(bytes_of[start:end]).digest()[:16] for start, end in pairwise(offsets))
    pairs = np.frombuffer(halves, _HALF).astype(np.int64).reshape(-1, 2)
    return pa.array(np.ascontiguousarray(pairs[:, 0])), pa.array(np.ascontiguousarray(pairs[:, 1]))
