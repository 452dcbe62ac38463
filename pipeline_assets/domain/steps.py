"""A step of a load and its times.

Contains: the value.
Add here: another property of a step.
Does not contain: the list of steps (load/timeline.py), reporting them (load/observed.py).
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
        """Duration in seconds."""
        return (self.ended - self.began) / 1e9
