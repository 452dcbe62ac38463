"""A point of the checklist and its result."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import NamedTuple


class Light(StrEnum):
    """The result of a point, the most urgent first."""

    RED = "red"
    """The evidence shows that it does not hold."""
    YELLOW = "yellow"
    """The evidence shows neither that it holds nor that it does not."""
    GREEN = "green"
    """The evidence shows that it holds."""


class Answer(NamedTuple):
    """What a rule says of its evidence."""

    light: Light
    found: str
    """The evidence, with numbers."""
    fix: str | None = None
    """What to do; None where nothing needs to be done."""


class Point(NamedTuple):
    """One question of the checklist and, as in its `Answer`, what is so of this deployment."""

    name: str
    question: str
    light: Light
    found: str
    fix: str | None


green, yellow, red = (partial(Answer, light) for light in (Light.GREEN, Light.YELLOW, Light.RED))


def worst(lights: Iterable[Light]) -> Light:
    """The most urgent light; green for none."""
    return min(lights, key=list(Light).index, default=Light.GREEN)
