"""Measuring staged data: content digests and figures per slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import reduce
from typing import Any, NamedTuple

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.event_keys import KEY_TYPES, key_parts
from pipeline_assets.transforms.lateness import BIN, SketchOfGroups, lateness_aggregates, lateness_bin
from pipeline_assets.transforms.row_hash import row_hashes

HASH_A, HASH_B, MEANING_HASH = "_hash_a", "_hash_b", "_meaning_hash"
"""Event tables store these columns; for other tables they are computed on demand."""
_STORED_A, _STORED_B = "_stored_a", "_stored_b"
FALSE_HASHES = "false_hashes"
"""Figure of `checked_hashes`: the number of rows whose stored hash does not match their content."""
_MADE_KEY = ("_made_key_a", "_made_key_b")
_UNMEASURABLE = 0
"""Digest version if stored hashes do not match the content: such a digest never equals one of sound rows."""
_HALF = 32
"""Bits. A sum of 64-bit hashes overflows a long; a sum of their halves does not below two billion rows."""


def with_row_hashes(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The frame plus `_hash_a` and `_hash_b` (long) over the given columns; these replace stored hashes."""
    types = dict(frame.dtypes)
    first, second = row_hashes({name: types[name] for name in columns})
    return frame.withColumns({HASH_A: first, HASH_B: second})


def digest_aggregates() -> list[Column]:
    """Aggregates that `digest_of` reads: `rows`, and sums over `_hash_a` and `_hash_b`."""
    return [F.count(F.lit(1)).alias("rows"), *_sums(F.col(HASH_A), "a"), *_sums(F.col(HASH_B), "b")]


def digest_of(row: Mapping[str, Any]) -> Digest:
    """The digest in a collected row of `digest_aggregates`, and of `checked_hashes` if stored hashes were checked."""
    known = _UNMEASURABLE if row.get(FALSE_HASHES) else ROW_HASH_VERSION
    return Digest(int(row["rows"]), _sum_of(row, "a"), _sum_of(row, "b"), known)


def checked_hashes(frame: DataFrame, columns: Sequence[str]) -> tuple[DataFrame, list[Column]]:
    """The frame with hashes computed from its content, and an aggregate FALSE_HASHES if the frame stores hashes too."""
    if not {HASH_A, HASH_B} <= set(frame.columns):
        return with_row_hashes(frame, columns), []
    types = dict(frame.dtypes)
    hashed = with_row_hashes(frame.withColumns({_STORED_A: F.col(HASH_A), _STORED_B: F.col(HASH_B)}), columns)
    meaning = row_hashes({name: types[name] for name in columns if name not in EXPORT_FORMAT.transport_columns})[0]
    pairs = {_STORED_A: F.col(HASH_A), _STORED_B: F.col(HASH_B), MEANING_HASH: meaning}
    made = hashed.withColumns(key_parts(HASH_A, HASH_B)).withColumns(
        dict(zip(_MADE_KEY, row_hashes(KEY_TYPES), strict=True))
    )
    pairs |= {stored: F.col(name) for stored, name in zip(("_key_a", "_key_b"), _MADE_KEY, strict=True)}
    are_equal = reduce(Column.__and__, [F.col(stored).eqNullSafe(value) for stored, value in pairs.items()])
    return made, [F.count_if(~are_equal).alias(FALSE_HASHES)]


def _sums(hashes: Column, name: str) -> list[Column]:
    """The exact sum of longs, as two longs. A sum of decimals would take a tenth of the time of a whole audit."""
    low = F.sum(hashes.bitwiseAND(F.lit((1 << _HALF) - 1)))
    return [F.sum(F.shiftright(hashes, _HALF)).alias(f"sum_{name}_high"), low.alias(f"sum_{name}_low")]


def _sum_of(row: Mapping[str, Any], name: str) -> int:
    return (int(row[f"sum_{name}_high"] or 0) << _HALF) + int(row[f"sum_{name}_low"] or 0)


