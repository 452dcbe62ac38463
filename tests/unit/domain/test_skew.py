"""Shares, sizes of tasks and what is worth a warning; how a large object is divided."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.skew import (
    MOST_PARTS,
    StepSkew,
    Unit,
    balanced,
    hashed_sizes,
    part_weight,
    parts_of,
    share_of,
    sizes_of,
)

MEGABYTE = 1024**2
SPLIT = 8 * MEGABYTE


def test_the_null_bucket_is_told_apart_and_is_never_the_heaviest_value() -> None:
    share = share_of("insert id", [("a", 2.0), (None, 6.0), ("b", 1.0), ("a", 1.0)])
    assert (share.heaviest, share.heaviest_share, share.null_share, share.values) == ("a", 0.3, 0.6, 2)
    assert share.text == "insert id a 30 % of 2, none 60 %"


@pytest.mark.parametrize("weights", [[], [("a", 0.0)], [(None, 0.0)]])
def test_no_work_has_no_share(weights: list[tuple[str | None, float]]) -> None:
    share = share_of("object", weights)
    assert (share.heaviest_share, share.null_share) == (0.0, 0.0)


def test_a_name_is_data_and_has_a_bound() -> None:
    share = share_of("object", [("a\x1b[2J" + "x" * 5_000, 1.0)])
    assert "\x1b" not in share.text
    assert len(share.heaviest) <= 200


@pytest.mark.parametrize(
    ("weights", "ratio"),
    [([], 1.0), ([0.0, 0.0], 1.0), ([5.0], 1.0), ([1.0, 2.0, 9.0], 4.5), ([8.0, 0.0, 0.0, 0.0], 4.0)],
)
def test_the_largest_task_is_compared_with_the_median_one(weights: list[float], ratio: float) -> None:
    """Where half of the tasks have nothing to do, with the mean: a ratio is always a number."""
    sizes = sizes_of(weights)
    assert sizes.ratio == ratio
    assert sizes.total == sum(weights)


def a_step(*weights: float) -> StepSkew:
    sizes = sizes_of(weights)
    keys = (share_of("project", [("10001", 1.0)]), share_of("object", [("x", 3.0), ("y", 1.0)]))
    return StepSkew("raw/regular_events", "read", Unit.BYTES, keys, sizes, sizes)


def test_a_step_is_warned_about_where_it_is_uneven_and_worth_it() -> None:
    uneven = a_step(1, 1, 1, 9)
    assert uneven.judged(8.9, worth=9).warning == (
        "the largest task of read has 9.0 times the bytes of the median one; object x 75 % of 2"
    )
    assert uneven.judged(9.0, worth=9).warning is None
    assert uneven.judged(8.9, worth=9.5).warning is None
    assert uneven.judged(8.9, worth=9).judged(20, worth=9).warning is None


def test_what_the_ledger_keeps_is_json_that_any_reader_takes() -> None:
    told = json.loads(json.dumps(a_step(8, 0, 0, 0).judged(2, 1).as_json(), allow_nan=False))
    assert told["forecast"] == {"tasks": 4, "largest": 8, "median": 0, "total": 8, "ratio": 4.0}
    assert told["measured"] is None
    assert told["keys"][1]["heaviest_share"] == 0.75
    assert told["warning"]


@pytest.mark.parametrize(
    ("size", "total", "tasks", "parts"),
    [
        (60, 100, 6, 3),  # an hour that holds 60 %
        (100, 100, 6, 4),  # the only object
        (20, 100, 6, 1),  # less than an even task and a half
        (7, 7, 6, 1),  # small for itself
        (60, 100, 1, 1),  # nobody to share with
        (600, 1000, 600, MOST_PARTS),  # each part decompresses all of it
        (9, 9, 600, 2),  # no part is tiny
    ],
)
def test_an_object_is_divided_where_it_is_large_for_itself_and_beside_the_others(
    size: int, total: int, tasks: int, parts: int
) -> None:
    assert parts_of(size * MEGABYTE, total * MEGABYTE, tasks, SPLIT) == parts


@given(st.integers(1, 10**12), st.integers(0, 10**12), st.integers(1, 500))
def test_dividing_makes_the_largest_piece_smaller_and_never_many(size: int, others: int, tasks: int) -> None:
    parts = parts_of(size, size + others, tasks, SPLIT)
    assert 1 <= parts <= MOST_PARTS
    assert part_weight(size, parts) <= size
    if parts > 1:
        assert size > SPLIT
        assert size / parts >= SPLIT / 2


@given(st.lists(st.floats(0.0, 1e9), max_size=60), st.integers(1, 9))
def test_every_weight_has_a_task_and_no_task_is_far_above_what_must_be(weights: list[float], tasks: int) -> None:
    found = balanced(weights, tasks)
    assert len(found) == len(weights)
    done: Counter[int] = Counter()
    for weight, task in zip(weights, found, strict=True):
        assert 0 <= task < tasks
        done[task] += weight  # type: ignore[assignment]
    least = max([sum(weights) / tasks, *weights], default=0.0)
    assert max(done.values(), default=0.0) <= 2 * least + 1e-6


def test_a_hot_key_lies_on_one_task_whole() -> None:
    sizes = hashed_sizes({"hot": 600}, 400, 8)
    assert (sizes.largest, sizes.median, sizes.ratio) == (650, 50, 13)
    assert hashed_sizes({}, 400, 8).ratio == 1
    assert hashed_sizes({"a": 300, "b": 300}, 400, 8).largest == 350
