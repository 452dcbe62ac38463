"""Pauses between tries double, and none follows the last."""

import time

import pytest

from pipeline_assets.domain.retry import tries


def test_pauses_double_and_none_follows_the_last_try(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert list(tries(4, 0.1)) == [False, False, False, True]
    assert pauses == pytest.approx([0.1, 0.2, 0.4])


def test_nothing_is_waited_for_after_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    next(tries(4, 0.1))
    assert pauses == []
