"""How late rows arrive: a mergeable sketch of the seconds from an event to its arrival.

Contains: the sketch, what it tells, and its text.
Add here: another question to a sketch.
Does not contain: filling it from rows (transforms/lateness.py), whole days and windows (window.py).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddsketch import DDSketch, LogarithmicMapping

RELATIVE_ERROR = 0.02
"""A percentile that a sketch tells is at most so far from the true one, as a share of the true one."""
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
BINS_PER_DOUBLING = math.log(2) / math.log(_MAPPING.gamma)
"""A lateness of s seconds lies in the bin ceil(log2(s) * BINS_PER_DOUBLING)."""
EARLY, AT_ONCE = -2, -1
"""In place of a bin: an event that is later than its own arrival, by a wrong clock; and one that arrived within a second."""
_VERSION = 1


@dataclass(frozen=True)
class LatenessSketch:
    """Rows by the seconds from event to arrival, in bins that grow with the lateness (DDSketch).

    Sketches add up: of the same rows there is one sketch, whatever the order and grouping in which they came.
    """

    bins: Mapping[int, int] = field(default_factory=dict)
    """Bin -> rows; EARLY and AT_ONCE are bins too."""
    unknown: int = 0
    """Rows that do not say when they arrived."""
    low: int | None = None
    """The least lateness in seconds, below zero for an early row; exact. None where no row is known."""
    high: int | None = None
    """The greatest; exact."""

    @property
    def rows(self) -> int:
        """Rows whose lateness is known."""
        return sum(self.bins.values())

    @property
    def early_rows(self) -> int:
        """Rows of events that are later than their own arrival."""
        return self.bins.get(EARLY, 0)

    def __add__(self, other: LatenessSketch) -> LatenessSketch:
        """The sketch of both sets of rows."""
        return merged((self, other))

    def percentile(self, share: float) -> float | None:
        """The lateness in seconds that this share of the rows does not exceed, early rows taken for punctual; None of none."""
        if self.high is None:
            return None
        if share >= 1:
            return float(max(0, self.high))
        sketch = DDSketch(RELATIVE_ERROR)
        for number, rows in self.bins.items():
            sketch.add(_MAPPING.value(number) if number >= 0 else 0.0, rows)
        value = sketch.get_quantile_value(share)
        return min(float(value or 0.0), float(max(0, self.high)))

    def to_text(self) -> str:
        """For the ledger: the same text for the same rows."""
        bins = sorted((number, rows) for number, rows in self.bins.items() if rows)
        fields = {"bins": bins, "high": self.high, "low": self.low, "unknown": self.unknown, "version": _VERSION}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> LatenessSketch | None:
        """From the ledger; None where another version wrote it, whose bins are others."""
        fields = json.loads(text)
        if fields["version"] != _VERSION:
            return None
        return cls(dict(map(tuple, fields["bins"])), fields["unknown"], fields["low"], fields["high"])


def merged(sketches: Iterable[LatenessSketch]) -> LatenessSketch:
    """The sketch of the rows of all of them."""
    bins: Counter[int] = Counter()
    unknown, lows, highs = 0, [], []
    for sketch in sketches:
        bins.update(sketch.bins)
        unknown += sketch.unknown
        if sketch.low is not None and sketch.high is not None:
            lows.append(sketch.low)
            highs.append(sketch.high)
    return LatenessSketch(dict(bins), unknown, min(lows, default=None), max(highs, default=None))
