"""What a load tells people of skew: lines for uneven steps alone, and every step to whoever keeps the run's account."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.skew import StepSkew, Unit, sizes_of
from pipeline_assets.load.runtime import SkewLog

EVEN, UNEVEN = [100.0, 100.0, 100.0], [100.0, 1000.0, 100.0]


@pytest.mark.parametrize(
    ("undivided", "forecast", "told"),
    [
        (EVEN, EVEN, []),
        (UNEVEN, EVEN, ["compare: work of", "compare done"]),
        (UNEVEN, UNEVEN, ["compare: work of", "warning", "compare done"]),
    ],
    ids=["even", "divided", "left uneven"],
)
def test_only_uneven_steps_are_lines_and_every_step_is_on_the_run(
    undivided: list[float], forecast: list[float], told: list[str]
) -> None:
    lines: list[str] = []
    announced: list[StepSkew] = []
    runtime: Any = SimpleNamespace(settings=Settings(hot_key_rows=500, skew_warning_ratio=4.0), log=lines.append)
    skew = SkewLog(announced.append)
    skew.forecast(StepSkew("t", "compare", Unit.ROWS, (), sizes_of(undivided), sizes_of(forecast)), runtime)
    skew.measured("t", "compare", [(int(rows), 1) for rows in forecast], runtime)
    assert [part for part, line in zip(told, lines, strict=True) if part not in line] == []
    assert len(announced) == len(skew.steps) == 1


def test_tasks_that_turn_out_uneven_are_told_of_although_nothing_foretold_them() -> None:
    lines: list[str] = []
    runtime: Any = SimpleNamespace(settings=Settings(hot_key_rows=500, skew_warning_ratio=4.0), log=lines.append)
    skew = SkewLog()
    skew.forecast(StepSkew("t", "read", Unit.ROWS, (), sizes_of(EVEN), sizes_of(EVEN)), runtime)
    skew.measured("t", "read", [(int(rows), 1) for rows in UNEVEN], runtime)
    assert len(lines) == 1
    assert "largest to median 10.0, forecast 1.0" in lines[0]
