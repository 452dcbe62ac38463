"""How late rows arrive, in whole days, and the window that would catch them.

Contains: shares of rows by the days between event and arrival.
Add here: a finer measure, once the ledger holds one.
Does not contain: the windows themselves (domain/settings.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

SHARES = (0.99, 0.999)
"""Of all rows, how many a window shall catch."""
ARRIVAL_DAYS = 91
"""So many of the newest arrival days are looked at: what clients do changes with their versions."""


@dataclass(frozen=True)
class Lateness:
    """Rows by the days from their event day to the day they arrived; what arrives early counts as zero days."""

    rows_by_days: Mapping[int, int]

    @property
    def rows(self) -> int:
        """All that arrived."""
        return sum(self.rows_by_days.values())

    def caught_within(self, days: int) -> float:
        """The share of rows that arrived at most so many days after their own."""
        caught = sum(rows for late, rows in self.rows_by_days.items() if late <= days)
        return caught / self.rows if self.rows else 1.0

    def window(self, share: float) -> int | None:
        """The fewest days within which at least this share arrived; None where nothing did."""
        caught = 0
        for days, rows in sorted(self.rows_by_days.items()):
            caught += rows
            if caught >= share * self.rows > 0:
                return days
        return None


def lateness(arrivals: Iterable[tuple[str, date, date, int]]) -> dict[str, Lateness]:
    """Project -> lateness of what arrived: (project, arrival day, event day, rows). Under `""` all projects together.

    Counted by arrival and not by event day: of recent event days the late rows are still to come, which would make them look
    punctual.
    """
    counts: dict[str, Counter[int]] = {"": Counter()}
    for project, arrived, day, rows in arrivals:
        days = max(0, (arrived - day).days)
        for name in ("", project):
            counts.setdefault(name, Counter())[days] += rows
    return {name: Lateness(dict(count)) for name, count in counts.items()}
