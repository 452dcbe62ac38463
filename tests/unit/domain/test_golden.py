"""A published figure beside its golden total: exact, within tolerance, or told apart with both numbers."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline_assets.domain.golden import (
    Agreement,
    GoldenComparison,
    GoldenMeasure,
    GoldenSource,
    GoldenTotal,
    compare,
    evaluation,
    figure_of,
    rest_of,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice

KEY = Slice(date(2026, 2, 2), "10001")
SETTINGS = Settings()
REVENUE = GoldenMeasure("aggregates/daily_revenue", "revenue")


def _total(value: str) -> GoldenTotal:
    return GoldenTotal(GoldenSource.LANDING, KEY, REVENUE, Decimal(value), "golden/2026-02-02.csv line 2")


def _compared(golden: str, published: str | None, relative: float = 0, absolute: float = 0) -> GoldenComparison:
    settings = Settings(golden_tolerance=relative, golden_absolute_tolerance=absolute)
    value = None if published is None else Decimal(published)
    return compare(_total(golden), value, settings, is_loaded=published is not None)


@pytest.mark.parametrize(
    ("golden", "published", "relative", "absolute", "is_good"),
    [
        ("100", "100.000000", 0, 0, True),
        ("0.3", "0.300001", 0, 0, False),
        # A tenth is a tenth: the binary number next to 0.1 would let 110.000001 pass, or refuse 110.
        ("100", "110", 0.1, 0, True),
        ("100", "110.000001", 0.1, 0, False),
        ("100", "90", 0.1, 0, True),
        ("-100", "-110", 0.1, 0, True),
        ("100", "101", 0, 1, True),
        ("100", "101.01", 0.001, 1, False),
        # Of nothing there is no share: only an amount tolerates it.
        ("0", "1", 0.5, 0, False),
        ("0", "1", 0, 1, True),
        ("0", "0", 0, 0, True),
    ],
)
def test_the_larger_tolerance_counts_and_decimals_are_exact(
    golden: str, published: str, relative: float, absolute: float, is_good: bool
) -> None:
    assert _compared(golden, published, relative, absolute).is_good is is_good


def test_a_mismatch_names_both_numbers_and_their_difference() -> None:
    found = _compared("400", "363")
    assert str(found) == "revenue 363 published, 400 golden (-37, 9.25%)"
    assert (found.is_lacking, found.relative, found.difference) == (True, 0.0925, Decimal(-37))
    more = _compared("400", "401.50")
    assert "+1.5, 0.38%" in str(more)
    assert not more.is_lacking
    assert _compared("0", "7").relative == 1.0
    absent = _compared("400", None)
    assert (absent.agreement, absent.is_lacking, str(absent)) == (
        Agreement.NOT_LOADED,
        True,
        "revenue not loaded, 400 golden",
    )
    unmeasured = compare(_total("1"), None, Settings(), is_loaded=True)
    assert (unmeasured.agreement, unmeasured.is_good, unmeasured.is_lacking) == (Agreement.NOT_MEASURED, False, False)


def test_the_check_counts_mismatches_and_keeps_the_largest_share_of_each_measure() -> None:
    found = evaluation([_compared("400", "363"), _compared("100", "99"), _compared("5", "5")])
    assert not found.is_passed
    assert found.figures == {"mismatch_count": 2, "golden_totals": 3, "revenue_relative_difference": 0.0925}
    assert (found.reason or "").startswith("10001: revenue 363 published, 400 golden (-37, 9.25%)")
    good = evaluation([_compared("5", "5")])
    assert (good.is_passed, good.reason, good.check.is_blocking) == (True, None, False)


@given(st.decimals(min_value=-(10**24), max_value=10**24, places=6))
def test_what_is_recorded_of_an_exact_total_gives_it_back(value: Decimal) -> None:
    recorded: dict[str, float] = {"revenue": float(value), **rest_of("revenue", value)}
    assert figure_of(recorded, "revenue") == value
    found = compare(_total(f"{value:f}"), figure_of(recorded, "revenue"), SETTINGS, is_loaded=True)
    assert found.is_good


def test_the_last_digit_of_a_long_number_counts() -> None:
    assert not _compared("99999999999999999999999999999999.000001", "99999999999999999999999999999999.000002").is_good


def test_most_totals_need_one_number() -> None:
    assert rest_of("revenue", Decimal("123456789.123456")) == {}
    assert rest_of("revenue", Decimal("1234567890123456.123456")) != {}
    assert figure_of({"events": 3}, "revenue") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"golden_tolerance": -0.1},
        {"golden_tolerance": float("nan")},
        {"golden_absolute_tolerance": -1},
        {"golden_url": "sqlite:////x.db"},
        {"golden_query": "SELECT 1 WHERE :first_day <= :last_day"},
        {"golden_url": "sqlite:////x.db", "golden_query": "SELECT * FROM totals"},
        {"golden_url": "mysql://h/d", "golden_query": "SELECT :first_day, :last_day"},
    ],
)
def test_a_setting_that_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**changes)
