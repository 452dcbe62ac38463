"""A sketch of lateness has its stated precision, adds up in any order, and has one text for equal rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta

import pytest
from ddsketch import DDSketch, LogarithmicMapping
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.lateness import (
    AT_ONCE,
    EARLY,
    GREATEST_SECONDS,
    RELATIVE_ERROR,
    Lateness,
    LatenessSketch,
    advise,
    lateness,
    merged,
    narrowness,
    out_of_reach,
)
from pipeline_assets.domain.settings import Settings
from tests.support.reference import bin_of

SHARES = (0.01, 0.5, 0.95, 0.99, 0.999)
YEAR = 400 * 86_400
SECONDS = st.lists(st.integers(-3_600, YEAR), min_size=1, max_size=200)


def a_sketch(seconds: Sequence[int]) -> LatenessSketch:
    return merged(LatenessSketch({bin_of(one): 1}, 0, one, one) for one in seconds)


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
    """The library's own sketch agrees, and the true value is within its error."""
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
    assert merged((a_sketch(one), a_sketch(other))).to_text() == text
    assert merged([a_sketch(other), LatenessSketch(), a_sketch(one)]).to_text() == text
    read = LatenessSketch.from_text(text)
    assert read is not None
    assert (read.to_text(), read.rows, read.early_rows) == (text, len(rows), sum(second < 0 for second in rows))


def test_a_sketch_of_nothing_tells_nothing_and_of_another_version_neither() -> None:
    assert LatenessSketch().percentile(0.5) is None
    assert LatenessSketch({EARLY: 3}, 0, -50, -7).percentile(1.0) == 0
    assert LatenessSketch.from_text('{"version": 2}') is None
    assert merged((LatenessSketch(unknown=2), LatenessSketch(unknown=1))) == LatenessSketch({}, 3)


DAY = date(2026, 3, 31)
SEEN = Lateness({0: 99_000, 1: 700, 2: 150, 3: 50, 5: 60, 40: 40}, arrival_days=30)


def test_the_fewest_days_that_miss_no_more_than_tolerated() -> None:
    assert [advise(SEEN, share).days for share in (0.01, 0.001, 0.0004, 0.0)] == [0, 3, 5, 40]
    advice = advise(SEEN, 0.001)
    assert advice.reason == "misses 100 of 100,000 rows of 30 arrival days (0.1 %); 2 would miss 0.15 %"


def test_too_little_data_recommends_nothing_and_says_how_much_there_is() -> None:
    few_days, few_rows = Lateness({0: 10**6}, 13), Lateness({0: 9_999}, 30)
    assert advise(few_days, 0.001).days is None
    assert advise(few_days, 0.001).reason == "13 arrival days are on record, 14 are the least that tell of a window"
    assert advise(few_rows, 0.001).reason == "9,999 rows are on record, 10,000 are the least that tell of 0.1 %"
    assert narrowness(few_days, 0, 0.001) is None
    assert advise(Lateness({}), 0.001).days is None
    # One arrival day or one row more is enough.
    assert (advise(Lateness({0: 10**6}, 14), 0.001).days, advise(Lateness({0: 10_000}, 30), 0.001).days) == (0, 0)


def test_a_window_that_misses_more_than_tolerated_is_too_narrow() -> None:
    assert narrowness(SEEN, 3, 0.001) is None
    told = narrowness(SEEN, 2, 0.001)
    assert told is not None
    assert told.startswith("0.15 % of the rows of 30 arrival days came more than 2 days after their event day")
    assert told.endswith("3 days would catch enough")


def test_days_of_arrival_are_counted_once_and_what_comes_early_is_punctual() -> None:
    arrivals = [
        ("1", DAY, DAY + timedelta(days=1), 5), ("1", DAY, DAY - timedelta(days=2), 3), ("2", DAY, DAY, 4),
        ("2", DAY - timedelta(days=1), DAY - timedelta(days=9), 0),
    ]  # fmt: skip
    found = lateness(arrivals)
    assert (found[""], found["1"]) == (Lateness({0: 9, 2: 3}, 1), Lateness({0: 5, 2: 3}, 1))
    assert (found[""].most_days, found[""].missed_beyond(1)) == (2, 3)


def test_rows_that_no_window_is_for_are_counted() -> None:
    settings = Settings(calendar_start=date(2026, 3, 1))
    arrivals = [
        ("1", DAY, DAY + timedelta(days=1), 2), ("1", DAY, DAY, 100), ("1", DAY, DAY - timedelta(days=20), 7),
        ("1", DAY, DAY - timedelta(days=21), 11), ("1", DAY, DAY - timedelta(days=31), 13),
    ]  # fmt: skip
    assert out_of_reach(arrivals, settings) == {"rows_before_calendar": 13, "rows_in_future": 2}
    assert out_of_reach(arrivals, Settings()) == {"rows_before_calendar": 0, "rows_in_future": 2}
