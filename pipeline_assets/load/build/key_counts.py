"""Counts of the rows of event keys that occur several times, and how unevenly their comparison is spread over tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline_assets.domain.skew import KeyShare, StepSkew, Unit, hashed_sizes

COMPARE = "compare"
_LONG = (1 << 64) - 1


@dataclass(frozen=True)
class KeyCounts:
    """Counts of the keys that several rows share; a key is told by the first half of its hash."""

    keys: int
    rows: int
    heaviest: Mapping[int, int]
    """The key with the most rows -> its rows; empty if no key has rows."""
    hot: Mapping[int, int]
    """Hot keys, whose rows are divided among tasks -> their rows."""

    def skew(self, table: str, tasks: int) -> StepSkew:
        """The skew of rows over keys, and over tasks by ranges of keys; rows of hot keys are spread evenly."""
        whole = _named(self.hot or self.heaviest)
        ((name, most),) = _named(self.heaviest).items()
        share = KeyShare("event key", self.keys, name, most / self.rows)
        undivided = hashed_sizes(whole, self.rows - sum(whole.values()), tasks)
        together = {} if self.hot else whole
        forecast = hashed_sizes(together, self.rows - sum(together.values()), tasks)
        return StepSkew(table, COMPARE, Unit.ROWS, (share,), undivided, forecast)


def _named(keys: Mapping[int, int]) -> dict[str, int]:
    """The keys as hexadecimal digits, which keeps ids of events out of logs."""
    return {f"{key & _LONG:016x}": rows for key, rows in keys.items()}
