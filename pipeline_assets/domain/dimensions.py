"""Dimensions: daily snapshots of a business table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MissingSnapshot(StrEnum):
    """What happens to a day's events if its snapshot misses the deadline; none joins them with today's items."""

    WAIT = "wait"
    """They wait for the snapshot."""
    PREVIOUS = "previous"
    """They are joined with the latest earlier snapshot, and the day's check names it."""
    REFUSE = "refuse"
    """Their day is refused, so that an operator looks into it."""


@dataclass(frozen=True, order=True)
class SnapshotDelivery:
    """One day's snapshot of a dimension, as listed in landing."""

    key: str
    """Full key below the landing root."""
    etag: str
    size_bytes: int
    is_marked: bool
    """Whether the exporter marked it as complete."""
    others: tuple[str, ...] = ()
    """Other objects that claim to be the same day's snapshot; it is unknown which one is meant."""

    @property
    def version(self) -> str:
        """The text that an input state keeps: if it changes, the snapshot is read again."""
        return " ".join([self.key, self.etag, str(self.size_bytes), *self.others])
