"""A load's log has lines for uneven steps alone; the run's account has every step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_assets.domain import skew
from pipeline_assets.domain.skew import StepSkew
from pipeline_assets.load.runtime import SkewLog
from tests.support.cases import cases

EVEN, UNEVEN = (100.0, 100.0, 100.0), (100.0, 1000.0, 100.0)


@cases(
    ("forecast", "done", "told"),
    {
        "even": (EVEN, EVEN, []),
        "uneven": (UNEVEN, UNEVEN, ["compare: work of", "warning", "compare done"]),
        "found uneven": (EVEN, UNEVEN, ["largest to median 10.0, forecast 1.0"]),
    },
)
def test_only_uneven_steps_are_lines_and_every_step_is_on_the_run(
    forecast: tuple[float, ...], done: tuple[float, ...], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skew, "HOT_KEY_ROWS", 500)
    lines: list[str] = []
    announced: list[StepSkew] = []
    runtime: Any = SimpleNamespace(log=lines.append)
    log = SkewLog(announced.append)
    log.forecast(StepSkew("t", "compare", "rows", (), forecast), runtime)
    log.measured("t", "compare", [int(rows) for rows in done], runtime)
    assert [part for part, line in zip(told, lines, strict=True) if part not in line] == []
    assert len(announced) == len(log.steps) == 1
