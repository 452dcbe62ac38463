"""Snapshots of a dimension as objects: what one is called, and reading its rows.

Contains: names `dimensions/{dimension}/{date}.csv|.jsonl`, markers `{date}_complete`, and what a line says of an item.
Add here: another column that every snapshot has.
Does not contain: both formats (snapshot_lines.py), events (amplitude/), opening objects (resources/landing/), what is published
of them (load/).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
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

FOLDER = "dimensions"
REQUIRED = ("id", "name", "status")
"""What every snapshot tells of an item; further columns are kept as `attributes`."""
_NAME = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(?P<rest>\.csv|\.jsonl|_complete)")


@dataclass(frozen=True)
class SnapshotRow:
    """One item of a snapshot."""

    line: int
    """Where it begins, from 1."""
    id: str
    name: str | None
    status: str
    attributes: str | None
    """JSON text of the further columns, keys sorted; None where there are none."""


def folder_of(dimension: str) -> str:
    """`dimensions/item`: where the objects of a dimension lie."""
    return f"{FOLDER}/{dimension}"


def parse_name(dimension: str, key: str) -> tuple[date, SnapshotPart] | None:
    """The day and kind of an object by its full key; None for one that is no part of a snapshot."""
    match = _NAME.fullmatch(key.removeprefix(f"{folder_of(dimension)}/"))
    if match is None:
        return None
    try:
        return date.fromisoformat(match["day"]), SnapshotPart(match["rest"])
    except ValueError:
        return None


def read_snapshot(content: bytes, part: SnapshotPart) -> list[SnapshotRow]:
    """All items of a snapshot; raises BadSnapshotError for the first thing that makes it none.

    Keys are unique and not empty. All of it is in memory: the caller bounds the bytes.
    """
    rows = [_row(line, fields) for line, fields in records(content, part, REQUIRED)]
    if not rows:
        raise BadSnapshotError(0, "holds no item")
    lines: dict[str, int] = {}
    for row in rows:
        if row.id in lines:
            raise BadSnapshotError(row.line, f"the id {told(row.id)} is already on line {lines[row.id]}")
        lines[row.id] = row.line
    return rows


def _row(line: int, fields: dict[str, Any]) -> SnapshotRow:
    name = fields["name"]
    if name is not None and not isinstance(name, str):
        raise BadSnapshotError(line, "name is no text")
    status, attributes = status_in(line, fields), attributes_in(line, fields, REQUIRED)
    row = SnapshotRow(line, id_in(line, fields), name, status, attributes)
    require_storable(line, row.id, row.name, row.status, row.attributes)
    return row
