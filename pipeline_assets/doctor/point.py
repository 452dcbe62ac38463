"""A point of the checklist and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline_assets.domain.errors import TidemarkError


class Light(StrEnum):
    """The result of a point."""

    GREEN = "green"
    """The evidence shows that it holds."""
    YELLOW = "yellow"
    """The evidence shows neither that it holds nor that it does not."""
    RED = "red"
    """The evidence shows that it does not hold."""


WORST_FIRST = (Light.RED, Light.YELLOW, Light.GREEN)


@dataclass(frozen=True)
class Point:
    """One question of the checklist, answered for this deployment."""

    name: str
    question: str
    light: Light
    found: str
    """The evidence, with numbers."""
    fix: str | None = None
    """What to do; None where nothing needs to be done."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form for `--json`."""
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
        """The point holds."""
        return Point(self.name, self.text, Light.GREEN, found)

    def yellow(self, found: str, fix: str) -> Point:
        """It is unknown whether the point holds."""
        return Point(self.name, self.text, Light.YELLOW, found, fix)

    def red(self, found: str, fix: str) -> Point:
        """The point does not hold."""
        return Point(self.name, self.text, Light.RED, found, fix)

    def out_of_reach(self, error: TidemarkError) -> Point:
        """The evidence cannot be read, so the point cannot be trusted."""
        return self.red(f"cannot be looked at: {error.subject}: {error.reason}", error.hint)


def worst(lights: Iterable[Light]) -> Light:
    """The most urgent light; green for none."""
    present = set(lights)
    return next((light for light in WORST_FIRST if light in present), Light.GREEN)
