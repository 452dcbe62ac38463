"""Snapshots of a dimension as objects: what one is called.

Contains: names `dimensions/{dimension}/{date}.csv|.jsonl`, markers `{date}_complete`.
Add here: another name of snapshots.
Does not contain: what is in one (snapshot_items.py, interval_objects.py), events (amplitude/), opening objects
(resources/landing/).
"""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum

FOLDER = "dimensions"
_NAME = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(?P<rest>\.csv|\.jsonl|_complete)")


class SnapshotPart(StrEnum):
    """What an object below a dimension's folder is."""

    CSV = ".csv"
    JSONL = ".jsonl"
    MARKER = "_complete"


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
