"""The declaration of a table: its columns, layout, upstream, checks, build and measures, and its kind."""

# ruff: noqa: ARG002 - a kind answers each question from what it needs of the arguments

from __future__ import annotations

import hashlib
import json
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.checks import Check, CheckRule
from pipeline_assets.domain.records import on_record
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source, widen
from pipeline_assets.transforms.fold import Fold

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


_DIMENSIONS = "dimensions/"


class TableKind:
    """Answers the questions of load, diff, release and rollback, so that no code branches on a table's name."""

    name: str
    delivered_by: tuple[Source, ...] = ()
    """Sources whose deliveries of its day a slice awaits; without any, it awaits the upstream slices of that day."""
    bounds_keys: bool = False
    """Whether the shares of added, removed and changed keys are bounded too, beside the measures."""
    has_row_per_event: bool = False
    is_shared: bool = False
    """Whether a slice belongs to all projects together, as for dimensions."""
    chosen_by: tuple[str, ...] = ()
    """Settings that choose a slice's inputs; recorded with it, but no part of its code version."""

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Days of the upstream slices that a slice of `day` reads, ascending; none if it is not built from tables."""
        return ()

    def exchange_days(self, settings: Settings) -> int:
        """The most days between two slices that can exchange rows (0: none do); these are published and rolled back together."""
        return 0

    def projects(self, projects: Sequence[str]) -> tuple[str, ...]:
        """The projects that the table's slices are filed under when a load is asked for `projects`."""
        return (ALL_PROJECTS,) if self.is_shared else tuple(projects)

    def slice_day(self, day: date) -> date:
        """The partition day of the slice that holds the data of `day`."""
        return day

    def input_slices(self, upstream: str, key: Slice, settings: Settings) -> tuple[Slice, ...]:
        """The upstream slices that a slice is built from, as far as known without records."""
        return tuple(Slice(day, key.project_id) for day in self.input_days(upstream, key.event_date, settings))


class Delivered(TableKind):
    """Filled from deliveries as they arrive. It is never rebuilt, so it has no builder."""

    name = "delivered"


class Refined(TableKind):
    """One row per event of both raw tables; one row wins among those that share a key within the dedupe window."""

    name = "refined"
    delivered_by = tuple(Source)
    bounds_keys = True
    has_row_per_event = True

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Every day within the dedupe window: its rows compete with those of `day`."""
        return tuple(sorted(widen([day], settings.dedupe_window_days)))

    def exchange_days(self, settings: Settings) -> int:
        """The dedupe window: an event moves to the day of its winning row."""
        return settings.dedupe_window_days


class Aggregate(TableKind):
    """Figures of one day, computed from the refined events of that day alone."""

    name = "aggregate"

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """Only `day` itself."""
        return (day,)


class Snapshot(TableKind):
    """The items of a dimension on one day, read from the object delivered for that day."""

    name = "snapshot"
    is_shared = True


class Validity(TableKind):
    """The intervals during which items had a status, from snapshots or delivered; a slice a month, filed under its first day."""

    name = "validity"
    is_shared = True

    def slice_day(self, day: date) -> date:
        """The first day of the month of `day`."""
        return day.replace(day=1)

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        """All days of the month, because intervals end with it; none if a history is delivered."""
        if _is_history(f"{upstream.removesuffix('_snapshot')}_validity", settings):
            return ()
        return tuple(day + timedelta(days=number) for number in range(monthrange(day.year, day.month)[1]))


class AsOf(TableKind):
    """Figures of one day, computed from its refined events and a dimension as it was on that day."""

    name = "as-of aggregate"
    chosen_by = ("missing_snapshot", "previous_snapshot_days")

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


def _is_history(key: str, settings: Settings) -> bool:
    return key in {f"{_DIMENSIONS}{name}_validity" for name in settings.delivered_intervals}


def is_dimension(key: str) -> bool:
    """Whether the table with this key belongs to a dimension."""
    return key.startswith(_DIMENSIONS)


DELIVERED, REFINED, AGGREGATE = Delivered(), Refined(), Aggregate()
SNAPSHOT, VALIDITY, AS_OF = Snapshot(), Validity(), AsOf()


@dataclass(frozen=True)
class TableColumn:
    """One column of a table; its name and type are a contract with readers."""

    name: str
    type: str
    description: str = ""
    is_required: bool = False
    sources: tuple[str, ...] = ()
    """Upstream columns that it is computed from; empty for the column of the same name."""


EVENT_DATE = TableColumn("event_date", "date", "UTC date of event_time; the partition", is_required=True)
PROJECT_ID = TableColumn("project_id", "string", "the vendor's project, from the object's name", is_required=True)


@dataclass(frozen=True)
class Measure:
    """A figure of a slice; the change rule bounds its change on a final day."""

    total: Callable[[], SparkColumn]
    """Returns an aggregate expression over a slice's rows; needs a running Spark session."""
    is_count: bool = True
    """Whether it counts something: small counts are not bounded, other measures always are."""


