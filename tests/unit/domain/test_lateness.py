"""A sketch of lateness is as exact as it says, adds up in any order, and is kept as the same text for the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from ddsketch import DDSketch, LogarithmicMapping
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.lateness import (
    AT_ONCE,
    EARLY,
    GREATEST_SECONDS,
    RELATIVE_ERROR,
    LatenessSketch,
    bin_of,
    merged,
)

SHARES = (0.01, 0.5, 0.95, 0.99, 0.999)
YEAR = 400 * 86_400
SECONDS = st.lists(st.integers(-3_600, YEAR), min_size=1, max_size=200)


def a_sketch(seconds: Sequence[int]) -> LatenessSketch:
    """As raw's audit counts rows."""
    sketches = []
    for one in seconds:
        sketches.append(LatenessSketch({bin_of(one): 1}, 0, one, one))
    return merged(sketches)


def test_bins_are_those_of_the_library() -> None:
    mapping = LogarithmicMapping(RELATIVE_ERROR)
    edges = [edge + near for edge in GREATEST_SECONDS if edge < 10**12 for near in (0, 1)]
    powers = [(1 << power) + near for power in range(1, 39) for near in (-1, 0, 1)]
    for seconds in [*range(1, 100_000), *range(100_000, YEAR, 9_973), *edges, *powers]:
        assert bin_of(seconds) == mapping.key(float(seconds)), seconds
    assert (bin_of(-1), bin_of(-(1 << 62)), bin_of(0), bin_of(1)) == (EARLY, EARLY, AT_ONCE, 0)
    assert bin_of((1 << 63) - 1) == len(GREATEST_SECONDS)


@given(SECONDS)
def test_a_percentile_is_as_near_as_it_says(seconds: list[int]) -> None:
    """The library's own sketch of the same rows tells the same, and the true value is within the error of it."""
    sketch, library = a_sketch(seconds), DDSketch(RELATIVE_ERROR)
    for one in seconds:
        library.add(float(max(0, one)))
    ordered = sorted(max(0, one) for one in seconds)
    for share in SHARES:
        found, theirs = sketch.percentile(share), library.get_quantile_value(share)
        true = ordered[math.floor(share * (len(ordered) - 1))]
        assert found is not None
        assert theirs is not None
        assert found == pytest.approx(min(theirs, ordered[-1]))
        assert abs(found - true) <= RELATIVE_ERROR * true + 1e-6
    assert sketch.percentile(1.0) == ordered[-1]


@given(SECONDS, SECONDS, st.randoms())
def test_sketches_add_up_in_any_order_and_grouping(one: list[int], other: list[int], random: object) -> None:
    rows = [*one, *other]
    random.shuffle(rows)  # type: ignore[attr-defined]
    text = a_sketch(rows).to_text()
    assert (a_sketch(one) + a_sketch(other)).to_text() == text
    assert merged([a_sketch(other), LatenessSketch(), a_sketch(one)]).to_text() == text
    read = LatenessSketch.from_text(text)
    assert read is not None
    assert (read.to_text(), read.rows, read.early_rows) == (text, len(rows), sum(second < 0 for second in rows))


def test_a_sketch_of_nothing_tells_nothing_and_of_another_version_neither() -> None:
    assert LatenessSketch().percentile(0.5) is None
    assert LatenessSketch({EARLY: 3}, 0, -50, -7).percentile(1.0) == 0
    assert LatenessSketch.from_text('{"version": 2}') is None
    assert LatenessSketch(unknown=2) + LatenessSketch(unknown=1) == LatenessSketch({}, 3)
