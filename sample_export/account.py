"""What an export holds, counted while it is made: the truth that a pipeline's tables are compared with.

Lives here: the account and its sums. Put here: another number to compare with. Keep out: writing objects.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal


@dataclass
class ExportAccount:
    """Counts over everything exported; days are event days (UTC) unless named otherwise."""

    objects: int = 0
    lines: int = 0
    bad_lines: int = 0
    delivery_duplicates: int = 0
    send_duplicates: int = 0
    """Corrections included: a correction is sent again with another amount."""
    corrections: int = 0
    late_rows: int = 0
    """Events that arrived on a later day than they happened."""
    lost_events: int = 0
    events: Counter[tuple[str, date]] = field(default_factory=Counter)
    """(project, event day) -> events, each counted once."""
    revenue: dict[tuple[str, date, str], Decimal] = field(default_factory=dict)
    """(project, event day, currency) -> revenue of the rows that win."""

    def add_revenue(self, project: str, day: date, currency: str, amount: Decimal) -> None:
        """Count one event's amount."""
        key = (project, day, currency)
        self.revenue[key] = self.revenue.get(key, Decimal(0)) + amount

    def merge(self, other: ExportAccount) -> None:
        """Add the counts of a disjoint part."""
        for name in ("objects", "lines", "bad_lines", "delivery_duplicates", "send_duplicates", "corrections",
                     "late_rows", "lost_events"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.events.update(other.events)
        for (project, day, currency), amount in other.revenue.items():
            self.add_revenue(project, day, currency, amount)
