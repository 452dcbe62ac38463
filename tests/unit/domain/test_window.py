"""Which window is enough follows from what was seen, and from too little nothing does."""

from __future__ import annotations

from datetime import date, timedelta

from pipeline_assets.domain.lateness import Lateness, advise, lateness, narrowness, out_of_reach
from pipeline_assets.domain.settings import Settings

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
    # One arrival day more, one row more: enough.
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
    assert found[""] == Lateness({0: 9, 2: 3}, 1)
    assert found["1"] == Lateness({0: 5, 2: 3}, 1)
    assert (found[""].most_days, found[""].missed_beyond(1)) == (2, 3)


def test_rows_that_no_window_is_for_are_counted() -> None:
    settings = Settings(calendar_start=date(2026, 3, 1))
    arrivals = [
        ("1", DAY, DAY + timedelta(days=1), 2), ("1", DAY, DAY, 100), ("1", DAY, DAY - timedelta(days=20), 7),
        ("1", DAY, DAY - timedelta(days=21), 11), ("1", DAY, DAY - timedelta(days=31), 13),
    ]  # fmt: skip
    assert out_of_reach(arrivals, settings) == {"rows_before_calendar": 13, "rows_in_future": 2}
    assert out_of_reach(arrivals, Settings()) == {"rows_before_calendar": 0, "rows_in_future": 2}
