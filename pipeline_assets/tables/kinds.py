"""Kinds of tables: what a table's kind says about its slices before any row is read."""

# ruff: noqa: ARG001, ARG002 - a kind answers each question from what it needs of the arguments

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
    """The questions that load, diff, release and rollback ask of any table, so that no code branches on its name."""

    name: str
    """The kind's name in messages."""
    delivered_by: tuple[Source, ...] = ()
    """Sources whose deliveries for its day a slice waits for; if empty, the slice waits for its upstream slices of that day."""
    bounds_keys: bool = False
    """Whether the shares of added, removed and changed keys are bounded too, beside the table's measures."""
    has_row_per_event: bool = False
    """Whether the table holds exactly one row per event; raw tables hold one per delivery, aggregates none."""
    is_shared: bool = False
    """Whether a slice belongs to all projects together; the slices of dimensions do."""
    chosen_by: tuple[str, ...] = ()
    """Settings that choose the inputs of a slice. They are recorded with the slice but are no part of its code version,
    because its input state already shows the choice."""

    @abstractmethod
    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Days of the upstream slices that a slice of `day` reads, ascending; none if it is not built from other tables."""

    @abstractmethod
    def exchange_days(self, settings: Settings) -> int:
        """The most days between two slices that can exchange rows; 0 if a row never changes its day.

        The load publishes slices that exchange rows together or not at all; a rollback restores them the same way.
        """

    def reads_landing(self, table: str, settings: Settings) -> bool:
        """Whether a slice of this table (a key) is read from one object in landing and not from a table."""
        return False

    def reads_history(self, table: str, settings: Settings) -> bool:
        """Whether one object holds the data of all slices of this table (a key), so that each slice is a part of it."""
        return False

    def projects(self, projects: Sequence[str]) -> tuple[str, ...]:
        """The projects that the table's slices are filed under when a load is asked for `projects`."""
        return (ALL_PROJECTS,) if self.is_shared else tuple(projects)

    def slice_day(self, day: date) -> date:
        """The partition day of the slice that holds the data of `day`."""
        return day

    def input_slices(self, upstream: str, key: Slice, settings: Settings) -> tuple[Slice, ...]:
        """The upstream slices that a slice is built from, as far as they are known without reading any records."""
        return tuple(Slice(day, key.project_id) for day in self.input_days(upstream, key.event_date, settings))


def _no_input(_kind: TableKind, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
    return ()


def _no_exchange(_kind: TableKind, settings: Settings) -> int:
    return 0


class Delivered(TableKind):
    """Filled from deliveries as they arrive. It is never rebuilt, so it has no builder."""

    name = "delivered"
    input_days, exchange_days = _no_input, _no_exchange


class Refined(TableKind):
    """One row per event of both raw tables; one row wins among those that share a key within the dedupe window."""

    name = "refined"
    delivered_by = tuple(Source)
    bounds_keys = True
    has_row_per_event = True

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Every day within the dedupe window: its rows compete with those of `day`."""
        window = settings.dedupe_window_days
        return tuple(day + timedelta(days=shift) for shift in range(-window, window + 1))

    def exchange_days(self, settings: Settings) -> int:
        """The dedupe window: an event moves to the day of its winning row."""
        return settings.dedupe_window_days


class Aggregate(TableKind):
    """Figures of one day, computed from the refined events of that day alone."""

    name = "aggregate"
    exchange_days = _no_exchange

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Only `day` itself."""
        return (day,)


class Snapshot(TableKind):
    """The items of a dimension on one day, read from the object delivered for that day."""

    name = "snapshot"
    is_shared = True
    input_days, exchange_days = _no_input, _no_exchange

    def reads_landing(self, table: str, settings: Settings) -> bool:
        """True: every snapshot is read from its object."""
        return True


class Validity(TableKind):
    """The intervals during which items had a status, one slice a month, filed under the month's first day.

    The intervals are computed from snapshots, or read from a delivered history if `delivered_intervals` says so.
    """

    name = "validity"
    is_shared = True
    exchange_days = _no_exchange

    def reads_landing(self, table: str, settings: Settings) -> bool:
        """Whether `delivered_intervals` names the dimension."""
        return table in {f"{_DIMENSIONS}{name}_validity" for name in settings.delivered_intervals}

    def reads_history(self, table: str, settings: Settings) -> bool:
        """The same as `reads_landing`: each delivery holds the whole history."""
        return self.reads_landing(table, settings)

    def slice_day(self, day: date) -> date:
        """The first day of the month of `day`."""
        return day.replace(day=1)

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """All days of the month, because intervals are cut where a month ends; none if a history is delivered."""
        if self.reads_history(f"{upstream.removesuffix('_snapshot')}_validity", settings):
            return ()
        return tuple(day + timedelta(days=number) for number in range(monthrange(day.year, day.month)[1]))


class AsOf(TableKind):
    """Figures of one day, computed from its refined events and a dimension as it was on that day."""

    name = "as-of aggregate"
    chosen_by = ("missing_snapshot", "previous_snapshot_days")
    exchange_days = _no_exchange

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """For events, `day`; for a dimension, the days whose snapshot may be used for it, and the months of those days."""
        if not is_dimension(upstream):
            return (day,)
        back = settings.previous_snapshot_days if settings.missing_snapshot is MissingSnapshot.PREVIOUS else 0
        days = [day - timedelta(days=number) for number in range(back, -1, -1)]
        return tuple(sorted({*days, *(VALIDITY.slice_day(one) for one in days)}))

    def input_slices(self, upstream: str, key: Slice, settings: Settings) -> tuple[Slice, ...]:
        """Slices of events only: the ledger decides which snapshot is used for a day (load/staleness/as_of.py)."""
        return () if is_dimension(upstream) else super().input_slices(upstream, key, settings)


def is_dimension(key: str) -> bool:
    """Whether the table with this key belongs to a dimension."""
    return key.startswith(_DIMENSIONS)


DELIVERED, REFINED, AGGREGATE = Delivered(), Refined(), Aggregate()
SNAPSHOT, VALIDITY, AS_OF = Snapshot(), Validity(), AsOf()
