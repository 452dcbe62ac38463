"""What a table is: columns, layout, kind, upstream, checks and how it is built and measured.

Contains: the declaration every table module fills in.
Add here: a property all tables have.
Does not contain: any one table's content (its own module) and what its kind answers (kinds.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.checks import CheckRule
from pipeline_assets.domain.recorded_settings import on_record
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.kinds import AGGREGATE, AS_OF, TableKind

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class TableColumn:
    """One column of a table; its name and type are a contract with readers."""

    name: str
    type: str
    description: str = ""
    is_required: bool = False
    sources: tuple[str, ...] = ()
    """Columns of the upstream tables it is computed from, where these are not the ones of its own name."""


EVENT_DATE = TableColumn("event_date", "date", "UTC date of event_time; the partition", is_required=True)
PROJECT_ID = TableColumn("project_id", "string", "the vendor's project, from the object's name", is_required=True)


@dataclass(frozen=True)
class Measure:
    """A figure of a slice that changes of a final day are bounded by."""

    total: Callable[[], SparkColumn]
    """Aggregate expression over the table's rows of a slice; made when a session is there."""
    is_count: bool = True
    """Whether it counts rows or things. Small counts are not bounded; other measures always are."""


@dataclass(frozen=True)
class Table:
    """The declaration of one table; frozen and free of I/O."""

    key: str
    """`refined/events`: the asset key, and with a dot the table's name."""
    description: str
    columns: tuple[TableColumn, ...]
    write_order: tuple[str, ...]
    kind: TableKind
    """Answers what differs between tables: what a slice is built from, how, and what is published together."""
    version: str = "1"
    """Raised by hand when the build's meaning changes; slices built by another are outdated."""
    settings_read: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    checks: tuple[CheckRule, ...] = ()
    exact_bounds: tuple[str, ...] = ()
    """Columns whose file metrics keep exact bounds."""
    many_valued: tuple[str, ...] = ()
    """Columns of which hardly two rows share a value: writers of files try no dictionary for them."""
    day_column: str = "event_date"
    recovery: str = ""
    """One sentence: what a person does when a day of this table is red."""
    measures: Mapping[str, Measure] = field(default_factory=dict, hash=False)
    """Name -> figure that bounds changes of a final slice."""
    dimension: Dimension | None = None
    """The dimension that its events are joined with as it was on their day."""

    @property
    def identifier(self) -> str:
        """Name within the catalog, `refined.events`."""
        return self.key.replace("/", ".")

    @property
    def name(self) -> str:
        """The last key segment, unique among all tables."""
        return self.key.rsplit("/", 1)[1]

    @property
    def partition_columns(self) -> tuple[str, str]:
        """What a slice's rows have in common: its day and its project."""
        return (self.day_column, "project_id")

    @property
    def content_columns(self) -> tuple[str, ...]:
        """Columns the digest covers: everything but lineage, with the partition apart; `_extra` is content."""
        return tuple(
            column.name
            for column in self.columns
            if (not column.name.startswith("_") or column.name == "_extra")
            and column.name not in self.partition_columns
        )

    def reads_landing(self, settings: Settings) -> bool:
        """Whether a slice is read from one object in landing, and from no table."""
        return self.kind.reads_landing(self.key, settings)

    def reads_history(self, settings: Settings) -> bool:
        """Whether one object in landing tells of all its slices."""
        return self.kind.reads_history(self.key, settings)

    def recorded_settings(self, settings: Settings) -> dict[str, Any]:
        """Name -> value of the settings that decide about the build, as a publication records them; the same on every machine."""
        names = (*self.settings_read, *self.kind.chosen_by)
        return on_record(settings, [name for name in names if not settings.is_of_machine(name)])

    def code_version(self, settings: Settings) -> str:
        """The declared version and a hash of the settings the build reads; the same on every machine."""
        names = [name for name in sorted(self.settings_read) if not settings.is_of_machine(name)]
        values = {name: getattr(settings, name) for name in names}
        text = json.dumps(values, sort_keys=True, default=str)
        return f"{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, kw_only=True)
class AggregateTable(Table):
    """A per-day table computed from refined.events alone."""

    kind: TableKind = AGGREGATE
    key_columns: tuple[str, ...]
    """What names a row within a slice."""
    build: Callable[[DataFrame, Settings], DataFrame]
    """refined.events, or its narrow events (whole slices) -> this table's rows."""
    measures: Mapping[str, Measure]
    controls: Callable[[DataFrame, Settings], DataFrame]
    """The same -> event_date, project_id and one column per measure, computed another way than the build."""
    reads_narrow_events: bool = False
    """Whether build and controls read what all aggregates of a load share (transforms/narrow_events.py), not refined.events."""

    def __post_init__(self) -> None:
        """Rows that nothing names could not be compared; raises ValueError."""
        _require_key_columns(self.key, self.key_columns)


@dataclass(frozen=True)
class Dimension:
    """A table of the business that is delivered as it is on each day: its snapshots, and the intervals made of them."""

    name: str
    """Its folder in landing, `dimensions/{name}/`."""
    snapshot: Table
    validity: Table

    @property
    def tables(self) -> tuple[Table, Table]:
        """Both, in topological order."""
        return (self.snapshot, self.validity)

    def delivered_tables(self, settings: Settings) -> tuple[str, ...]:
        """The keys of those that are read from landing: any of them tells that the dimension is in use."""
        return tuple(table.key for table in self.tables if table.reads_landing(settings))

    def intervals_are_delivered(self, settings: Settings) -> bool:
        """Whether its intervals are, and not derived from its snapshots."""
        return self.validity.reads_landing(settings)


@dataclass(frozen=True, kw_only=True)
class AsOfTable(Table):
    """A per-day table computed from refined.events and from a dimension as it was on the day of the events."""

    kind: TableKind = AS_OF
    dimension: Dimension
    key_columns: tuple[str, ...]
    """What names a row within a slice."""
    narrow: Callable[[DataFrame, Settings], DataFrame]
    """refined.events (whole slices) -> what build and controls need of them; computed once."""
    build: Callable[[DataFrame, DataFrame, Settings], DataFrame]
    """Narrow events, and the items on their day (event_date date, id, status string) -> this table's rows.

    It is given the items twice, read from snapshots and from intervals: the rows must be the same.
    """
    controls: Callable[[DataFrame, DataFrame, Settings], DataFrame]
    """The same -> event_date, project_id and figures of the slice, shown with its checks."""

    def __post_init__(self) -> None:
        """Rows that nothing names could not be compared; raises ValueError."""
        _require_key_columns(self.key, self.key_columns)


def _require_key_columns(key: str, key_columns: tuple[str, ...]) -> None:
    if not key_columns:
        msg = f"{key} needs key_columns"
        raise ValueError(msg)
