"""What a sample export is like: every knob of the generator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta


@dataclass(frozen=True, kw_only=True)
class ExportSpec:
    """A seeded export. Equal specs give equal bytes, and a day's bytes do not depend on which other days are asked for.

    So the range is a window on an endless export: its first day also holds what repeats the day before, and what repeats
    its last day on the next is left out.
    """

    seed: int = 7
    projects: tuple[str, ...] = ("10001", "10002")
    first_day: date = date(2026, 1, 1)
    """First arrival day."""
    later_days: int = 0
    """So many days after an export with the same numbers: it is that one, with every date moved."""
    days: int = 14
    events_per_day: int = 400
    """Events that arrive on a day, per project, before duplicates."""
    people: int = 5000
    """Per project; the busiest one causes about 3 % of the events, the busiest hundredth about a sixth."""
    shards: int = 2
    """Objects per hour."""
    hours: tuple[int, ...] = tuple(range(24))
    """Hours that have objects; every hour of a day has a marker."""
    late_share: float = 0.03
    """Events one to three days late."""
    tail_share: float = 0.003
    """Events up to 100 days late."""
    delivery_duplicate_share: float = 0.02
    """Of events: one of its rows is exported a second time, unchanged."""
    send_duplicate_share: float = 0.015
    """Of events: sent again later, with another uuid."""
    correction_share: float = 0.05
    """Of purchases: the amount is sent again, changed."""
    later_hour_share: float = 0.3
    """Of repeated deliveries and sends: hours later on the same arrival day; the rest is repeated within the hour."""
    next_day_share: float = 0.1
    """Of repeated deliveries and sends: on the next arrival day."""
    moved_share: float = 0.15
    """Of repeated sends: a corrected clock puts `event_time` on a neighbouring event day."""
    no_insert_id_share: float = 0.02
    no_device_id_share: float = 0.02
    bad_lines_per_day: int = 0
    """Per project and arrival day, in each export; so are the blank ones."""
    blank_lines_per_day: int = 0
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


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A manual export of some arrival days to the backfill prefix: all that arrived then, what was lost included."""

    first_day: date
    last_day: date
    corrected_share: float = 0.0
    """Of purchases: the recovered row carries another amount and a later processed_time."""

    def arrival_days(self, spec: ExportSpec) -> tuple[date, ...]:
        """The days of an export that are recovered, ascending."""
        return tuple(day for day in spec.arrival_days if self.first_day <= day <= self.last_day)
