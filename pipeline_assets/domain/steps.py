"""A step of a load, and when it was done.

Contains: the value.
Add here: another thing to know of a step.
Does not contain: which steps there are (load/timeline.py), telling of them (load/observed.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step of a load; times in nanoseconds since 1970."""

    table: str
    name: str
    began: int
    ended: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.began) / 1e9
