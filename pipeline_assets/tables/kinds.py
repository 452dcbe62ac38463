"""Kinds of tables: what a table's kind tells of its slices before any row is read.

Contains: what every kind must answer, and the kinds there are.
Add here: another kind; its builder goes beside the others in load/build/.
Does not contain: answers that need rows (load/build/builder.py) and any one table (its own module).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from calendar import monthrange
from collections.abc import Sequence
from datetime import date, timedelta

from pipeline_assets.domain.dimensions import MissingSnapshot
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source

_DIMENSIONS = "dimensions/"


class TableKind(ABC):
    """What load, diff, release and rollback ask of a table, in place of asking which table it is."""

    name: str
    """For messages."""
    delivered_by: tuple[Source, ...] = ()
    """Sources whose deliveries of its day a slice waits for; with none, it waits for its upstream slices of that day."""
    bounds_keys: bool = False
    """Whether the shares of keys that come, go and change are bounded as well, and not the table's measures alone."""
    has_row_per_event: bool = False
    """Whether an event is one row of it: elsewhere an event has a row for each time it was sent, or none of its own."""
    is_shared: bool = False
    """Whether its slices belong to all projects together: a dimension knows none."""
    chosen_by: tuple[str, ...] = ()
    """Settings that choose inputs of a slice: on record with it, and no part of its code, because its input state tells the
    choice."""

    @abstractmethod
    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Days of the upstream table's slices that a slice of `day` reads, ascending; others than `day` may be among them."""

    @abstractmethod
    def exchange_days(self, settings: Settings) -> int:
        """How many days apart two slices may lie that give rows to each other; 0 where a row never changes its day.

        The load publishes slices that exchange rows together or not at all, and a rollback restores them so.
        """

    def reads_landing(self, table: str, settings: Settings) -> bool:  # noqa: ARG002 - most never do
        """Whether a slice of the table of this key is read from one object in landing, and from no table."""
        return False

    def reads_history(self, table: str, settings: Settings) -> bool:  # noqa: ARG002
        """Whether one object tells of all its slices, so that each is a part of it."""
        return False

    def projects(self, projects: Sequence[str]) -> tuple[str, ...]:
        """The projects of its slices, where a load is asked for these."""
        return (ALL_PROJECTS,) if self.is_shared else tuple(projects)

    def slice_day(self, day: date) -> date:
        """The day that the slice is filed under which holds what is known of `day`."""
        return day

    def input_slices(self, upstream: str, key: Slice, settings: Settings) -> tuple[Slice, ...]:
        """Slices of the upstream table that a slice is built from, wherever that is certain without looking at them."""
        return tuple(Slice(day, key.project_id) for day in self.input_days(upstream, key.event_date, settings))


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
    has_row_per_event = True

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


class Snapshot(TableKind):
    """The items of a dimension on one day, read from the object that was delivered for it."""

    name = "snapshot"
    is_shared = True

    def reads_landing(self, table: str, settings: Settings) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:  # noqa: ARG002
        """None: it reads no table."""
        return ()

    def exchange_days(self, settings: Settings) -> int:  # noqa: ARG002
        """A snapshot says nothing of another day."""
        return 0


class Validity(TableKind):
    """From when until when items had a status, in one month; filed under its first day.

    By its snapshots, or by the history that is delivered where a setting says so.
    """

    name = "validity"
    is_shared = True

    def reads_landing(self, table: str, settings: Settings) -> bool:
        """Where its intervals are delivered."""
        return table in {f"{_DIMENSIONS}{name}_validity" for name in settings.delivered_intervals}

    def reads_history(self, table: str, settings: Settings) -> bool:
        """The same: each delivery is the whole history."""
        return self.reads_landing(table, settings)

    def slice_day(self, day: date) -> date:
        """The first day of its month."""
        return day.replace(day=1)

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """The days of the month: an interval ends with it, and the next one begins. None where a history is delivered."""
        if self.reads_history(f"{upstream.removesuffix('_snapshot')}_validity", settings):
            return ()
        return tuple(day + timedelta(days=number) for number in range(monthrange(day.year, day.month)[1]))

    def exchange_days(self, settings: Settings) -> int:  # noqa: ARG002
        """Each month is computed alone."""
        return 0


class AsOf(TableKind):
    """Figures of one day, computed from its refined events and from a dimension as it was on that day."""

    name = "as-of aggregate"
    chosen_by = ("missing_snapshot", "previous_snapshot_days")

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Of events its own day; of a dimension the days whose snapshot may stand for it, and the months of these."""
        if not is_dimension(upstream):
            return (day,)
        back = settings.previous_snapshot_days if settings.missing_snapshot is MissingSnapshot.PREVIOUS else 0
        days = [day - timedelta(days=number) for number in range(back, -1, -1)]
        return tuple(sorted({*days, *(VALIDITY.slice_day(one) for one in days)}))

    def input_slices(self, upstream: str, key: Slice, settings: Settings) -> tuple[Slice, ...]:
        """Of events alone: which snapshot stands for a day, the records tell (load/staleness/as_of.py)."""
        return () if is_dimension(upstream) else super().input_slices(upstream, key, settings)

    def exchange_days(self, settings: Settings) -> int:  # noqa: ARG002
        """Each day is counted alone."""
        return 0


def is_dimension(key: str) -> bool:
    """Whether a table belongs to a dimension, by its key."""
    return key.startswith(_DIMENSIONS)


DELIVERED, REFINED, AGGREGATE = Delivered(), Refined(), Aggregate()
SNAPSHOT, VALIDITY, AS_OF = Snapshot(), Validity(), AsOf()
