"""The inputs of a slice as comparable values, and the inputs of a refused change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple

from pipeline_assets.domain.slices import Digest


class InputDay(NamedTuple):
    """One day of an upstream table, of the same project as the slice that it is an input of."""

    table: str
    day: date


@dataclass(frozen=True)
class InputState:
    """The inputs that a slice was built from, or would be built from now."""

    upstream: Mapping[InputDay, Digest] = field(default_factory=dict)
    """Upstream day -> digest of its content, for days that hold rows."""
    cross_day: str | None = None
    """Digest of the rows on other days that share a key with this slice's rows, marked where content alone decides between them
    (`identity.with_tie`); None where they were not compared."""
    delivered: str | None = None
    """Version of the landing object that the slice was read from; None for slices built from tables."""

    @property
    def is_nothing(self) -> bool:
        """Whether there is no input at all."""
        return not self.upstream and self.cross_day is None and self.delivered is None

    def __str__(self) -> str:
        """Render the inputs; equal inputs give equal texts, in whatever order they were read."""
        days = [f"{name.table} {name.day.isoformat()} {digest}" for name, digest in sorted(self.upstream.items())]
        days += [f"rows on other days {self.cross_day}"] if self.cross_day is not None else []
        return ", ".join([*days, self.delivered] if self.delivered is not None else days)


@dataclass(frozen=True)
class Rejection:
    """A change that was not published: a load does not try it again until one of these values differs."""

    inputs: InputState
    judged_by: str | None = None
    """The code version and bounds that judged it; None in rows that lack them, so that the change is tried again."""
    waits_for: tuple[date, ...] = ()
    """Days of the same project that cannot be published and share events with it; empty where its own checks failed."""
