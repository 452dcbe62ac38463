"""How late raw rows arrive: the bin of a row, and sketches of groups of rows."""

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
"""The column that rows are grouped by; null if the event time or the arrival time is missing."""
_LOW, _HIGH = "_lateness_low", "_lateness_high"


def lateness_seconds() -> Column:
    """Whole seconds from the event to its arrival; negative if a clock was ahead, null if either time is missing."""
    apart = F.unix_micros(F.col(EXPORT_FORMAT.received_column)) - F.unix_micros(F.col(EVENT_TIME))
    return F.floor(apart / F.lit(1_000_000))


def lateness_bin() -> Column:
    """The bin of a row, numbered as in `LatenessSketch`."""
    seconds = lateness_seconds()
    number = F.ceil(F.log2(seconds) * F.lit(BINS_PER_DOUBLING))
    return F.when(seconds < 0, F.lit(EARLY)).when(seconds < 1, F.lit(AT_ONCE)).otherwise(number).cast("int")


def lateness_aggregates() -> list[Column]:
    """The aggregates that `SketchOfGroups.add` reads beside BIN and `rows`."""
    return [F.min(lateness_seconds()).alias(_LOW), F.max(lateness_seconds()).alias(_HIGH)]


@dataclass
class SketchOfGroups:
    """Builds a sketch from rows counted by bin."""

    _bins: Counter[int] = field(default_factory=Counter)
    _unknown: int = 0
    _ends: list[int] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one bin: a collected row, grouped by BIN, with `rows` and `lateness_aggregates`."""
        if row[BIN] is None:
            self._unknown += row["rows"]
            return
        self._bins[row[BIN]] += row["rows"]
        self._ends += [row[_LOW], row[_HIGH]]

    @property
    def sketch(self) -> LatenessSketch:
        """The sketch of all bins added so far."""
        low, high = min(self._ends, default=None), max(self._ends, default=None)
        return LatenessSketch(dict(self._bins), self._unknown, low, high)
