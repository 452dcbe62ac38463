"""The hash of rows in Arrow is the hash of each row in Python."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.identity import RawRow
from pipeline_assets.domain.identity import named as named_in_python
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.event_hashes import EventHashes, hashes_of, key_hashes, named
from tests.support.row_hash import event_hash, row_hash

TYPES = {
    "s": "string", "t": "string", "n": "bigint", "i": "int", "b": "boolean", "d": "double", "at": "timestamp",
    "day": "date", "sum": "decimal(38,6)", "raw": "binary",
}  # fmt: skip
_SIGNS = ("", "-", ",", ";", "\x00", "\ufffd", "\U0001f600", "e\u0301")
_MONEY = Context(prec=40)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.one_of(st.text(max_size=20), st.sampled_from(_SIGNS)),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "boolean": st.booleans(),
    "double": st.one_of(st.floats(), st.sampled_from((0.0, -0.0, float("nan")))),
    "timestamp": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    "date": st.dates(),
    "decimal(38,6)": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda units: Decimal(units).scaleb(-6, _MONEY)),
    "binary": st.binary(max_size=20),
}
ROWS = st.lists(st.tuples(*(st.none() | _VALUES[kind] for kind in TYPES.values())), min_size=1, max_size=30)


@settings(max_examples=150)
@given(ROWS)
@example([(None,) * len(TYPES)] * 3)
@example(
    [("", None, 0, 0, False, -0.0, datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1), Decimal("-0.000001"), b"\xff")]
)
def test_arrow_hashes_as_python_does(rows: list[tuple[Any, ...]]) -> None:
    """Scenario: extremes, nulls, all null, signs of zero; whole, and as a slice of a longer batch."""
    columns = {
        name: pa.array([row[at] for row in rows], ARROW_TYPES[kind]) for at, (name, kind) in enumerate(TYPES.items())
    }
    expected = [row_hash(dict(zip(TYPES, row, strict=True)), TYPES) for row in rows]

    first, second = hashes_of(columns, TYPES)

    assert list(zip(first.to_pylist(), second.to_pylist(), strict=True)) == expected
    start = len(rows) // 2
    first, second = hashes_of({name: column.slice(start) for name, column in columns.items()}, TYPES)
    assert list(zip(first.to_pylist(), second.to_pylist(), strict=True)) == expected[start:]


@settings(max_examples=100)
@given(ROWS)
def test_an_event_is_hashed_as_the_rule_says(rows: list[tuple[Any, ...]]) -> None:
    """Outcome: rows of one meaning share its hash, and differ in the other exactly if they differ anywhere."""
    types = {**TYPES, "uuid": "string", "processed_time": "timestamp"}
    told = [dict(zip(types, (*row, f"u{n % 2}", row[6]), strict=True)) for n, row in enumerate(rows + rows[:3])]
    table = pa.table({name: pa.array([row[name] for row in told], ARROW_TYPES[kind]) for name, kind in types.items()})

    found = list(zip(*(one.to_pylist() for one in EventHashes(types).content(table)), strict=True))

    assert found == [event_hash(row, types, ("uuid", "processed_time")) for row in told]
    meanings = [repr(tuple(row[name] for name in TYPES)) for row in told]
    assert len(set(zip(found, meanings, strict=True))) == len(set(found)) == len({repr(row) for row in told})
    assert len({hashes[2] for hashes in found}) == len(set(meanings))


_IDS = st.none() | st.sampled_from(("", " ", "\u3000\u200b", "\x00", "i", "i ", "j", "\U0001d173", "\U0001f600"))

_KEYED = st.tuples(st.sampled_from("12"), st.none() | st.integers(0, 1), _IDS, _IDS, _IDS, st.integers(0, 1))


@settings(max_examples=150)
@given(st.lists(_KEYED, min_size=1))
def test_keys_are_equal_where_those_of_the_rule_are(rows: list[tuple[Any, ...]]) -> None:
    """Scenario: ids of every kind, blank ones too, in two projects. Outcome: equal key hashes exactly for equal keys."""
    names = ("project_id", "app", "device_id", "insert_id", "uuid")
    kinds = (pa.string(), pa.int64(), pa.string(), pa.string(), pa.string())
    table = pa.table({name: pa.array([row[at] for row in rows], kinds[at]) for at, name in enumerate(names)})
    content = [pa.array([row[5] for row in rows], pa.int64())] * 2

    found = list(zip(*(half.to_pylist() for half in key_hashes(table, (content[0], content[1]))), strict=True))

    day, source = date(2026, 2, 2), Source.REGULAR
    keys = [RawRow(row[0], day, source, "o", 1, row[1:3], *row[3:5], None, None, (row[5], row[5])).key for row in rows]
    assert len(set(zip(found, keys, strict=True))) == len(set(found)) == len(set(keys))


def test_arrow_and_python_see_the_same_characters() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    assert named(pa.array(every)).to_pylist() == [named_in_python(one) for one in every]


@pytest.mark.parametrize("kind", ["float", "decimal(38,7)", "map<string,string>"])
def test_a_type_without_an_encoding_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="have no hash"):
        hashes_of({"x": pa.array([None])}, {"x": kind})
