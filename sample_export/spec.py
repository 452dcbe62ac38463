"""What a sample export is like: every knob of the generator.

Lives here: the specification and its defaults. Put here: a new behaviour's rate. Keep out: generating anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta


@dataclass(frozen=True, kw_only=True)
class ExportSpec:
    """A seeded export. Equal specs give equal bytes, and a day's bytes do not depend on the other days."""

    seed: int = 7
    projects: tuple[str, ...] = ("10001", "10002")
    first_day: date = date(2026, 1, 1)
    """First arrival day."""
    days: int = 14
    events_per_day: int = 400
    """Events that arrive on a day, per project, before duplicates."""
    shards: int = 2
    """Objects per hour."""
    hours: tuple[int, ...] = tuple(range(24))
    """Hours that have objects; every hour of a day has a marker."""
    late_share: float = 0.03
    """Events one to three days late."""
    tail_share: float = 0.003
    """Events up to 100 days late."""
    delivery_duplicate_share: float = 0.02
    send_duplicate_share: float = 0.015
    correction_share: float = 0.05
    """Of purchases: the amount is sent again, changed."""
    no_insert_id_share: float = 0.02
    no_device_id_share: float = 0.02
    bad_lines_per_day: int = 0
    lost_days: tuple[date, ...] = ()
    """Arrival days on which the regular export loses events."""
    lost_share: float = 0.1
    hot_days: tuple[date, ...] = ()
    hot_factor: int = 10
    has_unknown_keys: bool = False
    """A key that the contract does not know, on every row."""
    has_markers: bool = True
    compression_level: int = 6

    @property
    def arrival_days(self) -> tuple[date, ...]:
        """All arrival days, ascending."""
        return tuple(self.first_day + timedelta(days=shift) for shift in range(self.days))

    def events_on(self, day: date) -> int:
        """Events that arrive on a day, per project."""
        return self.events_per_day * (self.hot_factor if day in self.hot_days else 1)
