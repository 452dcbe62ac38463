"""Bounds on batches and on changes of final slices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline_assets.domain.checks import BatchFigures, Check, Evaluation, KeyChange, explain_change, reconcile_batch
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
            "refined/events",
            before,
            after,
            None,
            was_final=was_final,
            accepted_reason=reason,
            cause="test",
            settings=SETTINGS,
        )

    assert evaluate(None).is_passed is passes
    assert evaluate("a person says so").is_passed


KEYS = KeyChange(
    kept=1000,
    added={"new delivery": 150},
    removed={"withdrawn": 4, "moved day": 3},
    changed={"code": 5, "new delivery": 190},
)


@pytest.mark.parametrize(
    ("changes", "bounds", "said"),
    [
        ({}, {}, None),
        ({"added": {"new delivery": 241}}, {}, "gains 20.0% of its 1202 keys: new delivery 241"),
        ({"removed": {"withdrawn": 12, "moved day": 3}}, {}, "loses 1.2% of its 1210 keys: withdrawn 12, moved day 3"),
        ({"changed": {"code": 300}}, {}, "changes 23.0% of its 1307 keys: code 300"),
        ({"changed": {"code": 300}}, {"refined/events:keys_changed": {"growth": 0.3}}, None),
        ({}, {"refined/events:keys_removed": {"growth": 0.0}}, "loses 0.6% of its 1202 keys"),
        ({}, {"aggregates/daily_revenue:keys_removed": {"growth": 0.0}}, None),
        ({"kept": 0, "removed": {}, "changed": {}}, {}, None),
    ],
)
def test_bounds_on_the_keys_of_a_final_slice(changes: dict[str, Any], bounds: dict[str, Any], said: str | None) -> None:
    settings = Settings(change_bounds=bounds)

    def evaluate(*, was_final: bool, reason: str | None = None) -> Evaluation:
        keys, rows = replace(KEYS, **changes), {"rows": 1202}
        return explain_change(
            "refined/events",
            rows,
            rows,
            keys,
            was_final=was_final,
            accepted_reason=reason,
            cause="test",
            settings=settings,
        )

    found = evaluate(was_final=True)
    assert found.is_passed is (said is None)
    assert (said or "") in str(found.reason)
    assert evaluate(was_final=False).is_passed
    assert evaluate(was_final=True, reason="a person says so").is_passed
    assert found.figures["keys_removed"] == sum(replace(KEYS, **changes).removed.values())


def test_bounds_of_one_measure() -> None:
    """Each side of a measure's own bound; what it does not name is as for all."""
    settings = Settings(change_bounds={"refined/events:rows": {"shrink": 0.5}})

    def passes(after: int) -> bool:
        return explain_change(
            "refined/events", {"rows": 1000}, {"rows": after}, None,
            was_final=True, accepted_reason=None, cause="test", settings=settings,
        ).is_passed  # fmt: skip

    assert [passes(after) for after in (499, 500, 1200, 1201)] == [False, True, True, False]


@pytest.mark.parametrize(
    "bounds",
    [
        {"rows": {"shrink": 0}},
        {"refined/events:rows": {"most": 1}},
        {"refined/events:rows": {"shrink": -1}},
        {"refined/events:rows": {}},
        {"refined/events:keys_removed": {"shrink": 0}},
    ],
)
def test_a_bound_that_says_nothing_is_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(change_bounds=bounds)


def test_evaluations_survive_the_ledger() -> None:
    evaluation = Evaluation(Check.UNIQUE_EVENT_KEY, False, "r", "c", {"n": 1})
    assert Evaluation.from_json(evaluation.to_json()) == evaluation
