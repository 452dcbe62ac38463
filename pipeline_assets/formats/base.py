"""What the pipeline asks of an exporter: names of objects, parsers of lines, and columns with the roles they play.

Contains: the declaration that a format fills in, and the values that its parsers return.
Add here: a question that every format must answer.
Does not contain: any one format (amplitude/), which one is in use (registry.py), bytes to lines
(gzip_lines.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa

from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, UnrecognizedObject
from pipeline_assets.domain.quarantine_reasons import QuarantineReason
from pipeline_assets.domain.slices import Source

EXTRA_COLUMN = "_extra"
"""Our own column beside those of every format: JSON text of an object with the keys that no column takes, or null."""
EVENT_TIME = "event_time"
"""The column of every format that says when an event happened (UTC); its date is the event day."""
_LAST = "\U0010ffff"
"""Sorts behind every character a key continues with."""


class ColumnType(StrEnum):
    """How a delivered JSON value is stored."""

    STRING = "string"
    LONG = "bigint"
    TIMESTAMP = "timestamp"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    JSON = "json"
    """JSON text, byte for byte as delivered; stored as string."""

    @property
    def spark_type(self) -> str:
        """The Spark SQL type of the stored column."""
        return "string" if self is ColumnType.JSON else self.value


@dataclass(frozen=True)
class ExportColumn:
    """A column that an exporter delivers; raw and refined hold it under this name."""

    name: str
    type: ColumnType
    description: str = "as delivered"


@dataclass(frozen=True)
class IdentityColumns:
    """The columns that domain/identity.py tells events apart by; an id that nothing can be seen in names nothing."""

    send_id: str
    """Together with `sender` the key of an event: rows with the same values are the same event, sent again."""
    sender: tuple[str, ...]
    """Whose `send_id` it is; a null is a value of its own."""
    row_id: str
    """The key where there is no send_id. Rows with the same value are the same row, delivered again."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.sender, self.send_id, self.row_id)


@dataclass(frozen=True, order=True)
class KeyStem:
    """The text that all keys of one form of name begin with; behind it, key order is the order of days."""

    text: str
    is_dated: bool
    """False where the hour comes before the date: the order of keys then says nothing about days."""

    @property
    def whole(self) -> tuple[str, str]:
        """Bounds, both exclusive, of all keys with this stem."""
        return self.text, f"{self.text}{_LAST}"

    def outside(self, first_day: date, last_day: date) -> tuple[tuple[str, str], ...]:
        """Bounds, both exclusive, of the keys before and after these arrival days; none where keys are not in order of days."""
        if not self.is_dated:
            return ()
        start, end = self.window(first_day, last_day)
        return (self.text, start), (end, self.whole[1])

    def window(self, first_day: date, last_day: date) -> tuple[str, str]:
        """Bounds, both exclusive, of the keys of these arrival days, both inclusive."""
        if not self.is_dated:
            return self.whole
        return f"{self.text}{first_day.isoformat()}", f"{self.text}{last_day.isoformat()}{_LAST}"


class ObjectKeys(Protocol):
    """Reads and writes keys below the landing root; picklable."""

    def parse(
        self, source: Source, project_id: str, key: str, etag: str, size_bytes: int
    ) -> Delivery | Marker | UnrecognizedObject:
        """Say what an object below the source's folder of a project is, from its key alone; never raises."""

    def format_delivery(self, batch: BatchKey, hour: int, shard: int) -> str:
        """The key of an object with events of an hour (0 to 23, UTC)."""

    def format_marker(self, batch: BatchKey, hour: int) -> str:
        """The key of the marker that completes an hour (0 to 23, UTC)."""

    def stems(self, source: Source, project_id: str) -> tuple[KeyStem, ...]:
        """Where deliveries and markers lie in the key order of the project's folder; sorted, each once."""


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """An event: its values in the order of the format's columns, then `_extra`; times are aware UTC datetimes."""

    values: list[Any]
    extra: str | None
    replaced_surrogates: int = 0
    """Lone surrogates in string columns, each stored as U+FFFD; JSON text and `_extra` keep theirs escaped."""
    lenient_conversions: int = 0
    """Values delivered as another JSON type than their column's and read without loss."""


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is quarantined."""

    reason: QuarantineReason
    detail: str


class LineParser(Protocol):
    """Parses the lines of one object one by one."""

    def parse(self, line: bytes, length: int = 0) -> ParsedLine | RefusedLine:
        """Typed values of one non-blank line, or why it is refused; never raises for bad input.

        `length`: bytes of the line where not all of it is here.
        """


class BlockParser(Protocol):
    """Parses many lines of one arrival day at once; equal to its LineParser by test."""

    def parse(self, lines: Sequence[bytes]) -> Mapping[str, pa.Array] | None:
        """Column -> values of all lines, and `event_date`; None where any line must be looked at by itself."""

    def is_plain(self, lines: Sequence[bytes]) -> bool:
        """Whether each line has the form of an event; what is wrong with a plain one shows in its values."""


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """The declaration of one format; frozen and free of I/O."""

    columns: tuple[ExportColumn, ...]
    """In the order in which tables store them and hashes cover them."""
    transport_columns: tuple[str, ...]
    """Columns that say how a row travelled, and not what happened: a change of them alone is no change of the event."""
    many_valued_columns: tuple[str, ...]
    """Columns of which hardly two rows share a value."""
    identity: IdentityColumns
    rank_columns: tuple[str, str]
    """Times by which rows of one event are ranked: the latest of the first wins, the second decides where that ties."""
    received_column: str
    """When the exporter received the row (UTC): how late an event is, is measured from its event day to this."""
    keys: Callable[[str], ObjectKeys]
    """From the setting `marker_pattern`; raises SettingsError for a pattern that cannot be read back."""
    line_parser: Callable[[str, date, int], LineParser]
    """From project id and arrival date (UTC) in an object's name, and the most bytes of a line. Called once per object."""
    block_parser: Callable[[str, date, int], BlockParser]
    """From the same."""
    event_number: Callable[[bytes], int | None]
    """From a line, which is not parsed for it: 64 bits that are the same wherever its event is delivered; None without any id."""

    def __post_init__(self) -> None:
        """Refuse a role that no column plays; raises ValueError."""
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