@dataclass(frozen=True)
class Table:
    """The declaration of one table; frozen and free of I/O."""

    key: str
    """The asset key, such as `refined/events`; with a dot it is the table's name."""
    description: str
    columns: tuple[TableColumn, ...]
    write_order: tuple[str, ...]
    kind: TableKind
    version: str = "1"
    """Raised by hand when the meaning of the build changes; slices of another version are outdated."""
    settings_read: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    checks: tuple[CheckRule, ...] = ()
    many_valued: tuple[str, ...] = ()
    """Columns with almost no repeated values, which are written without a dictionary."""
    day_column: str = "event_date"
    recovery: str = ""
    measures: Mapping[str, Measure] = field(default_factory=dict, hash=False)
    dimension: Dimension | None = None

    @property
    def identifier(self) -> str:
        """Name within the catalog, such as `refined.events`."""
        return self.key.replace("/", ".")

    @property
    def name(self) -> str:
        """The last key segment, unique among all tables."""
        return self.key.rsplit("/", 1)[1]

    @property
    def partition_columns(self) -> tuple[str, str]:
        """The two columns that identify a slice: day and project."""
        return (self.day_column, "project_id")

    @property
    def content_columns(self) -> tuple[str, ...]:
        """Columns that the digest covers: all but lineage and partition columns; `_extra` counts as content."""
        return tuple(
            column.name
            for column in self.columns
            if (not column.name.startswith("_") or column.name == "_extra")
            and column.name not in self.partition_columns
        )

    def reads_landing(self, settings: Settings) -> bool:
        """Whether a slice is read from one object in landing: a snapshot, or delivered intervals."""
        return self.kind is SNAPSHOT or self.reads_history(settings)

    def reads_history(self, settings: Settings) -> bool:
        """Whether one object holds the data of all slices: of intervals that `delivered_intervals` names."""
        return _is_history(self.key, settings)

    def recorded_settings(self, settings: Settings) -> dict[str, Any]:
        """Name -> value of the settings that affect the build, for its publication record; the same on every machine."""
        names = (*self.settings_read, *self.kind.chosen_by)
        return on_record(settings, [name for name in names if not settings.is_of_machine(name)])

    def code_version(self, settings: Settings) -> str:
        """The declared version and a hash of the settings that the build reads; the same on every machine."""
        names = [name for name in sorted(self.settings_read) if not settings.is_of_machine(name)]
        values = {name: getattr(settings, name) for name in names}
        text = json.dumps(values, sort_keys=True, default=str)
        return f"{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, kw_only=True)
class AggregateTable(Table):
    """A daily table computed from refined.events alone."""

    kind: TableKind = AGGREGATE
    upstream: tuple[str, ...] = ("refined/events",)
    checks: tuple[CheckRule, ...] = (Check.RECONCILES_WITH_REFINED, Check.CHANGE_IS_EXPLAINED)
    recovery: str = "Recover refined/events for the day; this table follows."
    key_columns: tuple[str, ...]
    measures: Mapping[str, Measure]
    """With a fold, each is the sum of the column of its name."""
    fold: Fold | None = None
    """How tasks compute rows and controls from the files of refined.events; otherwise Spark computes both."""
    build: Callable[[DataFrame, Settings], DataFrame] | None = None
    controls: Callable[[DataFrame, Settings], DataFrame] | None = None
    """The same input -> event_date, project_id and one column per measure, computed in another way than by the build."""

    def __post_init__(self) -> None:
        """Raise ValueError for a key of another kind, without key columns, or without exactly one way to compute rows."""
        is_built = self.build is not None and self.controls is not None
        if not (self.key.startswith("aggregates/") and self.key_columns and is_built is (self.fold is None)):
            msg = f"{self.key} needs a key aggregates/…, key_columns, and build and controls or a fold"
            raise ValueError(msg)


@dataclass(frozen=True)
class Dimension:
    """A business table that is delivered as it is on each day: its snapshots and its validity intervals."""

    name: str
    snapshot: Table
    validity: Table

    @property
    def tables(self) -> tuple[Table, Table]:
        """Both tables, in topological order."""
        return (self.snapshot, self.validity)

    def intervals_are_delivered(self, settings: Settings) -> bool:
        """Whether intervals are delivered and not computed from snapshots."""
        return self.validity.reads_landing(settings)


@dataclass(frozen=True, kw_only=True)
class AsOfTable(Table):
    """A daily table computed from refined.events and from a dimension as it was on the day of the events."""

    kind: TableKind = AS_OF
    dimension: Dimension
    key_columns: tuple[str, ...]
    narrow: Callable[[DataFrame, Settings], DataFrame]
    """Whole slices of refined.events -> the narrow frame that build and controls read; computed once."""
    build: Callable[[DataFrame, DataFrame, Settings], DataFrame]
    """Narrow events and the day's items (event_date date, id, status string) -> rows, equal for both sources of items."""
    controls: Callable[[DataFrame, DataFrame, Settings], DataFrame]
