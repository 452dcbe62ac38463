"""Bounds on batches and on changes of final slices."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_assets.domain.checks import BatchFigures, Check, Evaluation, explain_change, reconcile_batch
from pipeline_assets.domain.settings import Settings

SETTINGS = Settings()


def _figures(**changes: Any) -> BatchFigures:
    values: dict[str, Any] = {"objects": 2, "unreadable": (), "lines": 1000, "rows": 1000, "quarantined": 0, "blank": 0}
    return BatchFigures(**values | changes)


@pytest.mark.parametrize(
    ("changes", "missing", "said"),
    [
        ({"unreadable": ("k: not_gzip",)}, (), "k: not_gzip"),
        ({"lines": 1001}, (), "1001 lines but 1000 rows"),
        ({"rows": 989, "quarantined": 11}, (), "11 of 1000 lines are quarantined"),
        ({}, ("gone",), "deliveries missing from landing: 1, first gone"),
    ],
)
def test_a_bad_batch_is_refused_with_its_reason(changes: dict[str, Any], missing: tuple[str, ...], said: str) -> None:
    evaluation = reconcile_batch(_figures(**changes), SETTINGS, missing)
    assert not evaluation.is_passed
    assert said in str(evaluation.reason)
    assert evaluation.cure


@pytest.mark.parametrize(
    "changes", [{}, {"rows": 990, "quarantined": 10}, {"rows": 999, "blank": 1}, {"lines": 0, "rows": 0}]
)
def test_a_good_batch_passes(changes: dict[str, Any]) -> None:
    assert reconcile_batch(_figures(**changes), SETTINGS).is_passed


@pytest.mark.parametrize(
    ("before", "after", "was_final", "passes"),
    [
        ({"rows": 1000}, {"rows": 990}, True, True),
        ({"rows": 1000}, {"rows": 989}, True, False),
        ({"rows": 1000}, {"rows": 1200}, True, True),
        ({"rows": 1000}, {"rows": 1201}, True, False),
        ({"rows": 1000}, {"rows": 0}, False, True),
        ({"rows": 100}, {"rows": 0}, True, True),
        ({"rows": 101}, {"rows": 0}, True, False),
        ({}, {"rows": 5000}, True, True),
        ({"purchases": 500, "revenue": 100.0}, {"purchases": 500, "revenue": 10000.0}, True, False),
        ({"purchases": 5, "revenue": 5000.0}, {"purchases": 5, "revenue": 100.0}, True, True),
    ],
)
def test_bounds_of_a_change(before: dict[str, float], after: dict[str, float], was_final: bool, passes: bool) -> None:
    def evaluate(reason: str | None) -> Evaluation:
        return explain_change(
            before, after, was_final=was_final, accepted_reason=reason, cause="test", settings=SETTINGS
        )

    assert evaluate(None).is_passed is passes
    assert evaluate("a person says so").is_passed


def test_evaluations_survive_the_ledger() -> None:
    evaluation = Evaluation(Check.UNIQUE_EVENT_KEY, False, "r", "c", {"n": 1})
    assert Evaluation.from_json(evaluation.to_json()) == evaluation
