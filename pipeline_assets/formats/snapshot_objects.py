"""Names of the objects of a dimension."""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum

FOLDER = "dimensions"
_NAME = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(?P<rest>\.csv|\.jsonl|_complete)")


class SnapshotPart(StrEnum):
    """The kind of an object in a dimension's folder."""

    CSV = ".csv"
    JSONL = ".jsonl"
    MARKER = "_complete"


def folder_of(dimension: str) -> str:
    """The folder of a dimension's objects, such as `dimensions/item`."""
    return f"{FOLDER}/{dimension}"


def parse_name(dimension: str, key: str) -> tuple[date, SnapshotPart] | None:
    """The day and kind of an object by its full key; None for any other name."""
    match = _NAME.fullmatch(key.removeprefix(f"{folder_of(dimension)}/"))
    if match is None:
        return None
    try:
        return date.fromisoformat(match["day"]), SnapshotPart(match["rest"])
    except ValueError:
        return None
