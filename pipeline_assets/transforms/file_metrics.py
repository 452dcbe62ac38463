"""Iceberg's metrics of a data file, computed from the rows written to it: counts, bounds, nulls, NaNs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BOUND_LENGTH = 16
"""Characters of a text, or bytes of a binary value, that a bound keeps."""
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_ENCODE: dict[pa.DataType, Callable[[Any], bytes]] = {
    pa.bool_(): lambda value: b"\x01" if value else b"\x00",
    pa.int32(): lambda value: struct.pack("<i", value),
    pa.date32(): lambda value: struct.pack("<i", value),
    pa.int64(): lambda value: struct.pack("<q", value),
    pa.timestamp("us", tz="UTC"): lambda value: struct.pack("<q", value),
    pa.float64(): lambda value: struct.pack("<d", value),
    pa.string(): lambda value: str(value).encode(),
    pa.binary(): bytes,
    pa.decimal128(38, 6): lambda value: _shortest(unscaled(value)),
}


@dataclass
class ColumnMetrics:
    """Iceberg's metrics of one column of one file."""

    values: int = 0
    nulls: int = 0
    nans: int | None = None
    """None for columns of types without NaN."""
    lowest: Any = None
    """A number for a timestamp or a date; None if all values are null or NaN."""
    highest: Any = None

    def add(self, column: pa.ChunkedArray) -> None:
        """Add the values of further rows."""
        self.values += len(column)
        self.nulls += column.null_count
        if pa.types.is_floating(column.type):
            self._add_doubles(column)
        elif column.null_count < len(column):
            self._widen(*_span(column))

    def bounds(self, kind: pa.DataType, *, is_exact: bool) -> tuple[bytes | None, bytes | None]:
        """Lower and upper bound as Iceberg writes them; texts and binary values are truncated unless `is_exact`."""
        if self.lowest is None:
            return None, None
        lowest, highest = self.lowest, self.highest
        if kind in (pa.string(), pa.binary()) and not is_exact:
            is_text = kind == pa.string()
            lowest, highest = lowest[:_BOUND_LENGTH], (_not_below if is_text else _bytes_not_below)(highest)
        encode = _ENCODE[kind]
        return encode(lowest), None if highest is None else encode(highest)

    def _widen(self, lowest: Any, highest: Any) -> None:
        self.lowest = lowest if self.lowest is None else min(self.lowest, lowest)
        self.highest = highest if self.highest is None else max(self.highest, highest)

    def _add_doubles(self, column: pa.ChunkedArray) -> None:
        given = column.drop_null().to_numpy()
        numbers = given[~np.isnan(given)]
        self.nans = (self.nans or 0) + len(given) - len(numbers)
        if len(numbers):
            # Iceberg orders negative zero below zero; numpy and Python treat them as equal.
            found = [(float(one), not np.signbit(one)) for one in (numbers.min(), numbers.max())]
            zeros = np.signbit(numbers[numbers == 0])
            if found[0][0] == 0:
                found[0] = (-0.0, False) if zeros.any() else (0.0, True)
            if found[1][0] == 0:
                found[1] = (-0.0, False) if zeros.all() else (0.0, True)
            low = min(found[0], self._key(self.lowest) or found[0])
            high = max(found[1], self._key(self.highest) or found[1])
            self.lowest, self.highest = low[0], high[0]

    @staticmethod
    def _key(value: float | None) -> tuple[float, bool] | None:
        return None if value is None else (value, not np.signbit(value))


class FileMetrics:
    """Metrics of one file, over all rows added."""

    def __init__(self, schema: pa.Schema, exact_bounds: frozenset[str]) -> None:
        """Start every column with empty metrics."""
        self.schema, self.exact_bounds = schema, exact_bounds
        self.columns = {entry.name: ColumnMetrics() for entry in self.schema}

    def add(self, rows: pa.Table) -> None:
        """Add further rows of the schema."""
        for name, column in self.columns.items():
            column.add(rows.column(name))

    def as_json(self, field_ids: Mapping[str, int]) -> dict[str, Any]:
        """`value-counts`, `null-value-counts`, `nan-value-counts` and both bounds, as in Iceberg's JSON of a file."""
        found: dict[str, dict[int, Any]] = {
            name: {}
            for name in ("value-counts", "null-value-counts", "nan-value-counts", "lower-bounds", "upper-bounds")
        }
        for entry in self.schema:
            one, number = self.columns[entry.name], field_ids[entry.name]
            found["value-counts"][number] = one.values
            found["null-value-counts"][number] = one.nulls
            if pa.types.is_floating(entry.type):
                found["nan-value-counts"][number] = one.nans or 0
            lower, upper = one.bounds(entry.type, is_exact=entry.name in self.exact_bounds)
            if lower is not None:
                found["lower-bounds"][number] = lower.hex().upper()
            if upper is not None:
                found["upper-bounds"][number] = upper.hex().upper()
        return {name: {"keys": list(entries), "values": list(entries.values())} for name, entries in found.items()}


def unscaled(amount: Decimal) -> int:
    """A decimal in units of its last place."""
    sign, digits, _ = amount.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _shortest(number: int) -> bytes:
    """The fewest bytes of two's complement, the highest first."""
    bits = (~number if number < 0 else number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _span(column: pa.ChunkedArray) -> tuple[Any, Any]:
    plain = column
    if pa.types.is_timestamp(column.type):
        plain = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        plain = column.cast(pa.int32())
    found = pc.min_max(plain)
    return found["min"].as_py(), found["max"].as_py()


def _not_below(text: str) -> str | None:
    """The shortest text of at most _BOUND_LENGTH characters that is not less than `text`; None if there is none."""
    if len(text) <= _BOUND_LENGTH:
        return text
    for end in range(_BOUND_LENGTH, 0, -1):
        following = ord(text[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CODE_POINT:
            return text[: end - 1] + chr(following)
    return None


def _bytes_not_below(value: bytes) -> bytes | None:
    if len(value) <= _BOUND_LENGTH:
        return value
    kept = value[:_BOUND_LENGTH].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
