"""A bucket's folders are listed at once, with answers in order."""

from __future__ import annotations

import threading

import pytest

from pipeline_assets.domain.errors import LandingUnavailableError
from resources.landing.store import each_at_once

NAMES = [str(number) for number in range(40)]


def test_several_are_under_way_and_answers_come_in_the_order_of_the_names() -> None:
    """Scenario: the first sixteen wait for each other. Outcome: all are asked for, and none ahead of these."""
    together, asked = threading.Barrier(16, timeout=30), []

    def ask(name: str) -> str:
        asked.append(name)
        if int(name) < 16:
            together.wait()
        return f"of {name}"

    answers = each_at_once(ask, NAMES)
    assert next(answers) == ("0", "of 0")
    assert set(asked) == set(NAMES[:16])
    assert list(answers) == [(name, f"of {name}") for name in NAMES[1:]]


def test_what_one_of_them_raises_is_raised() -> None:
    def ask(name: str) -> str:
        if name == "3":
            raise LandingUnavailableError(name, "is away", "Try again")
        return name

    answers = each_at_once(ask, NAMES)
    assert [next(answers)[0] for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(LandingUnavailableError, match="is away"):
        next(answers)
