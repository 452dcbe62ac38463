"""A point of the checklist, and what was found of it.

Contains: the values that rules give.
Add here: another thing to say of a point.
Does not contain: the rules (recorded.py, places.py), the order of points (examine.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline_assets.domain.errors import TidemarkError


class Light(StrEnum):
    """How a point stands."""

    GREEN = "green"
    """What was looked at shows that it holds."""
    YELLOW = "yellow"
    """Nothing shows that it is broken, and not enough that it holds."""
    RED = "red"
    """What was looked at shows that it does not hold."""


WORST_FIRST = (Light.RED, Light.YELLOW, Light.GREEN)


@dataclass(frozen=True)
class Point:
    """One question of the checklist, answered for this deployment."""

    name: str
    question: str
    light: Light
    found: str
    """What was looked at, with numbers."""
    fix: str | None = None
    """What to do; None where nothing is to be done."""

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "question": self.question,
            "light": self.light.value,
            "found": self.found,
            "fix": self.fix,
        }


@dataclass(frozen=True)
class Question:
    """A point of the checklist before it is answered."""

    name: str
    text: str

    def green(self, found: str) -> Point:
        """It holds."""
        return Point(self.name, self.text, Light.GREEN, found)

    def yellow(self, found: str, fix: str) -> Point:
        """Nobody can say that it holds."""
        return Point(self.name, self.text, Light.YELLOW, found, fix)

    def red(self, found: str, fix: str) -> Point:
        """It does not hold."""
        return Point(self.name, self.text, Light.RED, found, fix)

    def out_of_reach(self, error: TidemarkError) -> Point:
        """Its evidence cannot be read: what cannot be looked at cannot be trusted."""
        return self.red(f"cannot be looked at: {error.subject}: {error.reason}", error.hint)


def worst(lights: Iterable[Light]) -> Light:
    """The one that an operator has to know of first; green of none."""
    present = set(lights)
    return next((light for light in WORST_FIRST if light in present), Light.GREEN)
