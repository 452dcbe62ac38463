"""A point of the checklist and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


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
    fix: str | None


@dataclass(frozen=True)
class Answer:
    """What a rule says of its evidence."""

    light: Light
    found: str
    """The evidence, with numbers."""
    fix: str | None = None
    """What to do; None where nothing needs to be done."""

    def point(self, name: str, question: str) -> Point:
        """The point of this name that it answers."""
        return Point(name, question, self.light, self.found, self.fix)


def green(found: str) -> Answer:
    """The point holds."""
    return Answer(Light.GREEN, found)


def yellow(found: str, fix: str) -> Answer:
    """It is unknown whether the point holds."""
    return Answer(Light.YELLOW, found, fix)


def red(found: str, fix: str) -> Answer:
    """The point does not hold."""
    return Answer(Light.RED, found, fix)


def worst(lights: Iterable[Light]) -> Light:
    """The most urgent light; green for none."""
    present = set(lights)
    return next((light for light in WORST_FIRST if light in present), Light.GREEN)
