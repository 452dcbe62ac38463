"""How late rows arrive, in days and seconds after their event, and how wide the reprocessing window has to be."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from typing import NamedTuple

from ddsketch import DDSketch, LogarithmicMapping

from pipeline_assets.domain.settings import Settings

RELATIVE_ERROR = 0.02
"""Greatest relative error of a percentile from a sketch."""
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
EARLY, AT_ONCE = -2, -1
"""Bins for an event later than its own arrival (a wrong clock), and for one that arrived within a second."""
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
"""Bin -> the most whole seconds in it, exact up to 63 bits: no logarithm is rounded."""


@dataclass(frozen=True)
class LatenessSketch:
    """Rows by the seconds from event to arrival, in bins that grow with the lateness (DDSketch)."""

    bins: Mapping[int, int] = field(default_factory=dict)
    """Bin -> rows; EARLY and AT_ONCE are bins too."""
    unknown: int = 0
    low: int | None = None
    high: int | None = None
    """Exact least (negative for an early row) and greatest lateness in seconds; None = none known."""

    @property
    def rows(self) -> int:
        """Rows whose lateness is known."""
        return sum(self.bins.values())

    @property
    def early_rows(self) -> int:
        """Rows of events later than their own arrival."""
        return self.bins.get(EARLY, 0)

    def percentile(self, share: float) -> float | None:
        """The lateness in seconds that this share of rows does not exceed; early rows count as 0. None = none known."""
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


SHARES = (0.99, 0.999)
"""Shares of rows for which the health page shows the windows that catch them."""
ARRIVAL_DAYS = 91
"""Recent arrival days that count: client behaviour changes with client versions."""
ENOUGH_DAYS = 14
"""Least arrival days for advice: two of each weekday."""
ENOUGH_MISSED = 10
"""Least rows that the tolerated share must amount to: with fewer, one client's bad night would decide."""

Arrival = tuple[str, date, date, int]
"""Project, arrival day, event day, rows."""


@dataclass(frozen=True)
class Lateness:
    """Rows by days from event day to arrival day; early rows count as zero days."""

    rows_by_days: Mapping[int, int]
    arrival_days: int = 0

    @property
    def rows(self) -> int:
        """Rows that arrived."""
        return sum(self.rows_by_days.values())

    @property
    def most_days(self) -> int:
        """Greatest lateness in days; 0 where nothing arrived."""
        return max((days for days, rows in self.rows_by_days.items() if rows), default=0)

    def caught_within(self, days: int) -> float:
        """The share of rows, 0 to 1, that arrived at most this many days after their event day."""
        caught = sum(rows for late, rows in self.rows_by_days.items() if late <= days)
        return caught / self.rows if self.rows else 1.0

    def missed_beyond(self, days: int) -> int:
        """Rows that arrived more than this many days after their event day."""
        return sum(rows for late, rows in self.rows_by_days.items() if late > days)

    def window(self, share: float) -> int | None:
        """The fewest days within which at least this share of rows arrived; None without rows."""
        caught = 0
        for days, rows in sorted(self.rows_by_days.items()):
            caught += rows
            if caught >= share * self.rows > 0:
                return days
        return None


def lateness(arrivals: Iterable[Arrival]) -> dict[str, Lateness]:
    """Project -> lateness of its rows; `""` -> all projects.

    Rows are grouped by arrival day, because the late rows of recent event days are still to come.
    """
    counts: dict[str, Counter[int]] = {"": Counter()}
    arrived_on: dict[str, set[date]] = {"": set()}
    for project, arrived, day, rows in arrivals:
        if not rows:
            continue
        days = max(0, (arrived - day).days)
        for name in ("", project):
            counts.setdefault(name, Counter())[days] += rows
            arrived_on.setdefault(name, set()).add(arrived)
    return {name: Lateness(dict(count), len(arrived_on[name])) for name, count in counts.items()}


class Advice(NamedTuple):
    """The window that suffices for one project."""

    days: int | None
    reason: str


def advise(late: Lateness, tolerated: float) -> Advice:
    """The narrowest window that misses at most the tolerated share; `days` is None for too little data."""
    if late.arrival_days < ENOUGH_DAYS:
        told = f"{late.arrival_days} arrival days are on record, {ENOUGH_DAYS} are the least that tell of a window"
        return Advice(None, told)
    if tolerated and late.rows * tolerated < ENOUGH_MISSED:
        needed = round(ENOUGH_MISSED / tolerated)
        told = f"{late.rows:,} rows are on record, {needed:,} are the least that tell of {percent(tolerated)}"
        return Advice(None, told)
    days = late.window(1 - tolerated)
    assert days is not None
    missed, since = late.missed_beyond(days), f"{late.rows:,} rows of {late.arrival_days} arrival days"
    less = f"; {days - 1} would miss {percent(1 - late.caught_within(days - 1))}" if days else ""
    return Advice(days, f"misses {missed:,} of {since} ({percent(missed / late.rows)}){less}")


def deciding(late: Mapping[str, Lateness], tolerated: float) -> dict[str, Advice]:
    """Project -> advice, for projects with enough data; if none has, `""` -> advice for all together, if that has."""
    known = {name: advice for name, one in late.items() if (advice := advise(one, tolerated)).days is not None}
    own = {name: advice for name, advice in known.items() if name}
    return dict(sorted((own or known).items()))


def narrowness(late: Lateness, window_days: int, tolerated: float) -> str | None:
    """Why the window is too narrow for the observed lateness; None if it is wide enough, or for too little data."""
    advice = advise(late, tolerated)
    if advice.days is None or advice.days <= window_days:
        return None
    missed = late.missed_beyond(window_days)
    return (
        f"{percent(missed / late.rows)} of the rows of {late.arrival_days} arrival days came more than "
        f"{days_text(window_days)} after their event day (tolerated: {percent(tolerated)}); "
        f"{days_text(advice.days)} would catch enough"
    )


def seconds_text(seconds: float | None) -> str:
    """Return a duration in the best unit: `45 s`, `12 min`, `3.5 h`, `2.1 d`; a dash for none."""
    if seconds is None or math.isnan(seconds):
        return "–"
    for unit, size, least in (("d", 86_400, 4 * 86_400), ("h", 3_600, 3 * 3_600), ("min", 60, 180)):
        if seconds >= least:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def days_text(count: int | None) -> str:
    """`1 day`, `12 days`; a dash for None."""
    return "–" if count is None else f"{count:,} day{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """`0.1 %`, `12 %`, `0.00034 %`."""
    return f"{100 * share:.3g} %"


def out_of_reach(arrivals: Iterable[Arrival], settings: Settings) -> dict[str, int]:
    """Figure -> loaded rows that no window covers: before the calendar, or after their arrival day."""
    before = future = 0
    for _, arrived, day, rows in arrivals:
        before += rows if day < settings.calendar_start else 0
        future += rows if day > arrived else 0
    return {"rows_before_calendar": before, "rows_in_future": future}
