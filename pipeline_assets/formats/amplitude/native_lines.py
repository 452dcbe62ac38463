"""Hands the vendor's columns to the native scanner, which gives what `ColumnParser.decode` gives, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial

import pyarrow as pa

from pipeline_assets.formats.amplitude.columns import BAG_COLUMNS, DELIVERED_KEYS, VENDOR_COLUMNS
from pipeline_assets.formats.amplitude.lines import COLUMN_NAMES, FIRST_MOMENT, too_late
from pipeline_assets.formats.base import EVENT_TIME, ColumnType
from pipeline_assets.native.library import Kind, Rules, ScannedColumn, Scanner, library

_KINDS = {
    ColumnType.STRING: Kind.TEXT,
    ColumnType.LONG: Kind.LONG,
    ColumnType.TIMESTAMP: Kind.TIME,
    ColumnType.DOUBLE: Kind.DOUBLE,
    ColumnType.BOOLEAN: Kind.BOOLEAN,
    ColumnType.JSON: Kind.JSON,
}
PROJECTS = range(1 << 63)
"""Ids that a column can hold."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Scan = Callable[[bytes, int], dict[str, pa.Array] | None]
"""Lines, each with its line break, and their number -> columns; None where the parser in Python is to be asked."""


def native_scan(project_id: str, arrival_date: date, max_line_bytes: int) -> Scan | None:
    """A function that scans lines of one project and arrival day; None without a library, or for an id that no column holds."""
    scanner = _scanner()
    if scanner is None or int(project_id) not in PROJECTS:
        return None
    rules = Rules(
        most_bytes=max_line_bytes,
        time=scanner.place(EVENT_TIME),
        first=_microseconds(FIRST_MOMENT),
        end=_microseconds(too_late(arrival_date)),
        project=scanner.place("app"),
        value=int(project_id),
    )
    return partial(scanner.scan, rules=rules)


@cache
def _scanner() -> Scanner | None:
    found = library()
    return None if found is None else Scanner(found, columns())


def columns() -> tuple[ScannedColumn, ...]:
    """The vendor's columns, in the order of tables."""
    keys = {name: key for key, name in DELIVERED_KEYS.items()}
    return tuple(
        ScannedColumn(keys[name], name, Kind.BAG if name in BAG_COLUMNS else _KINDS[VENDOR_COLUMNS[name]])
        for name in COLUMN_NAMES
    )


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
