"""Kinds of tables: what a table's kind tells of its slices before any row is read.

Contains: what every kind must answer, and the kinds there are.
Add here: another kind; its builder goes beside the others in load/build/.
Does not contain: answers that need rows (load/build/builder.py) and any one table (its own module).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import date, timedelta

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source


class TableKind(ABC):
    """What load, diff, release and rollback ask of a table, in place of asking which table it is."""

    name: str
    """For messages."""
    delivered_by: tuple[Source, ...] = ()
    """Sources whose deliveries of its day a slice waits for; with none, it waits for its upstream slices of that day."""
    bounds_keys: bool = False
    """Whether the shares of keys that come, go and change are bounded as well, and not the table's measures alone."""

    @abstractmethod
    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Days of the upstream table's slices that a slice of `day` reads, ascending; others than `day` may be among them."""

    @abstractmethod
    def exchange_days(self, settings: Settings) -> int:
        """How many days apart two slices may lie that give rows to each other; 0 where a row never changes its day.

        The load publishes slices that exchange rows together or not at all, and a rollback restores them so.
        """


class Delivered(TableKind):
    """Filled from deliveries as they come: nothing is built again, so there is no builder."""

    name = "delivered"

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:  # noqa: ARG002
        """None: it reads no table."""
        return ()

    def exchange_days(self, settings: Settings) -> int:  # noqa: ARG002
        """A line stays on the day of its event."""
        return 0


class Refined(TableKind):
    """One row per event of both raw tables; of rows that share a key within the dedupe window, one wins."""

    name = "refined"
    delivered_by = tuple(Source)
    bounds_keys = True

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:  # noqa: ARG002
        """Every day within the dedupe window: its rows compete with those of `day`."""
        window = settings.dedupe_window_days
        return tuple(day + timedelta(days=shift) for shift in range(-window, window + 1))

    def exchange_days(self, settings: Settings) -> int:
        """An event moves to the day of its winner."""
        return settings.dedupe_window_days


class Aggregate(TableKind):
    """Figures of one day, computed from the refined events of that day alone."""

    name = "aggregate"

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:  # noqa: ARG002
        """Its own day."""
        return (day,)

    def exchange_days(self, settings: Settings) -> int:  # noqa: ARG002
        """Each day is counted alone."""
        return 0


DELIVERED, REFINED, AGGREGATE = Delivered(), Refined(), Aggregate()
