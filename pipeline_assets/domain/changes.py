"""What becomes of a final slice: its keys in one publication, and the baseline that all of them together are measured against.

Contains: the change of keys, the baseline and how it moves on.
Add here: another figure that changes are measured by.
Does not contain: the bounds (checks.py), comparing tables (transforms/key_changes.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pipeline_assets.domain.change_bounds import KEYS_ADDED, KEYS_CHANGED, KEYS_REMOVED


@dataclass(frozen=True)
class KeyChange:
    """What becomes of the keys of a slice: cause -> keys."""

    kept: int = 0
    """With the same content."""
    added: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    @property
    def before(self) -> int:
        """Keys that the slice had."""
        return self.kept + sum(self.removed.values()) + sum(self.changed.values())

    @property
    def totals(self) -> dict[str, int]:
        """Measure -> keys."""
        parts = ((KEYS_ADDED, self.added), (KEYS_REMOVED, self.removed), (KEYS_CHANGED, self.changed))
        return {name: sum(causes.values()) for name, causes in parts}

    @property
    def figures(self) -> dict[str, float]:
        """Totals, and each by cause: `keys_removed_moved_day`."""
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
    """What a slice was when it became final, or when an operator last decided about it, and what became of its keys since."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """Measure -> value; empty where the slice held nothing, so that filling it is no change."""
    keys: int = 0
    """Keys it had then; 0 = never compared since."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Measure of keys -> the sum over all publications since."""
    content: str | None = None
    """Its digest then; what comes back to it has not changed, whatever it was meanwhile."""

    def is_again(self, content: str) -> bool:
        """Whether a slice of this digest is what it was."""
        return self.content is not None and self.content == content

    def of(self, measures: Mapping[str, float]) -> Self:
        """Of these measures alone; one that is not on record has nothing to be compared with."""
        return replace(self, figures={name: self.figures[name] for name in measures if name in self.figures})

    def after(self, change: KeyChange | None) -> Self:
        """With the keys of one more publication added up."""
        if change is None:
            return self
        totals = {name: self.totals.get(name, 0) + count for name, count in change.totals.items()}
        return replace(self, keys=self.keys or change.before, totals=totals)

    def completed(self, measures: Mapping[str, float]) -> Self:
        """With these measures as they are now, where none is on record."""
        return replace(self, figures={**measures, **self.figures})

    def to_json(self) -> dict[str, Any]:
        """For the ledger."""
        return {
            "figures": dict(self.figures),
            "keys": self.keys,
            "totals": dict(self.totals),
            "content": self.content,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """From the ledger."""
        return cls(row["figures"], row["keys"], row["totals"], row.get("content"))
