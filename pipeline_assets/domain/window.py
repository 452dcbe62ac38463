"""How many days after its event day a row arrives, and the reprocessing window that follows from it.

Contains: exact counts by whole days, what each window catches, which one is enough, and rows that no window is for.
Add here: another rule about windows.
Does not contain: percentiles in seconds (lateness.py), reading the ledger (load/lateness_seen.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from pipeline_assets.domain.settings import Settings

SHARES = (0.99, 0.999)
"""Of all rows, how many a window shall catch."""
ARRIVAL_DAYS = 91
"""So many of the newest arrival days are looked at: what clients do changes with their versions."""
ENOUGH_DAYS = 14
"""Fewer arrival days say nothing of a window: two of each weekday are among so many."""
ENOUGH_MISSED = 10
"""A share is believed where so many rows would make it up: of fewer one client's bad night decides."""

Arrival = tuple[str, date, date, int]
"""Project, arrival day, event day, rows."""


@dataclass(frozen=True)
class Lateness:
    """Rows by the days from their event day to the day they arrived; what arrives early counts as zero days."""

    rows_by_days: Mapping[int, int]
    arrival_days: int = 0
    """Days on which any of them arrived."""

    @property
    def rows(self) -> int:
        """All that arrived."""
        return sum(self.rows_by_days.values())

    @property
    def most_days(self) -> int:
        """The latest of all; 0 where nothing arrived."""
        return max((days for days, rows in self.rows_by_days.items() if rows), default=0)

    def caught_within(self, days: int) -> float:
        """The share of rows that arrived at most so many days after their own."""
        caught = sum(rows for late, rows in self.rows_by_days.items() if late <= days)
        return caught / self.rows if self.rows else 1.0

    def missed_beyond(self, days: int) -> int:
        """Rows that arrived more than so many days after their own."""
        return sum(rows for late, rows in self.rows_by_days.items() if late > days)

    def window(self, share: float) -> int | None:
        """The fewest days within which at least this share arrived; None where nothing did."""
        caught = 0
        for days, rows in sorted(self.rows_by_days.items()):
            caught += rows
            if caught >= share * self.rows > 0:
                return days
        return None

    def without(self, beyond: int | None) -> Lateness:
        """Without the rows that arrived more than so many days after their own; all of them where there is no such bound."""
        if beyond is None:
            return self
        return Lateness({days: rows for days, rows in self.rows_by_days.items() if days <= beyond}, self.arrival_days)


def lateness(arrivals: Iterable[Arrival]) -> dict[str, Lateness]:
    """Project -> lateness of what arrived. Under `""` all projects together.

    Counted by arrival and not by event day: of recent event days the late rows are still to come, which would make them look
    punctual.
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
    """Which window is enough for one project."""

    days: int | None
    """None where too little is known."""
    reason: str


def advise(late: Lateness, tolerated: float) -> Advice:
    """The fewest days that miss no more than the tolerated share; none from too little data."""
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
    """Project -> advice, of each that enough is known of; where that is none, under `""` of all together, if it is enough."""
    known = {name: advice for name, one in late.items() if (advice := advise(one, tolerated)).days is not None}
    own = {name: advice for name, advice in known.items() if name}
    return dict(sorted((own or known).items()))


def narrowness(late: Lateness, window_days: int, tolerated: float) -> str | None:
    """Why a window is too narrow for what was seen; None where it is not, or where too little is known to say so."""
    advice = advise(late, tolerated)
    if advice.days is None or advice.days <= window_days:
        return None
    missed = late.missed_beyond(window_days)
    return (
        f"{percent(missed / late.rows)} of the rows of {late.arrival_days} arrival days came more than "
        f"{_days(window_days)} after their event day (tolerated: {percent(tolerated)}); {_days(advice.days)} would catch enough"
    )


def _days(count: int) -> str:
    return f"{count} day{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """`0.1 %`, `12 %`, `0.00034 %`."""
    return f"{100 * share:.3g} %"


@dataclass(frozen=True)
class OutOfReach:
    """Rows that no reprocessing window is for. They are loaded like any other, and counted."""

    before_calendar: int = 0
    """Of event days before the first partition: Dagster has none for them."""
    in_future: int = 0
    """Of event days after their arrival day, by a clock that was ahead."""
    beyond_max_lateness: int = 0
    """Later than `max_lateness_days`, where that is set."""

    @property
    def figures(self) -> dict[str, float]:
        """As figures of a day."""
        return {
            "rows_before_calendar": self.before_calendar,
            "rows_in_future": self.in_future,
            "rows_beyond_max_lateness": self.beyond_max_lateness,
        }


def out_of_reach(arrivals: Iterable[Arrival], settings: Settings) -> OutOfReach:
    """What of these arrivals no window is for; a row may count as more than one kind of it."""
    before = future = beyond = 0
    most = settings.max_lateness_days
    for _, arrived, day, rows in arrivals:
        before += rows if day < settings.calendar_start else 0
        future += rows if day > arrived else 0
        beyond += rows if most is not None and arrived - day > timedelta(days=most) else 0
    return OutOfReach(before, future, beyond)
