"""How late rows of raw arrive: the bin of a row, and sketches of groups of rows.

Contains: the expressions, and reading them back.
Add here: another measure of lateness that is taken of rows.
Does not contain: what a sketch is (domain/lateness.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.lateness import AT_ONCE, BINS_PER_DOUBLING, EARLY, LatenessSketch
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT

BIN = "_lateness_bin"
"""Rows are grouped by it; null where a row does not say when it arrived."""
_LOW, _HIGH = "_lateness_low", "_lateness_high"


def lateness_seconds() -> Column:
    """Whole seconds from the event to its arrival; below zero where a clock was ahead, null where either is not told."""
    apart = F.unix_micros(F.col(EXPORT_FORMAT.received_column)) - F.unix_micros(F.col(EVENT_TIME))
    return F.floor(apart / F.lit(1_000_000))


def lateness_bin() -> Column:
    """The bin of a row, as `LatenessSketch` has it."""
    seconds = lateness_seconds()
    number = F.ceil(F.log2(seconds) * F.lit(BINS_PER_DOUBLING))
    return F.when(seconds < 0, F.lit(EARLY)).when(seconds < 1, F.lit(AT_ONCE)).otherwise(number).cast("int")


def lateness_aggregates() -> list[Column]:
    """What `add` reads beside BIN and `rows`."""
    return [F.min(lateness_seconds()).alias(_LOW), F.max(lateness_seconds()).alias(_HIGH)]


@dataclass
class SketchOfGroups:
    """A sketch, made of rows that were counted by bin."""

    _bins: Counter[int] = field(default_factory=Counter)
    _unknown: int = 0
    _ends: list[int] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        """One bin: a collected row that was grouped by BIN, with `rows` and `lateness_aggregates`."""
        if row[BIN] is None:
            self._unknown += row["rows"]
            return
        self._bins[row[BIN]] += row["rows"]
        self._ends += [row[_LOW], row[_HIGH]]

    @property
    def sketch(self) -> LatenessSketch:
        """Of all bins that were added."""
        low, high = min(self._ends, default=None), max(self._ends, default=None)
        return LatenessSketch(dict(self._bins), self._unknown, low, high)
