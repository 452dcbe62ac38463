"""Hours of arrival as text and as ranges."""

from __future__ import annotations

import time
from datetime import date, timedelta

import pytest

from pipeline_assets.domain.days import Hour, HourRange, hour_ranges, requested_hours
from pipeline_assets.domain.errors import Backoff, UsageError, tries
from pipeline_assets.domain.settings import Settings

DAY = date(2026, 2, 2)
SETTINGS = Settings()


def test_a_day_stands_for_its_hours_and_an_hour_for_itself() -> None:
    whole = requested_hours("2026-02-02", "2026-02-03", SETTINGS)
    assert (str(whole.first), str(whole.last), len(whole)) == ("2026-02-02T00", "2026-02-03T23", 48)
    part = requested_hours("2026-02-02T22", "2026-02-03T01", SETTINGS)
    assert [str(hour) for hour in part] == ["2026-02-02T22", "2026-02-02T23", "2026-02-03T00", "2026-02-03T01"]
    assert str(requested_hours("2026-02-02T22", "2026-02-02T22", SETTINGS)) == "2026-02-02T22"


@pytest.mark.parametrize(("first", "last", "said"), [
    ("2026-02-02T24", "2026-02-03", "is neither a day nor an hour"),
    ("2026-02-02T5", "2026-02-03", "is neither a day nor an hour"),
    ("2026-02-02 05", "2026-02-03", "is neither a day nor an hour"),
    ("2026-02-02T05:00", "2026-02-03", "is neither a day nor an hour"),
    ("2026-02-30", "2026-03-03", "is neither a day nor an hour"),
    ("20260202", "2026-03-03", "is neither a day nor an hour"),
    ("2026-02-02T٠٥", "2026-02-03", "is neither a day nor an hour"),
    ("2026-02-02T06", "2026-02-02T05", "ends before it begins"),
    ("2026-02-03", "2026-02-02", "ends before it begins"),
    ("2025-02-03", "2026-02-02", "the calendar holds"),
])  # fmt: skip
def test_a_bad_range_is_refused(first: str, last: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        requested_hours(first, last, SETTINGS)


def test_halves_hold_every_hour_once_down_to_one() -> None:
    whole = HourRange(Hour(DAY, 0), Hour(DAY + timedelta(days=1), 4))
    parts = [whole]
    while any(len(part) > 1 for part in parts):
        parts = [half for part in parts for half in (part.halves() if len(part) > 1 else (part,))]
    assert [part.first for part in parts] == list(whole)


def test_ranges_have_no_gaps_and_end_with_their_day() -> None:
    hours = [Hour(DAY, hour) for hour in (3, 4, 5, 9, 22, 23)] + [Hour(DAY + timedelta(days=1), 0)]
    assert [str(found) for found in hour_ranges(reversed(hours), 24)] == [
        "2026-02-02T03 to 2026-02-02T05", "2026-02-02T09", "2026-02-02T22 to 2026-02-02T23", "2026-02-03T00",
    ]  # fmt: skip
    assert [len(found) for found in hour_ranges(hours[:3], 2)] == [2, 1]


def test_pauses_double_up_to_a_bound_and_vary_by_half() -> None:
    backoff = Backoff(9, first_seconds=1, longest_seconds=10)
    assert [backoff.pause_seconds(attempt, chance=lambda: 1.0) for attempt in range(1, 6)] == [1, 2, 4, 8, 10]
    assert [backoff.pause_seconds(attempt, chance=lambda: 0.0) for attempt in range(1, 6)] == [0.5, 1, 2, 4, 5]
    assert backoff.pause_seconds(5, 30.0, chance=lambda: 1.0) == 31


def test_pauses_double_and_none_follows_the_last_try_or_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    next(tries(4, 0.1))
    assert pauses == []

    assert (list(tries(4, 0.1)), pauses) == ([False, False, False, True], pytest.approx([0.1, 0.2, 0.4]))
