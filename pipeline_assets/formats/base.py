"""The interface of an export format: names of objects, parsers of lines, and columns with their roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, QuarantineReason, UnrecognizedObject
from pipeline_assets.domain.slices import Source

EXTRA_COLUMN = "_extra"
"""JSON text of an object with keys without a column and values that no column reads, or null."""
EVENT_TIME = "event_time"
"""The time of the event (UTC), in every format; its date is the event day."""
_LAST = "\U0010ffff"
"""Sorts after every character that can continue a key."""


class ColumnType(StrEnum):
    """How a delivered JSON value is stored."""

    STRING = "string"
    LONG = "bigint"
    TIMESTAMP = "timestamp"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    JSON = "json"

    @property
    def spark_type(self) -> str:
        """The Spark SQL type of the stored column."""
        return "string" if self is ColumnType.JSON else self.value


class ExportColumn(NamedTuple):
    """A column that an exporter delivers; raw and refined hold it under this name."""

    name: str
    type: ColumnType
    description: str = "as delivered"


@dataclass(frozen=True)
class IdentityColumns:
    """The columns by which domain/identity.py identifies events; an empty or blank id counts as missing."""

    send_id: str
    """With `sender` the key of an event: rows with the same values are the same event, re-sent."""
    sender: tuple[str, ...]
    """Columns of the `send_id`'s assigner; null counts as a value."""
    row_id: str
    """The key of an event without a send_id; rows with the same value are re-deliveries of one row."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all identity columns."""
        return (*self.sender, self.send_id, self.row_id)


class KeyStem(NamedTuple):
    """The prefix of all keys of one form of name."""

    text: str
    is_dated: bool
    """Whether the date follows directly, so that keys are ordered by day."""

    @property
    def whole(self) -> tuple[str, str]:
        """Exclusive bounds of all keys with this stem."""
        return self.text, f"{self.text}{_LAST}"

    def outside(self, first_day: date, last_day: date) -> tuple[tuple[str, str], ...]:
        """Exclusive bounds of the keys before and after these arrival days; empty if keys are not ordered by day."""
        if not self.is_dated:
            return ()
        start, end = self.window(first_day, last_day)
        return (self.text, start), (end, self.whole[1])

    def window(self, first_day: date, last_day: date) -> tuple[str, str]:
        """Exclusive bounds of the keys of these arrival days (both days inclusive)."""
        if not self.is_dated:
            return self.whole
        return f"{self.text}{first_day.isoformat()}", f"{self.text}{last_day.isoformat()}{_LAST}"


class ObjectKeys(Protocol):
    """Reads and writes keys below the landing root; picklable."""

    def parse(
        self, source: Source, project_id: str, key: str, etag: str, size_bytes: int
    ) -> Delivery | Marker | UnrecognizedObject:
        """Classify an object in the project's folder of this source by its key alone; never raises."""

    def format_delivery(self, batch: BatchKey, hour: int, shard: int) -> str:
        """The key of an object with events of an hour (0 to 23, UTC)."""

    def format_marker(self, batch: BatchKey, hour: int) -> str:
        """The key of the marker that completes an hour (0 to 23, UTC)."""

    def stems(self, source: Source, project_id: str) -> tuple[KeyStem, ...]:
        """The key prefixes of deliveries and markers in the project's folder; sorted and distinct."""


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """An event: values in the order of the format's columns, and `_extra`; times are aware UTC datetimes."""

    values: list[Any]
    extra: str | None
    unreadable: tuple[str, ...] = ()
    """Columns with an unreadable value, which are null; `extra` keeps its JSON text under the column's name."""


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is quarantined."""

    reason: QuarantineReason
    detail: str
    column: str | None = None

    @property
    def counted_as(self) -> str:
        """The reason's name and `:column`, by which lines are counted."""
        return f"{self.reason.value}:{self.column}" if self.column else self.reason.value


class LineParser(Protocol):
    """Parses the lines of one object one by one."""

    def parse(self, line: bytes, length: int = 0) -> ParsedLine | RefusedLine:
        """One non-blank line, of `length` bytes if it was cut; never raises for bad input."""


class BlockParser(Protocol):
    """Parses many lines of one arrival day at once, with the results of the format's LineParser."""

    def parse(self, text: bytes, count: int) -> Mapping[str, pa.Array] | None:
        """Column -> values of `count` lines with their line breaks, and `event_date`; None if one must be parsed on its own."""


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """The declaration of one format; frozen and free of I/O."""

    columns: tuple[ExportColumn, ...]
    transport_columns: tuple[str, ...]
    """Columns about the transport of a row; a change in these alone is no change of the event."""
    many_valued_columns: tuple[str, ...]
    identity: IdentityColumns
    rank_columns: tuple[str, str]
    """Times that rank the rows of one event: the latest value of the first wins, the second breaks ties."""
    received_column: str
    """When the exporter received the row (UTC); lateness is measured up to this time."""
    keys: Callable[[str], ObjectKeys]
    """Setting `marker_pattern` -> keys; raises SettingsError for a pattern whose names cannot be parsed again."""
    line_parser: Callable[[str, date, int], LineParser]
    """(project id, arrival date (UTC) of an object's name, most bytes of a line) -> parser."""
    block_parser: Callable[[str, date, int], BlockParser]
    event_number: Callable[[bytes], int | None]
    """Unparsed line -> 64-bit number, the same in every delivery of its event; None without any id."""
    line_keys: Callable[[bytes], Set[str] | None]
    own_keys: frozenset[str]
    """A line with at least `least_own_keys` of these keys is this exporter's, readable or not."""
    least_own_keys: int = 2

    def __post_init__(self) -> None:
        """Raise ValueError if a role names a column that the format does not deliver."""
        roles = {EVENT_TIME, self.received_column, *self.identity.names, *self.rank_columns}
        unknown = (roles | {*self.transport_columns, *self.many_valued_columns}) - {*self.column_names}
        if unknown:
            msg = f"a format names columns that it does not deliver: {', '.join(sorted(unknown))}"
            raise ValueError(msg)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def spark_types(self) -> dict[str, str]:
        """Column -> Spark SQL type, in order."""
        return {column.name: column.type.spark_type for column in self.columns}
