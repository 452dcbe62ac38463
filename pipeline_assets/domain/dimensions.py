"""Dimensions: daily snapshots of a table of the business, as they are delivered and asked for.

Contains: what landing holds of a day's snapshot, and what to do where a day has none.
Add here: a value that describes snapshots.
Does not contain: names and lines of the objects (formats/snapshot_objects.py), the tables (tables/dimension.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MissingSnapshot(StrEnum):
    """What becomes of the events of a day whose snapshot did not come by its deadline; never today's items."""

    WAIT = "wait"
    """They wait for it."""
    PREVIOUS = "previous"
    """They are joined with the latest one before it, which the check of the day names."""
    REFUSE = "refuse"
    """Their day is refused, so that somebody looks after it."""


@dataclass(frozen=True, order=True)
class SnapshotDelivery:
    """One day's snapshot of a dimension in landing, as it is listed."""

    key: str
    """Full key below the landing root."""
    etag: str
    size_bytes: int
    is_marked: bool
    """Whether the exporter says that it is complete."""
    others: tuple[str, ...] = ()
    """Further objects that claim to be the same day's snapshot: nobody can tell which one is meant."""

    @property
    def version(self) -> str:
        """What an input state keeps of it: another text means other bytes, or a look at them."""
        return " ".join([self.key, self.etag, str(self.size_bytes), *self.others])
