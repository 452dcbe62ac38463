"""How many days after its event day a row arrives, and how wide the reprocessing window has to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from pipeline_assets.domain.settings import Settings

SHARES = (0.99, 0.999)
"""Shares of all rows, 0 to 1, for which the health page shows the windows that catch them."""
ARRIVAL_DAYS = 91
"""Only this many recent arrival days count: client behaviour changes with client versions."""
ENOUGH_DAYS = 14
"""The least arrival days for advice: two of each weekday."""
ENOUGH_MISSED = 10
"""The least rows that the tolerated share must amount to: with fewer, one client's bad night would decide."""

Arrival = tuple[str, date, date, int]
"""Project, arrival day, event day, rows."""


@dataclass(frozen=True)
class Lateness:
    """Rows by days from event day to arrival day; early rows count as zero days."""

    rows_by_days: Mapping[int, int]
    arrival_days: int = 0
    """Number of days on which any of the rows arrived."""

    @property
    def rows(self) -> int:
        """Number of rows that arrived."""
        return sum(self.rows_by_days.values())

    @property
    def most_days(self) -> int:
        """The greatest lateness in days; 0 where nothing arrived."""
        return max((days for days, rows in self.rows_by_days.items() if rows), default=0)

    def caught_within(self, days: int) -> float:
        """The share of rows, 0 to 1, that arrived at most this many days after their event day."""
        caught = sum(rows for late, rows in self.rows_by_days.items() if late <= days)
        return caught / self.rows if self.rows else 1.0

    def missed_beyond(self, days: int) -> int:
        """Number of rows that arrived more than this many days after their event day."""
        return sum(rows for late, rows in self.rows_by_days.items() if late > days)

    def window(self, share: float) -> int | None:
        """The fewest days within which at least this share of rows arrived; None where no row arrived."""
        caught = 0
        for days, rows in sorted(self.rows_by_days.items()):
            caught += rows
            if caught >= share * self.rows > 0:
                return days
        return None

    def without(self, beyond: int | None) -> Lateness:
        """The same without rows that are more than `beyond` days late; unchanged where `beyond` is None."""
        if beyond is None:
            return self
        return Lateness({days: rows for days, rows in self.rows_by_days.items() if days <= beyond}, self.arrival_days)


def lateness(arrivals: Iterable[Arrival]) -> dict[str, Lateness]:
    """Project -> lateness of its rows; `""` -> all projects together.

    Rows are grouped by arrival day: the late rows of recent event days are still to come, so grouping by event day would
    make those days look punctual.
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


@dataclass(frozen=True)
class Advice:
    """The window that suffices for one project."""

    days: int | None
    """Width of the window in days; None where the data is too little for advice."""
    reason: str


def advise(late: Lateness, tolerated: float) -> Advice:
    """The narrowest window that misses at most the tolerated share; `days` is None where the data is too little."""
    if late.arrival_days < ENOUGH_DAYS:
        return Advice(
            None, f"{late.arrival_days} arrival days are on record, {ENOUGH_DAYS} are the least that tell of a window"
        )
    if tolerated and late.rows * tolerated < ENOUGH_MISSED:
        needed = round(ENOUGH_MISSED / tolerated)
        return Advice(
            None, f"{late.rows:,} rows are on record, {needed:,} are the least that tell of {percent(tolerated)}"
        )
    days = late.window(1 - tolerated)
    assert days is not None
    missed, since = late.missed_beyond(days), f"{late.rows:,} rows of {late.arrival_days} arrival days"
    less = f"; {days - 1} would miss {percent(1 - late.caught_within(days - 1))}" if days else ""
    return Advice(days, f"misses {missed:,} of {since} ({percent(missed / late.rows)}){less}")


def deciding(late: Mapping[str, Lateness], tolerated: float) -> dict[str, Advice]:
    """Project -> advice, for projects with enough data; where none has, `""` -> advice for all together, if that has enough."""
    known = {name: advice for name, one in late.items() if (advice := advise(one, tolerated)).days is not None}
    own = {name: advice for name, advice in known.items() if name}
    return dict(sorted((own or known).items()))


def narrowness(late: Lateness, window_days: int, tolerated: float) -> str | None:
    """Why the window is too narrow for the observed lateness; None where it is wide enough, or the data is too little."""
    advice = advise(late, tolerated)
    if advice.days is None or advice.days <= window_days:
        return None
    missed = late.missed_beyond(window_days)
    return (
        f"{percent(missed / late.rows)} of the rows of {late.arrival_days} arrival days came more than "
        f"{days_text(window_days)} after their event day (tolerated: {percent(tolerated)}); "
        f"{days_text(advice.days)} would catch enough"
    )


def days_text(count: int | None) -> str:
    """`1 day`, `12 days`; a dash for None."""
    return "–" if count is None else f"{count:,} day{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """`0.1 %`, `12 %`, `0.00034 %`."""
    return f"{100 * share:.3g} %"


@dataclass(frozen=True)
class OutOfReach:
    """Rows that no reprocessing window covers. They are loaded like any other, and counted."""

    before_calendar: int = 0
    """Rows of event days before the first partition of the calendar."""
    in_future: int = 0
    """Rows of event days after their arrival day: the sender's clock was ahead."""
    beyond_max_lateness: int = 0
    """Rows later than `max_lateness_days`, if that is set."""

    @property
    def figures(self) -> dict[str, float]:
        """Name -> rows, as figures of a day."""
        return {
            "rows_before_calendar": self.before_calendar,
            "rows_in_future": self.in_future,
            "rows_beyond_max_lateness": self.beyond_max_lateness,
        }


def out_of_reach(arrivals: Iterable[Arrival], settings: Settings) -> OutOfReach:
    """The arrivals that no window covers; a row may count under more than one of the three kinds."""
    before = future = beyond = 0
    most = settings.max_lateness_days
    for _, arrived, day, rows in arrivals:
        before += rows if day < settings.calendar_start else 0
        future += rows if day > arrived else 0
        beyond += rows if most is not None and arrived - day > timedelta(days=most) else 0
    return OutOfReach(before, future, beyond)
