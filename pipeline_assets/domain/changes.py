"""Changes of final slices: key changes of one publication, and the baseline that limits their sum."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


class ChangeBound(BaseModel):
    """How far one measure of a table's final slices may change, as a share; a missing side uses the default bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shrink: float | None = Field(default=None, ge=0)
    growth: float | None = Field(default=None, ge=0)


KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED = "keys_added", "keys_removed", "keys_changed"
"""Measures of a slice's key changes, as shares of the keys it had before."""


def require_named_bounds(bounds: Mapping[str, ChangeBound]) -> None:
    """Raise ValueError for a name that is not `table:measure`, or a bound that sets no usable limit."""
    for name, bound in bounds.items():
        if not re.fullmatch(r"[a-z_]+/[a-z_]+:[a-z_]+", name):
            msg = f"{name!r} is not `table:measure`, such as refined/events:rows"
            raise ValueError(msg)
        is_of_keys = name.partition(":")[2] in (KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED)
        if bound == ChangeBound() or (is_of_keys and bound.shrink is not None):
            msg = f"{name!r} needs {'growth' if is_of_keys else 'shrink, growth or both'}, as a share"
            raise ValueError(msg)


@dataclass(frozen=True)
class KeyChange:
    """Kept, added, removed and changed keys of a slice, as cause -> number of keys."""

    kept: int = 0
    """Keys with the same content."""
    added: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    @property
    def before(self) -> int:
        """Number of keys that the slice had before."""
        return self.kept + sum(self.removed.values()) + sum(self.changed.values())

    @property
    def totals(self) -> dict[str, int]:
        """Measure -> number of keys, over all causes."""
        parts = ((KEYS_ADDED, self.added), (KEYS_REMOVED, self.removed), (KEYS_CHANGED, self.changed))
        return {name: sum(causes.values()) for name, causes in parts}

    @property
    def figures(self) -> dict[str, float]:
        """The totals, and one figure per cause such as `keys_removed_moved_day`."""
        parts = ((KEYS_ADDED, self.added), (KEYS_REMOVED, self.removed), (KEYS_CHANGED, self.changed))
        by_cause = {
            f"{name}_{cause.replace(' ', '_')}": count for name, causes in parts for cause, count in causes.items()
        }
        return {"keys_kept": self.kept, **self.totals, **by_cause}

    def causes(self, measure: str) -> str:
        """`withdrawn 12, moved day 3`."""
        parts = {KEYS_ADDED: self.added, KEYS_REMOVED: self.removed, KEYS_CHANGED: self.changed}[measure]
        return ", ".join(f"{cause} {count}" for cause, count in sorted(parts.items(), key=lambda part: -part[1]))


@dataclass(frozen=True)
class Baseline:
    """A slice when it became final or an operator last accepted a change, with its key changes since."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """Measure -> value; empty where the slice held nothing, so that filling it counts as no change."""
    keys: int = 0
    """Number of keys it had then; 0 = not compared since."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Key measure -> sum over all publications since."""
    content: str | None = None
    """Its digest then; a slice that returns to it has not changed, whatever it held in between."""
    since: str | None = None
    """When the run began that built what this holds: ISO text. None = when the slice became final."""

    def is_again(self, content: str) -> bool:
        """Whether this digest is the baseline's."""
        return self.content is not None and self.content == content

    def of(self, measures: Mapping[str, float]) -> Self:
        """The baseline with these measures only; a measure without a recorded value is not compared."""
        return replace(self, figures={name: self.figures[name] for name in measures if name in self.figures})

    def after(self, change: KeyChange | None) -> Self:
        """The baseline after one more publication, with its key changes added."""
        if change is None:
            return self
        totals = {name: self.totals.get(name, 0) + count for name, count in change.totals.items()}
        return replace(self, keys=self.keys or change.before, totals=totals)

    def completed(self, measures: Mapping[str, float]) -> Self:
        """The baseline with these values for measures that it lacks."""
        return replace(self, figures={**measures, **self.figures})

    def grown(self, brought: Mapping[str, float], after: Mapping[str, float], now: str | None) -> Self:
        """The baseline with what recoveries brought by `now`, of which `after` may hold less; it is of no content any more."""
        figures = {
            name: min(value + brought.get(name, 0), max(value, after.get(name, value)))
            for name, value in self.figures.items()
        }
        added = min(self.totals.get(KEYS_ADDED, 0), int(brought.get("rows", 0)))
        totals = {name: count - added if name == KEYS_ADDED else count for name, count in self.totals.items()}
        return replace(self, figures=figures, keys=self.keys + added, totals=totals, content=None, since=now)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, for the ledger."""
        return {**vars(self), "figures": dict(self.figures), "totals": dict(self.totals)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(row["figures"], row["keys"], row["totals"], row.get("content"), row.get("since"))
