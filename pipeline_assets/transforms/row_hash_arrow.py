"""The hash of rows of Arrow columns, the only form that computes stored hashes; tests prove that it equals domain/row_hash.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.row_hash import NAN_BITS, NULL, ROW_HASH_VERSION, is_text
from pipeline_assets.native.sha256 import sha256_halves


class Encoded:
    """Columns that are hashed together."""

    def __init__(self, columns: Mapping[str, pa.Array], types: Mapping[str, str]) -> None:
        """`types`: column -> Spark type, in hashing order; raises ValueError for a type without an encoding."""
        self._columns = [_plain(columns[name], kind) for name, kind in types.items()]

    def hashes(self) -> tuple[pa.Array, pa.Array]:
        """Both halves (int64) of the hash of each row."""
        return _hashes(self._columns)


def _plain(values: pa.Array, kind: str) -> pa.Array:
    """The values as texts or bytes, or as what holds their numbers."""
    if is_text(kind):
        return values if kind in ("string", "binary") else values.cast(pa.string())
    if kind in ("timestamp", "date"):
        return values.cast(pa.int64() if kind == "timestamp" else pa.int32())
    return values


def _hashes(columns: Sequence[pa.Array]) -> tuple[pa.Array, pa.Array]:
    count = len(columns[0])
    numbers = [
        pa.scalar(NULL) if one.null_count == count else pc.fill_null(_numbers(one).cast(pa.string()), NULL)
        for one in columns
    ]
    if not any(isinstance(one, pa.Array) for one in numbers):
        numbers[0] = pa.repeat(NULL, count)
    told = pc.binary_join_element_wise(*numbers, ",").cast(pa.binary())
    texts = [one.cast(pa.binary()).fill_null(b"") for one in columns if one.type in _TEXTS and one.null_count < count]
    return sha256_halves(pc.binary_join_element_wise(f"{ROW_HASH_VERSION};".encode(), told, b";", *texts, b""))


_TEXTS = (pa.string(), pa.binary())


def _numbers(values: pa.Array) -> pa.Array:
    if values.type in _TEXTS:
        return pc.binary_length(values)
    if values.type == pa.float64():
        plain = values.fill_null(0.0).to_numpy(zero_copy_only=False)
        bits = np.where(np.isnan(plain), NAN_BITS, plain.view(np.int64))
        return pa.array(bits, mask=np.asarray(values.is_null()))
    return values.cast(pa.int64())
