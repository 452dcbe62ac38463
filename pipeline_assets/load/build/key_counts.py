"""Counts the rows of shared event keys, and finds hot keys with more rows than one task should hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyspark.sql.functions as F

from pipeline_assets.domain.skew import KeyShare, StepSkew, Unit, hashed_sizes
from pipeline_assets.transforms.event_keys import KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMPARE = "compare"
_LONG = (1 << 64) - 1


@dataclass(frozen=True)
class KeyCounts:
    """Counts of the keys that several rows share."""

    keys: int
    rows: int
    heaviest: Mapping[str, int]
    """The key with the most rows -> its rows."""
    hot: Mapping[str, int]
    """Hot keys, which are compared separately -> their rows."""

    def skew(self, table: str, tasks: int) -> StepSkew:
        """The skew of rows over keys, and over tasks by the hash of the key; rows of hot keys are not shuffled."""
        whole = self.hot or self.heaviest
        ((name, most),) = self.heaviest.items()
        share = KeyShare("event key", self.keys, name, most / self.rows)
        undivided = hashed_sizes(whole, self.rows - sum(whole.values()), tasks)
        together = {} if self.hot else self.heaviest
        forecast = hashed_sizes(together, self.rows - sum(together.values()), tasks)
        return StepSkew(table, COMPARE, Unit.ROWS, (share,), undivided, forecast)


def counts_of(keys: DataFrame, hot_key_rows: int) -> KeyCounts:
    """Count a frame of KEY and `count` (keys with several rows). The frame is read once, or twice if a key is hot."""
    row = keys.agg(F.count(F.lit(1)), F.sum("count"), F.max("count"), F.max_by(F.struct(*KEY), "count")).first()
    assert row is not None
    if not row[0]:
        return KeyCounts(0, 0, {}, {})
    heaviest = {_name(row[3]): row[2]}
    if row[2] < hot_key_rows:
        return KeyCounts(row[0], row[1], heaviest, {})
    hot = keys.where(F.col("count") >= hot_key_rows).select(F.struct(*KEY), "count").collect()
    return KeyCounts(row[0], row[1], heaviest, {_name(key): count for key, count in hot})


def _name(key: tuple[int, int]) -> str:
    """The key as hexadecimal digits, which keeps ids of events out of logs."""
    return "".join(f"{half & _LONG:016x}" for half in key)
