"""The hash of a row in Arrow, used by the parser and to check files; tests prove that it equals domain/row_hash.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.row_hash import NULL, PRIMES, ROW_HASH_VERSION, SPARK_SEED, is_text
from pipeline_assets.native.sha256 import sha256_halves

_NOT_A_NUMBER = np.uint64(0x7FF8000000000000)
_Longs = np.ndarray[Any, np.dtype[np.uint64]]


class Encoded:
    """Columns encoded for hashing once, so that hashes over all columns and over some of them share that work."""

    def __init__(self, columns: Mapping[str, pa.Array], types: Mapping[str, str]) -> None:
        """`types`: column -> Spark type, in hashing order; raises ValueError for a type that no table has here."""
        self._numbers: dict[str, pa.Array | pa.Scalar] = {}
        self._texts: dict[str, pa.Array] = {}
        self._count = 0
        for name, kind in types.items():
            values = columns[name]
            self._count = len(values)
            if kind == "binary":
                msg = f"columns of type {kind} are not hashed here"
                raise ValueError(msg)
            if is_text(kind) and kind != "string":
                values = values.cast(pa.string())
            if values.null_count == self._count:
                self._numbers[name] = pa.scalar(NULL)
                continue
            if is_text(kind):
                self._texts[name] = values.fill_null("") if values.null_count else values
            self._numbers[name] = pc.fill_null(_numbers(values, kind).cast(pa.string()), NULL)

    def hashes(self, names: Iterable[str] | None = None) -> tuple[pa.Array, pa.Array]:
        """Both halves (int64) of the hash of each row over the columns `names`; over all columns if it is None."""
        chosen = list(self._numbers if names is None else names)
        numbers = [self._numbers[name] for name in chosen]
        if not any(isinstance(one, pa.Array) for one in numbers):
            numbers[0] = pa.repeat(NULL, self._count)
        told = pc.binary_join_element_wise(*numbers, ",")
        texts = [self._texts[name] for name in chosen if name in self._texts]
        return sha256_halves(pc.binary_join_element_wise(f"{ROW_HASH_VERSION};", told, ";", *texts, ""))


def _numbers(values: pa.Array, kind: str) -> pa.Array:
    if is_text(kind):
        return pc.binary_length(values)
    if kind == "double":
        return pa.array(_hashes_of_doubles(values), mask=np.asarray(values.is_null()))
    return values.cast(pa.int32() if kind == "date" else pa.int64())


def _hashes_of_doubles(values: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """`domain.row_hash.hash_of_bits` of each value; the result for a null is undefined."""
    plain = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(plain), _NOT_A_NUMBER, plain.view(np.uint64))
    one, two, three, four, five = (np.uint64(prime) for prime in PRIMES)
    with np.errstate(over="ignore"):
        found = np.full(len(bits), SPARK_SEED, np.uint64) + five + np.uint64(8)
        found ^= _rotated(bits * two, 31) * one
        found = _rotated(found, 27) * one + four
        found = (found ^ found >> np.uint64(33)) * two
        found = (found ^ found >> np.uint64(29)) * three
        found ^= found >> np.uint64(32)
    return found.view(np.int64)


def _rotated(values: _Longs, by: int) -> _Longs:
    return values << np.uint64(by) | values >> np.uint64(64 - by)
