"""Measuring staged data: content digests and figures per slice.

Contains: the digest expressions and grouped measurements.
Add here: a figure computed from rows.
Does not contain: comparing figures with anything (domain/checks.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import reduce
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.event_keys import KEY_TYPES, key_parts
from pipeline_assets.transforms.row_hash import former_row_hashes, row_hashes

HASH_A, HASH_B, MEANING_HASH = "_hash_a", "_hash_b", "_meaning_hash"
"""Of event tables they are stored columns, of others computed where they are needed."""
_STORED_A, _STORED_B = "_stored_a", "_stored_b"
FALSE_HASHES = "false_hashes"
"""Figure of `checked_hashes`: rows whose stored hash is not that of their content."""
_MADE_KEY = ("_made_key_a", "_made_key_b")
_UNMEASURABLE = 0
"""Version of the digest of rows whose stored hashes are not those of their content: equal to none of rows that are."""
_HALF = 32
"""Bits: a sum of 64-bit hashes overflows a long, one of their halves does not below two billion rows."""


def with_row_hashes(frame: DataFrame, columns: Sequence[str], *, version: int = ROW_HASH_VERSION) -> DataFrame:
    """The frame plus `_hash_a` and `_hash_b` (long) over the given columns, in place of any that are stored."""
    types = dict(frame.dtypes)
    former = version != ROW_HASH_VERSION
    first, second = former_row_hashes(columns) if former else row_hashes({name: types[name] for name in columns})
    return frame.withColumns({HASH_A: first, HASH_B: second})


def digest_aggregates() -> list[Column]:
    """Aggregates for `rows`, and the sums over `_hash_a`, `_hash_b` that `digest_of` reads."""
    return [F.count(F.lit(1)).alias("rows"), *_sums(F.col(HASH_A), "a"), *_sums(F.col(HASH_B), "b")]


def digest_of(row: Mapping[str, Any], version: int = ROW_HASH_VERSION) -> Digest:
    """The digest in a collected row of `digest_aggregates`, and of `checked_hashes` where they were checked."""
    known = _UNMEASURABLE if row.get(FALSE_HASHES) else version
    return Digest(int(row["rows"]), _sum_of(row, "a"), _sum_of(row, "b"), known)


def checked_hashes(
    frame: DataFrame, columns: Sequence[str], version: int = ROW_HASH_VERSION
) -> tuple[DataFrame, list[Column]]:
    """The frame with hashes over its content, and FALSE_HASHES as an aggregate where hashes are stored with it."""
    if version != ROW_HASH_VERSION or not {HASH_A, HASH_B} <= set(frame.columns):
        return with_row_hashes(frame, columns, version=version), []
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
    """Exact sum of longs as two longs. Decimals would hold it too, at a tenth of the time of a whole audit."""
    low = F.sum(hashes.bitwiseAND(F.lit((1 << _HALF) - 1)))
    return [F.sum(F.shiftright(hashes, _HALF)).alias(f"sum_{name}_high"), low.alias(f"sum_{name}_low")]


def _sum_of(row: Mapping[str, Any], name: str) -> int:
    return (int(row[f"sum_{name}_high"] or 0) << _HALF) + int(row[f"sum_{name}_low"] or 0)


def digests(
    frame: DataFrame, columns: Sequence[str], by: Sequence[str], *, version: int = ROW_HASH_VERSION
) -> DataFrame:
    """`by` and what `digest_of` reads: one row per group."""
    hashed, also = checked_hashes(frame, columns, version)
    return hashed.groupBy(*by).agg(*digest_aggregates(), *also)


def slice_digests(
    frame: DataFrame, columns: Sequence[str], day_column: str, *, version: int = ROW_HASH_VERSION
) -> dict[Slice, Digest]:
    """Slice -> digest of its rows; the frame has `day_column` (date), project_id and `columns`."""
    rows = digests(frame, columns, [day_column, "project_id"], version=version).collect()
    return {Slice(row[day_column], row["project_id"]): digest_of(row.asDict(), version) for row in rows}


def batch_day_digests(frame: DataFrame, columns: Sequence[str] | None, *, version: int = ROW_HASH_VERSION) -> DataFrame:
    """project_id, _arrival_date, event_date, then `digest_aggregates` and `lineage_of`: one row per batch and event day.

    Hashes are computed from these columns, or are those stored where none are named.
    """
    if version == ROW_HASH_VERSION:
        first, second = row_hashes({HASH_A: "bigint", HASH_B: "bigint", "_object_key": "string", "_line_number": "int"})
    else:
        first, second = F.xxhash64(F.col(HASH_A), F.col("_object_key")), F.lit(0)
    held = [*_sums(first, "held_a"), *_sums(second, "held_b")]
    by = ["project_id", "_arrival_date", "event_date"]
    hashed, also = (frame, []) if columns is None else checked_hashes(frame, columns, version)
    return hashed.groupBy(*by).agg(*digest_aggregates(), *held, *also)


def measured_parts(
    frame: DataFrame, columns: Sequence[str], day_column: str, *, by_arrival: bool, version: int = ROW_HASH_VERSION
) -> dict[Slice, dict[date | None, tuple[Digest, str | None]]]:
    """Slice -> arrival day (None for tables without) -> digest and lineage of its rows."""
    parts: dict[Slice, dict[date | None, tuple[Digest, str | None]]] = {}
    if by_arrival:
        for row in batch_day_digests(frame, columns, version=version).collect():
            part = digest_of(row.asDict(), version), lineage_of(row.asDict(), version)
            parts.setdefault(Slice(row["event_date"], row["project_id"]), {})[row["_arrival_date"]] = part
        return parts
    measured = slice_digests(frame, columns, day_column, version=version)
    return {key: {None: (digest, None)} for key, digest in measured.items()}


def lineage_of(row: Mapping[str, Any], version: int = ROW_HASH_VERSION) -> str:
    """The digest of which object holds which row at which line, in a collected row of `batch_day_digests`."""
    first, second = (_sum_of(row, name) & ((1 << 128) - 1) for name in ("held_a", "held_b"))
    return f"h{version}:{first:x}:{second:x}" if version == ROW_HASH_VERSION else f"{first:x}"
