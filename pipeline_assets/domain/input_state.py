"""What a slice is built from, as values that compare: its inputs, and the inputs of a change that was refused.

Contains: the input state of a slice, and a rejection.
Add here: another part of what makes a slice stale.
Does not contain: how they are kept (resources/ledger/rows.py), how two of them compare
(load/staleness/inputs.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple

from pipeline_assets.domain.slices import Digest


class InputDay(NamedTuple):
    """One day of an upstream table; the project is that of the slice it is an input of."""

    table: str
    day: date


@dataclass(frozen=True)
class InputState:
    """What a slice was built from, or would be built from now."""

    upstream: Mapping[InputDay, Digest] = field(default_factory=dict)
    """The content of each upstream day that holds rows."""
    cross_day: str | None = None
    """Digest of the rows on other days that share a key with the slice's own rows, marked where content alone decides between
    them (`identity.TIED`); None where nobody compared them."""
    delivered: str | None = None
    """The version of the object in landing that a slice was read from; None for slices that are built from tables."""

    @property
    def is_nothing(self) -> bool:
        """Whether it names no input at all."""
        return not self.upstream and self.cross_day is None and self.delivered is None

    def __str__(self) -> str:
        """The same text for the same inputs, whatever the order they were read in."""
        days = [f"{name.table} {name.day.isoformat()} {digest}" for name, digest in sorted(self.upstream.items())]
        days += [f"rows on other days {self.cross_day}"] if self.cross_day is not None else []
        return ", ".join([*days, self.delivered] if self.delivered is not None else days)


@dataclass(frozen=True)
class Rejection:
    """A change of a slice that was not published: while nothing of this differs, a load does not try it again."""

    inputs: InputState
    judged_by: str | None = None
    """The code and the bounds that judged it; None in rows that do not tell, so that it is tried again."""
    waits_for: tuple[date, ...] = ()
    """Days of the same project that cannot be published, and that it shares events with; none where its own checks failed."""
