"""The hash of rows of Arrow columns, the only form that computes stored hashes; tests prove that it equals domain/row_hash.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.row_hash import NAN_BITS, NULL, ROW_HASH_VERSION, is_text
from pipeline_assets.native.row_hash import row_hashes as native_hashes

VERSION = str(ROW_HASH_VERSION)
_HALF = np.dtype(">i8")


class Encoded:
    """Columns that are hashed together."""

    def __init__(self, columns: Mapping[str, pa.Array], types: Mapping[str, str]) -> None:
        """`types`: column -> Spark type, in hashing order; raises ValueError for a type without an encoding."""
        self._columns = plain_columns(columns, types)

    def hashes(self) -> tuple[pa.Array, pa.Array]:
        """Both halves (int64) of the hash of each row."""
        return native_hashes(self._columns, VERSION) or in_arrow(self._columns)


def plain_columns(columns: Mapping[str, pa.Array], types: Mapping[str, str]) -> list[pa.Array]:
    """The columns of `types` as texts, bytes, booleans, doubles or integers; raises ValueError as `Encoded` does."""
    return [_plain(columns[name], kind) for name, kind in types.items()]


def _plain(values: pa.Array, kind: str) -> pa.Array:
    if is_text(kind):
        return values if kind in ("string", "binary") else values.cast(pa.string())
    if kind in ("timestamp", "date"):
        return values.cast(pa.int64() if kind == "timestamp" else pa.int32())
    return values


def in_arrow(columns: Sequence[pa.Array]) -> tuple[pa.Array, pa.Array]:
    """Both halves of the hash of each row, without the native library."""
    count = len(columns[0])
    numbers = [
        pa.scalar(NULL) if one.null_count == count else pc.fill_null(_numbers(one).cast(pa.string()), NULL)
        for one in columns
    ]
    if not any(isinstance(one, pa.Array) for one in numbers):
        numbers[0] = pa.repeat(NULL, count)
    told = pc.binary_join_element_wise(*numbers, ",").cast(pa.binary())
    texts = [one.cast(pa.binary()).fill_null(b"") for one in columns if one.type in _TEXTS and one.null_count < count]
    return _sha256(pc.binary_join_element_wise(f"{VERSION};".encode(), told, b";", *texts, b""))


_TEXTS = (pa.string(), pa.binary())


def _numbers(values: pa.Array) -> pa.Array:
    if values.type in _TEXTS:
        return pc.binary_length(values)
    if values.type == pa.float64():
        plain = values.fill_null(0.0).to_numpy(zero_copy_only=False)
        bits = np.where(np.isnan(plain), NAN_BITS, plain.view(np.int64))
        return pa.array(bits, mask=np.asarray(values.is_null()))
    return values.cast(pa.int64())


def _sha256(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Both halves (int64) of the first 16 bytes of each text's SHA-256; `texts` (binary) holds no null."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].tolist()
    bytes_of = memoryview(data or b"")
    halves = b"".join(sha256(bytes_of[start:end]).digest()[:16] for start, end in pairwise(ends))
    pairs = np.frombuffer(halves, _HALF).astype(np.int64).reshape(-1, 2)
    return pa.array(np.ascontiguousarray(pairs[:, 0])), pa.array(np.ascontiguousarray(pairs[:, 1]))