def digests(frame: DataFrame, columns: Sequence[str], by: Sequence[str]) -> DataFrame:
    """One row per group: the columns `by`, and the columns that `digest_of` reads."""
    hashed, also = checked_hashes(frame, columns)
    return hashed.groupBy(*by).agg(*digest_aggregates(), *also)


def slice_digests(frame: DataFrame, columns: Sequence[str], day_column: str) -> dict[Slice, Digest]:
    """Slice -> digest of its rows; the frame has `day_column` (date), project_id and `columns`."""
    rows = digests(frame, columns, [day_column, "project_id"]).collect()
    return {Slice(row[day_column], row["project_id"]): digest_of(row.asDict()) for row in rows}


class MeasuredPart(NamedTuple):
    """Measurements of a slice, or of its rows of one arrival day; fields are in the order of BatchDay's."""

    digest: Digest
    lineage: str | None = None
    """Raw rows only: digest of the object and line of each row."""
    lateness: LatenessSketch | None = None
    """Raw rows only: how late they arrived."""


def batch_days(frame: DataFrame, columns: Sequence[str] | None) -> dict[tuple[str, date, date], MeasuredPart]:
    """(project, arrival day, event day) -> measurements of its rows in a raw table; one Spark job.

    Hashes are computed from `columns`; if that is None, stored hashes are used.
    """
    first, second = row_hashes({HASH_A: "bigint", HASH_B: "bigint", "_object_key": "string", "_line_number": "int"})
    held = [*_sums(first, "held_a"), *_sums(second, "held_b")]
    hashed, also = (frame, []) if columns is None else checked_hashes(frame, columns)
    by_bin = hashed.withColumn(BIN, lateness_bin()).groupBy(*_BATCH_DAY, BIN)
    found: dict[tuple[str, date, date], _Group] = {}
    for row in _in_parts(by_bin.agg(*digest_aggregates(), *held, *also, *lateness_aggregates())):
        found.setdefault((row["project_id"], row["_arrival_date"], row["event_date"]), _Group()).add(row)
    return {key: group.part() for key, group in found.items()}


_BATCH_DAY = ("project_id", "_arrival_date", "event_date")
_ROWS_AT_ONCE = 10_000


def _in_parts(frame: DataFrame) -> Iterator[Mapping[str, Any]]:
    """Yield each row as a mapping; rows stay in Arrow until needed, because there may be hundreds of thousands."""
    for part in frame.toArrow().to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from part.to_pylist()


@dataclass
class _Group:
    """The sum over the bins of one batch day; sums of hashes are additive, as counts are."""

    sums: Counter[str] = field(default_factory=Counter)
    lateness: SketchOfGroups = field(default_factory=SketchOfGroups)

    def add(self, row: Mapping[str, Any]) -> None:
        self.sums.update({name: row[name] or 0 for name in row if name in _SUMMED})
        self.lateness.add(row)

    def part(self) -> MeasuredPart:
        return MeasuredPart(digest_of(self.sums), lineage_of(self.sums), self.lateness.sketch)


_SUMMED = frozenset(
    {"rows", FALSE_HASHES}
    | {f"sum_{name}_{half}" for name in ("a", "b", "held_a", "held_b") for half in ("high", "low")}
)


def measured_parts(
    frame: DataFrame, columns: Sequence[str], day_column: str, *, by_arrival: bool
) -> dict[Slice, dict[date | None, MeasuredPart]]:
    """Slice -> arrival day (None for tables without one) -> measurements of its rows."""
    if by_arrival:
        parts: dict[Slice, dict[date | None, MeasuredPart]] = {}
        for (project, arrival, day), part in batch_days(frame, columns).items():
            parts.setdefault(Slice(day, project), {})[arrival] = part
        return parts
    measured = slice_digests(frame, columns, day_column)
    return {key: {None: MeasuredPart(digest)} for key, digest in measured.items()}


def lineage_of(row: Mapping[str, Any]) -> str:
    """The digest of the object and line of each row, from the sums over a batch day."""
    first, second = (_sum_of(row, name) & ((1 << 128) - 1) for name in ("held_a", "held_b"))
    return f"h{ROW_HASH_VERSION}:{first:x}:{second:x}"
