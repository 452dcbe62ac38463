"""Delivered intervals of a dimension: each id's status from a first to a last day, as known on the delivery's day."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import IO

from pipeline_assets.domain.days import day_in
from pipeline_assets.formats.snapshot_lines import BadSnapshotError, SnapshotPart, records, subject_of, told

START, END = "active_start_date", "active_end_date"
REQUIRED = ("id", "status", START, END)
"""Required columns of a history; further columns are kept as `attributes`."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Interval:
    """The status of one id over consecutive days."""

    line: int
    id: str
    status: str
    active_start_date: date
    active_end_date: date
    """The last known day with this status, never after the day of the delivery."""
    attributes: str | None
    is_trimmed: bool = False


def folder_of_intervals(dimension: str) -> str:
    """The folder of a dimension's delivered intervals, below `dimensions/`."""
    return f"{dimension}_validity"


def read_intervals(stored: IO[bytes], part: SnapshotPart, max_line_bytes: int, as_of: date) -> Iterator[Interval]:
    """All intervals of a history up to the day `as_of`; raises BadSnapshotError for the first fault or overlap.

    Adjacent equal intervals are joined, open and later ends cut to `as_of`. Holds all of them. Arguments: see `records`.
    """
    by_id: dict[str, list[Interval]] = {}
    for line, fields in records(stored, part, REQUIRED, max_line_bytes):
        key, status, attributes, is_trimmed = subject_of(line, fields, REQUIRED)
        start, end = _day(line, START, fields[START]), _day(line, END, fields[END])
        if start is None:
            raise BadSnapshotError(line, f"{START} is empty")
        if start > as_of:
            raise BadSnapshotError(line, f"{START} {start} lies after {as_of}, the day that the delivery tells of")
        if end is not None and end < start:
            raise BadSnapshotError(line, f"{END} {end} lies before {START} {start}")
        last = as_of if end is None else min(end, as_of)
        by_id.setdefault(key, []).append(Interval(line, key, status, start, last, attributes, is_trimmed))
    if not by_id:
        raise BadSnapshotError(0, "holds no interval")
    for own in by_id.values():
        yield from _joined(sorted(own, key=lambda one: one.active_start_date))


def _joined(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Join adjacent intervals of one id, sorted by first day; raises BadSnapshotError if two overlap."""
    last: Interval | None = None
    for interval in intervals:
        if last is not None and interval.active_start_date <= last.active_end_date:
            first, second = sorted((last.line, interval.line))
            reason = f"the interval of the id {told(interval.id)} overlaps with the one on line {first}"
            raise BadSnapshotError(second, reason)
        is_next = last is not None and interval.active_start_date == last.active_end_date + timedelta(days=1)
        if last is not None and is_next and (interval.status, interval.attributes) == (last.status, last.attributes):
            is_trimmed = last.is_trimmed or interval.is_trimmed
            last = replace(last, active_end_date=interval.active_end_date, is_trimmed=is_trimmed)
            continue
        if last is not None:
            yield last
        last = interval
    if last is not None:
        yield last


def _day(line: int, name: str, value: object) -> date | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    day = day_in(value.strip()) if isinstance(value, str) and _DAY.fullmatch(value.strip()) else None
    if day is None:
        raise BadSnapshotError(line, f"{name} {told(str(value))} is no day such as 2026-02-02")
    return day
