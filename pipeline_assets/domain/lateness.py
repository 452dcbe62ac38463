"""How late rows arrive: a mergeable sketch of the seconds from an event to its arrival."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from ddsketch import DDSketch, LogarithmicMapping

RELATIVE_ERROR = 0.02
"""Greatest error of a percentile from a sketch, as a share of the true value."""
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
EARLY, AT_ONCE = -2, -1
"""Bins for an event later than its own arrival, by a wrong clock, and for one that arrived within a second."""
_VERSION = 1


def _greatest() -> tuple[int, ...]:
    share = Fraction(str(RELATIVE_ERROR))
    growth, bound = (1 + share) / (1 - share), Fraction(1)
    found = []
    while bound < 1 << 63:
        found.append(math.floor(bound))
        bound *= growth
    return tuple(found)


GREATEST_SECONDS = _greatest()
"""Bin -> the most whole seconds in it, exact for every number of 63 bits: no logarithm is rounded, whatever computes a bin."""


def bin_of(seconds: int) -> int:
    """The bin of a lateness of whole seconds."""
    return EARLY if seconds < 0 else AT_ONCE if seconds < 1 else bisect_left(GREATEST_SECONDS, seconds)


@dataclass(frozen=True)
class LatenessSketch:
    """Rows by the seconds from event to arrival, in bins that grow with the lateness (DDSketch).

    Sketches add up: the same rows give the same sketch, in whatever order and grouping they are added.
    """

    bins: Mapping[int, int] = field(default_factory=dict)
    """Bin -> rows; EARLY and AT_ONCE are bins too."""
    unknown: int = 0
    """Rows without a known lateness."""
    low: int | None = None
    """The exact least lateness in seconds, negative for an early row; None where no lateness is known."""
    high: int | None = None
    """The exact greatest lateness in seconds; None where none is known."""

    @property
    def rows(self) -> int:
        """Rows whose lateness is known."""
        return sum(self.bins.values())

    @property
    def early_rows(self) -> int:
        """Rows of events that are later than their own arrival."""
        return self.bins.get(EARLY, 0)

    def __add__(self, other: LatenessSketch) -> LatenessSketch:
        """The sketch of the rows of both."""
        return merged((self, other))

    def percentile(self, share: float) -> float | None:
        """The lateness in seconds that this share of rows does not exceed; early rows count as 0. None where none is known."""
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
        """The text for the ledger: equal for equal rows."""
        bins = sorted((number, rows) for number, rows in self.bins.items() if rows)
        fields = {"bins": bins, "high": self.high, "low": self.low, "unknown": self.unknown, "version": _VERSION}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> LatenessSketch | None:
        """The inverse of `to_text`; None for a text of another version, which has other bins."""
        fields = json.loads(text)
        if fields["version"] != _VERSION:
            return None
        return cls(dict(map(tuple, fields["bins"])), fields["unknown"], fields["low"], fields["high"])


def merged(sketches: Iterable[LatenessSketch]) -> LatenessSketch:
    """The sketch of the rows of all sketches."""
    bins: Counter[int] = Counter()
    unknown, lows, highs = 0, [], []
    for sketch in sketches:
        bins.update(sketch.bins)
        unknown += sketch.unknown
        if sketch.low is not None and sketch.high is not None:
            lows.append(sketch.low)
            highs.append(sketch.high)
    return LatenessSketch(dict(bins), unknown, min(lows, default=None), max(highs, default=None))
