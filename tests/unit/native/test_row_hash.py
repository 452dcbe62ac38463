"""The library hashes rows of Arrow columns as Arrow and hashlib do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.native.library import Bytes, HashedColumn, HashedKind, library, row_hashes
from pipeline_assets.transforms.event_hashes import VERSION, in_arrow

BUILT = pytest.mark.skipif(library() is None, reason="the native library is not built: make setup, with cargo")
_LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=80),
    pa.binary(): st.binary(max_size=80),
    pa.int64(): _LONGS,
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats() | st.sampled_from((0.0, -0.0, float("nan"), -float("nan"))),
}


@BUILT
@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.sampled_from(list(_VALUES)), min_size=1, max_size=6), st.integers(1, 20))
def test_it_hashes_as_arrow_does(data: st.DataObject, kinds: list[pa.DataType], rows: int) -> None:
    """Scenario: columns of any types, with nulls, of nulls alone, without any; whole, and from any row on."""
    columns = [
        pa.array(data.draw(st.lists(_VALUES[kind] | st.none(), min_size=rows, max_size=rows)), kind) for kind in kinds
    ]
    start = data.draw(st.integers(0, rows - 1))
    for some in (columns, [one.slice(start) for one in columns]):
        assert row_hashes(some, VERSION) == in_arrow(some)


@BUILT
def test_texts_of_every_length_up_to_300_and_large_ones() -> None:
    texts = [random.Random(length).randbytes(length) for length in (*range(301), 4096, 1_000_003, 5 << 20)]
    columns = [pa.array(texts, pa.binary()), pa.array(range(len(texts)), pa.int64())]
    assert row_hashes(columns, VERSION) == in_arrow(columns)


@BUILT
def test_doubles_are_hashed_by_their_bits_and_every_nan_alike() -> None:
    bits = np.array([0, 1 << 63, 0x7FF8 << 48, 0xFFF8 << 48, (0x7FF0 << 48) + 1, 0x7FF0 << 48], np.uint64)
    columns = [pa.array(bits.view(np.float64))]
    assert row_hashes(columns, VERSION) == in_arrow(columns)
    assert len(set(in_arrow(columns)[0].to_pylist())) == 4


def test_without_the_library_or_for_another_type_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_hashes([pa.array([1], pa.int8())], VERSION) is None
    assert row_hashes([pa.array([], pa.int64())], VERSION) is None
    monkeypatch.setattr("pipeline_assets.native.library.library", lambda: None)
    assert row_hashes([pa.array([1])], VERSION) is None


@BUILT
def test_nothing_beyond_a_buffer_is_read() -> None:
    """Scenario: offsets beyond the texts, falling or negative; too few numbers. Outcome: no answer."""
    found = library()
    assert found is not None
    halves = np.zeros((2, 2), np.int64)

    def bytes_of(values: np.ndarray[Any, Any]) -> Bytes:
        return Bytes(values.ctypes.data, values.nbytes)

    text = np.frombuffer(b"abc", np.uint8)
    cases = [
        (HashedKind.TEXT, np.array(ends, np.int32), text)
        for ends in ([0, 1, 4], [0, 2, 1], [-1, 1, 2], [0, 1 << 30, 1 << 30])
    ]
    cases.append((HashedKind.LONG, np.zeros(0, np.int32), np.zeros(1, np.int64)))
    for kind, offsets, values in cases:
        column = (HashedColumn * 1)(HashedColumn(kind, Bytes(), bytes_of(offsets), bytes_of(values), 0))
        args = (column, 1, b"3", 1, 2, halves[0].ctypes.data, halves[1].ctypes.data)
        assert found.tidemark_row_hashes(*args) == 0
