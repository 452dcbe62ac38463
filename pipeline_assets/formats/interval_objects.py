"""Intervals of a dimension as they are delivered: from when until when each id had which status, up to a day.

Contains: reading a history `dimensions/{dimension}_validity/{date}.csv|.jsonl`, and its one spelling.
Add here: another column that every history has.
Does not contain: names of objects (snapshot_objects.py), both formats (snapshot_lines.py), what is published of it (load/).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from pipeline_assets.formats.snapshot_lines import (
    BadSnapshotError,
    SnapshotPart,
    attributes_in,
    id_in,
    records,
    require_storable,
    status_in,
    told,
)

START, END = "active_start_date", "active_end_date"
REQUIRED = ("id", "status", START, END)
"""What every history tells of an interval; further columns are kept as `attributes`."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class IntervalRow:
    """One id and a status, over days without a gap."""

    line: int
    """Where it begins, from 1."""
    id: str
    status: str
    active_start_date: date
    active_end_date: date
    """The last day with this status that the delivery can tell of: never after its own day."""
    attributes: str | None
    """JSON text of the further columns, keys sorted; None where there are none."""


def folder_of_intervals(dimension: str) -> str:
    """The name that the folder of a dimension's delivered intervals has beside those of dimensions."""
    return f"{dimension}_validity"


def read_intervals(content: bytes, part: SnapshotPart, as_of: date) -> list[IntervalRow]:
    """All intervals of a history up to a day; raises BadSnapshotError for the first thing that makes it none.

    Intervals of one id do not overlap; those that follow on each other and say the same are one. An interval that is open, or
    that ends after the day, ends with it. All of it is in memory: the caller bounds the bytes.
    """
    rows = [_row(line, fields, as_of) for line, fields in records(content, part, REQUIRED)]
    if not rows:
        raise BadSnapshotError(0, "holds no interval")
    by_id: dict[str, list[IntervalRow]] = {}
    for row in rows:
        by_id.setdefault(row.id, []).append(row)
    return [one for own in by_id.values() for one in _joined(sorted(own, key=lambda row: row.active_start_date))]


def _joined(rows: Iterable[IntervalRow]) -> Iterator[IntervalRow]:
    """Of one id, by their first day."""
    last: IntervalRow | None = None
    for row in rows:
        if last is None:
            last = row
            continue
        if row.active_start_date <= last.active_end_date:
            first, second = sorted((last.line, row.line))
            raise BadSnapshotError(
                second, f"the interval of the id {told(row.id)} overlaps with the one on line {first}"
            )
        is_same = (row.status, row.attributes) == (last.status, last.attributes)
        if is_same and row.active_start_date == last.active_end_date + timedelta(days=1):
            last = replace(last, active_end_date=row.active_end_date)
            continue
        yield last
        last = row
    if last is not None:
        yield last


def _row(line: int, fields: Mapping[str, Any], as_of: date) -> IntervalRow:
    item, status, attributes = id_in(line, fields), status_in(line, fields), attributes_in(line, fields, REQUIRED)
    start = _day(line, START, fields[START])
    if start is None:
        raise BadSnapshotError(line, f"{START} is empty")
    if start > as_of:
        raise BadSnapshotError(line, f"{START} {start} lies after {as_of}, the day that the delivery tells of")
    end = _day(line, END, fields[END])
    if end is not None and end < start:
        raise BadSnapshotError(line, f"{END} {end} lies before {START} {start}")
    require_storable(line, item, status, attributes)
    return IntervalRow(line, item, status, start, as_of if end is None else min(end, as_of), attributes)


def _day(line: int, name: str, value: object) -> date | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        if isinstance(value, str) and _DAY.fullmatch(value.strip()):
            return date.fromisoformat(value.strip())
    except ValueError:
        pass
    raise BadSnapshotError(line, f"{name} {told(str(value))} is no day such as 2026-02-02")
