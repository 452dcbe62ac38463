"""Shares, work of tasks, warnings; division of a large object."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain import skew
from pipeline_assets.load.runtime import SkewLog
from tests.support.cases import cases

MEGABYTE = 1024**2


def test_the_heaviest_value_is_told_with_its_share() -> None:
    share = skew.share_of("project", [("a", 2.0), ("b", 3.0), ("a", 3.0)])
    assert (share.value, share.share, share.values, share.text) == ("a", 0.625, 2, "project a 62 % of 2")
    assert skew.share_of("object", []).share == skew.share_of("object", [("a", 0.0)]).share == 0.0


def test_a_name_is_data_and_has_a_bound() -> None:
    share = skew.share_of("object", [("a\x1b[2J" + "x" * 5_000, 1.0)])
    assert "\x1b" not in share.text
    assert len(share.value) <= 200


@pytest.mark.parametrize(
    ("tasks", "ratio"),
    [([], 1.0), ([0.0, 0.0], 1.0), ([5.0], 1.0), ([1.0, 2.0, 9.0], 4.5), ([8.0, 0.0, 0.0, 0.0], 4.0)],
)
def test_the_largest_task_is_compared_with_the_median_one(tasks: list[float], ratio: float) -> None:
    """Where half of the tasks have no work, with the mean: a ratio is always a number."""
    assert skew.ratio_of(tasks) == ratio


def test_a_step_is_warned_about_where_it_is_uneven_and_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = (skew.share_of("project", [("10001", 1.0)]), skew.share_of("object", [("x", 3.0), ("y", 1.0)]))
    step = skew.StepSkew("raw/regular_events", "read", "bytes", shares, (1, 1, 1, 9))
    assert (step.warning, step.is_uneven) == (None, False)
    monkeypatch.setattr(skew, "SPLIT_BYTES", 9)
    assert step.warning == "the largest task of read has 9.0 times the bytes of the median one; object x 75 % of 2"
    told = json.loads(json.dumps(step.as_json(), allow_nan=False))
    assert told["forecast"] == {"tasks": 4, "largest": 9, "total": 12, "ratio": 9.0}
    assert (told["measured"], told["keys"][1]["share"], told["warning"]) == (None, 0.75, step.warning)
    monkeypatch.setattr(skew, "MOST_TIMES", 9.0)
    assert step.warning is None


@pytest.mark.parametrize(("size", "total", "tasks", "parts"), [
    (60, 100, 6, 3),  # an hour that holds 60 %
    (100, 100, 6, 4),  # the only object
    (20, 100, 6, 1),  # less than an even task and a half
    (7, 7, 6, 1),  # small for itself
    (60, 100, 1, 1),  # nobody to share with
    (600, 1000, 600, skew.MOST_PARTS),  # each part decompresses all of it
    (9, 9, 600, 2),  # no part is tiny
])  # fmt: skip
def test_an_object_is_divided_where_it_is_large_for_itself_and_beside_the_others(
    size: int, total: int, tasks: int, parts: int
) -> None:
    assert skew.parts_of(size * MEGABYTE, total * MEGABYTE, tasks) == parts


@given(st.integers(1, 10**12), st.integers(0, 10**12), st.integers(1, 500))
def test_dividing_makes_the_largest_piece_smaller_and_never_many(size: int, others: int, tasks: int) -> None:
    parts = skew.parts_of(size, size + others, tasks)
    assert 1 <= parts <= skew.MOST_PARTS
    assert skew.part_weight(size, parts) <= size
    if parts > 1:
        assert size > skew.SPLIT_BYTES
        assert size / parts >= skew.SPLIT_BYTES / 2


@given(st.lists(st.floats(0.0, 1e9), max_size=60), st.integers(1, 9))
def test_every_weight_has_a_task_and_no_task_is_far_above_what_must_be(weights: list[float], tasks: int) -> None:
    found = skew.balanced(weights, tasks)
    assert len(found) == len(weights)
    done: Counter[int] = Counter()
    for weight, task in zip(weights, found, strict=True):
        assert 0 <= task < tasks
        done[task] += weight  # type: ignore[assignment]
    least = max([sum(weights) / tasks, *weights], default=0.0)
    assert max(done.values(), default=0.0) <= 2 * least + 1e-6


def test_a_hot_key_lies_on_one_task_whole() -> None:
    assert (sorted(skew.hashed_sizes({"hot": 600}, 400, 8)), skew.ratio_of(skew.hashed_sizes({}, 400, 8))) == (
        [50] * 7 + [650],
        1,
    )
    assert max(skew.hashed_sizes({"a": 300, "b": 300}, 400, 8)) == 350


EVEN, UNEVEN = (100.0, 100.0, 100.0), (100.0, 1000.0, 100.0)


@cases(
    ("forecast", "done", "told"),
    {
        "even": (EVEN, EVEN, []),
        "uneven": (UNEVEN, UNEVEN, ["warning", "compare done"]),
        "found uneven": (EVEN, UNEVEN, ["largest to median 10.0, forecast 1.0"]),
    },
)
def test_only_uneven_steps_are_lines_and_every_step_is_on_the_run(
    forecast: tuple[float, ...], done: tuple[float, ...], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skew, "HOT_KEY_ROWS", 500)
    lines: list[str] = []
    announced: list[skew.StepSkew] = []
    runtime: Any = SimpleNamespace(log=lines.append)
    log = SkewLog(announced.append)
    log.forecast(skew.StepSkew("t", "compare", "rows", (), forecast), runtime)
    log.measured("t", "compare", [int(rows) for rows in done], runtime)
    assert [part for part, line in zip(told, lines, strict=True) if part not in line] == []
    assert len(announced) == len(log.steps) == 1
