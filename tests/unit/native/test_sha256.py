"""The halves of SHA-256 are those of hashlib, with the library and without.

Contains: texts of every length around the algorithm's blocks, slices, damaged arrays.
Add here: another layout of an array.
Does not contain: what is hashed (transforms/test_row_hash_arrow.py).
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pyarrow as pa
import pytest

from pipeline_assets.native import sha256
from pipeline_assets.native.library import library
from pipeline_assets.native.sha256 import in_python, sha256_halves


def expected(texts: list[bytes]) -> list[tuple[int, int]]:
    digests = [hashlib.sha256(text).digest() for text in texts]
    return [(int.from_bytes(one[:8], signed=True), int.from_bytes(one[8:16], signed=True)) for one in digests]


@pytest.fixture(params=["as it is", "in Python"], autouse=True)
def _both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in Python":
        monkeypatch.setattr(sha256, "library", lambda: None)


def test_every_length_up_to_300_and_large_texts() -> None:
    texts = [random.Random(length).randbytes(length) for length in (*range(301), 4096, 1_000_003, 5 << 20)]
    whole = pa.array(texts, pa.binary())
    assert list(zip(*(half.to_pylist() for half in sha256_halves(whole)), strict=True)) == expected(texts)
    part = whole.slice(100, 120)
    assert list(zip(*(half.to_pylist() for half in sha256_halves(part)), strict=True)) == expected(texts[100:220])


def test_texts_without_a_byte_and_no_texts() -> None:
    for texts in ([], [b""], [b""] * 9):
        halves = sha256_halves(pa.array(texts, pa.binary()))
        assert [half.type for half in halves] == [pa.int64()] * 2
        assert list(zip(*(half.to_pylist() for half in halves), strict=True)) == expected(texts)
    assert sha256_halves(pa.array(["é"])) == sha256_halves(pa.array(["é".encode()]))


@pytest.mark.skipif(library() is None, reason="the native library is not built: make setup, with cargo")
def test_the_library_reads_nothing_beyond_the_texts() -> None:
    found = library()
    assert found is not None
    text, halves = b"abc", np.zeros((2, 2), np.int64)
    for ends in ([0, 1, 4], [0, 2, 1], [-1, 1, 2], [0, 1 << 30, 1 << 30]):
        offsets = np.array(ends, np.int32)
        args = (text, 3, offsets.ctypes.data, 2, halves[0].ctypes.data, halves[1].ctypes.data)
        assert found.tidemark_sha256_halves(*args) == 0
    assert in_python(pa.array(["abc"])) == sha256_halves(pa.array(["abc"]))
