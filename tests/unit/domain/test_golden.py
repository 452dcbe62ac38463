"""A published figure beside its golden total: exact, within tolerance, or different with both numbers."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline_assets.domain import golden
from pipeline_assets.domain.notices import Notice, NoticeKind
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.golden import MEASURES

KEY = Slice(date(2026, 2, 2), "10001")
SETTINGS = Settings()
REVENUE = golden.GoldenMeasure("aggregates/daily_revenue", "revenue")


def _total(value: str) -> golden.GoldenTotal:
    return golden.GoldenTotal(golden.GoldenSource.LANDING, KEY, REVENUE, Decimal(value), "golden/2026-02-02.csv line 2")


def _compared(
    expected: str, published: str | None, relative: float = 0, absolute: float = 0
) -> golden.GoldenComparison:
    settings = Settings(golden_tolerance=relative, golden_absolute_tolerance=absolute)
    value = None if published is None else Decimal(published)
    return golden.compare(_total(expected), value, settings, is_loaded=published is not None)


@pytest.mark.parametrize(("expected", "published", "relative", "absolute", "is_good"), [
    ("100", "100.000000", 0, 0, True),
    ("0.3", "0.300001", 0, 0, False),
    # The binary number next to 0.1 would let 110.000001 pass, or refuse 110.
    ("100", "110", 0.1, 0, True),
    ("100", "110.000001", 0.1, 0, False),
    ("100", "90", 0.1, 0, True),
    ("-100", "-110", 0.1, 0, True),
    ("100", "101", 0, 1, True),
    ("100", "101.01", 0.001, 1, False),
    # Zero has no share: only an amount tolerates it.
    ("0", "1", 0.5, 0, False),
    ("0", "1", 0, 1, True),
    ("0", "0", 0, 0, True),
])  # fmt: skip
def test_the_larger_tolerance_counts_and_decimals_are_exact(
    expected: str, published: str, relative: float, absolute: float, is_good: bool
) -> None:
    assert _compared(expected, published, relative, absolute).is_good is is_good


def test_a_mismatch_names_both_numbers_and_their_difference() -> None:
    found = _compared("400", "363")
    assert str(found) == "revenue 363 published, 400 golden (-37, 9.25%)"
    assert (found.is_lacking, found.relative, found.difference) == (True, 0.0925, Decimal(-37))
    more = _compared("400", "401.50")
    assert "+1.5, 0.38%" in str(more)
    assert (more.is_lacking, _compared("0", "7").relative) == (False, 1.0)
    absent, said = _compared("400", None), "revenue not loaded, 400 golden"
    assert (absent.agreement, absent.is_lacking, str(absent)) == (golden.Agreement.NOT_LOADED, True, said)
    unmeasured = golden.compare(_total("1"), None, Settings(), is_loaded=True)
    assert unmeasured.agreement is golden.Agreement.NOT_MEASURED
    assert [unmeasured.is_good, unmeasured.is_lacking] == [False, False]


def test_the_check_counts_mismatches_and_keeps_the_largest_share_of_each_measure() -> None:
    found = golden.evaluation([_compared("400", "363"), _compared("100", "99"), _compared("5", "5")])
    assert not found.is_passed
    assert found.figures == {"mismatch_count": 2, "golden_totals": 3, "revenue_relative_difference": 0.0925}
    assert (found.reason or "").startswith("10001: revenue 363 published, 400 golden (-37, 9.25%)")
    good = golden.evaluation([_compared("5", "5")])
    assert (good.is_passed, good.reason, good.check.is_blocking) == (True, None, False)


@given(st.decimals(min_value=-(10**24), max_value=10**24, places=6))
def test_what_is_recorded_of_an_exact_total_gives_it_back(value: Decimal) -> None:
    recorded: dict[str, float] = {"revenue": float(value), **golden.rest_of("revenue", value)}
    assert golden.figure_of(recorded, "revenue") == value
    found = golden.compare(_total(f"{value:f}"), golden.figure_of(recorded, "revenue"), SETTINGS, is_loaded=True)
    assert found.is_good
    assert (golden.rest_of("revenue", value) == {}) or abs(value) > 10**8, "most totals need one number"
    assert golden.figure_of({"events": 3}, "revenue") is None


def test_the_last_digit_of_a_long_number_counts() -> None:
    assert not _compared("99999999999999999999999999999999.000001", "99999999999999999999999999999999.000002").is_good


@pytest.mark.parametrize("changes", [
    {"golden_tolerance": -0.1}, {"golden_tolerance": float("nan")}, {"golden_absolute_tolerance": -1},
    {"golden_url": "sqlite:////x.db"}, {"golden_query": "SELECT 1 WHERE :first_day <= :last_day"},
    {"golden_url": "sqlite:////x.db", "golden_query": "SELECT * FROM totals"},
    {"golden_url": "mysql://h/d", "golden_query": "SELECT :first_day, :last_day"},
])  # fmt: skip
def test_a_setting_that_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**changes)


DAY, TABLE = KEY.event_date, "refined/events"
LATE = datetime(2026, 2, 20, tzinfo=UTC)


def compared(
    agreement: golden.Agreement, published: int | None = 60, name: str = "rows", day: date = DAY
) -> golden.GoldenComparison:
    key, measure = Slice(day, "10001"), golden.GoldenMeasure(TABLE, name)
    total = golden.GoldenTotal(golden.GoldenSource.LANDING, key, measure, Decimal(61), f"golden/{day}.csv line 2")
    return golden.GoldenComparison(total, None if published is None else Decimal(published), agreement)


def results(*comparisons: golden.GoldenComparison, now: datetime = LATE) -> list[tuple[Slice, str | None]]:
    found = golden.mismatches_by_day(comparisons, Settings(), now)
    assert {table for table, _ in found} <= {TABLE}
    return [(key, mismatch) for (_, key), mismatch in found.items()]


def test_a_day_has_one_result_that_names_all_that_differs_and_who_says_so() -> None:
    differs, agrees = compared(golden.Agreement.DIFFERS), compared(golden.Agreement.AGREES, 61, "events")
    other = compared(golden.Agreement.AGREES, 61, day=DAY + timedelta(days=1))
    told = "rows 60 published, 61 golden (-1, 1.64%) by golden/2026-02-02.csv line 2"
    assert results(other, agrees, differs) == [(KEY, told), (other.total.key, None)]
    ((_, unmeasured),) = results(compared(golden.Agreement.NOT_MEASURED, None))
    assert (unmeasured or "").startswith("rows not measured, 61 golden")


def test_a_day_that_is_not_loaded_is_no_mismatch_before_its_deadline() -> None:
    awaited = compared(golden.Agreement.NOT_LOADED, None)
    assert results(awaited, now=datetime(2026, 2, 3, tzinfo=UTC)) == []
    assert [mismatch is not None for _, mismatch in results(awaited)] == [True]


def test_a_mismatch_is_told_once_and_so_is_its_end_and_the_same_one_later_is_another() -> None:
    place = (TABLE, KEY)
    assert golden.golden_notice(place, None, None, "t", None) is None

    def told(mismatch: str | None, before: Notice | None, at: str, run: str | None = None) -> Notice:
        found = golden.golden_notice(place, mismatch, before, at, run)
        assert found is not None
        return found

    first = told("rows 60", None, "t1", "run-1")
    assert (first.kind, first.reason, first.run_id) == (NoticeKind.GOLDEN_MISMATCH, "rows 60", "run-1")
    assert first.hint == "`tidemark reconcile --repair` proposes what closes it"
    assert first.text == "refined/events 2026-02-02/10001 differs from golden totals: rows 60"
    assert golden.golden_notice(place, "rows 60", first, "t2", "run-2") is None
    assert told("rows 59", first, "t2", "run-2").id != first.id
    end = told(None, first, "t3")
    assert (end.kind, end.refusal_id) == (NoticeKind.GOLDEN_AGREEMENT, first.id)
    assert end.text == "refined/events 2026-02-02/10001 differs from no golden total any more"
    assert told("rows 60", end, "t4").id not in (first.id, end.id)
    assert golden.golden_notice(place, None, end, "t4", None) is None
    assert [Notice.from_json(notice.to_json()) for notice in (first, end)] == [first, end]
    assert end.to_json()["mismatch"] == first.id


FILE_KEY = golden.golden_key(DAY)
NAMES = golden.GoldenNames(MEASURES | {golden.GoldenMeasure("aggregates/city_events", "events")}, ("10001", "10002"))
HEADER = "day,project,measure,value"


def _read(*lines: str | bytes, header: str = HEADER, end: bytes = b"\n", before: bytes = b"") -> golden.GoldenReading:
    body = [header.encode(), *(line if isinstance(line, bytes) else line.encode() for line in lines)]
    return golden.read_file(FILE_KEY, DAY, before + end.join(body) + end, NAMES)


def _values(found: golden.GoldenReading) -> dict[str, Decimal]:
    return {f"{one.key} {one.measure}": one.value for one in found.totals}


def test_good_lines_whatever_wrote_the_file() -> None:
    lines = (
        "2026-02-02,10001,rows,1234",
        '2026-02-02,"10001",aggregates/daily_revenue:revenue,"12345678901234567890.000001"',
        " 2026-02-02 , 10002 , active_users , +7 ",
        "",
        "2026-02-02,10002,revenue,-3.50",
    )
    expected = {
        "2026-02-02/10001 refined/events:rows": Decimal(1234),
        "2026-02-02/10001 aggregates/daily_revenue:revenue": Decimal("12345678901234567890.000001"),
        "2026-02-02/10002 aggregates/active_users:active_users": Decimal(7),
        "2026-02-02/10002 aggregates/daily_revenue:revenue": Decimal("-3.5"),
    }
    for found in (_read(*lines), _read(*lines, end=b"\r\n", before=b"\xef\xbb\xbf")):
        assert (_values(found), list(found.faults), found.days) == (expected, [], {DAY})
    assert _read(*lines).totals[0].origin == f"{FILE_KEY} line 2"
    turned = _read("rows,1,10001,2026-02-02", header="measure,value,project,day")
    assert _values(turned) == {"2026-02-02/10001 refined/events:rows": Decimal(1)}


@pytest.mark.parametrize(("line", "said"), [
    ("2026-02-02,10001,rows,1,2", "has not the four fields"),
    ('2026-02-02,10001,rows,"1', "has not the four fields"),
    ("20260202,10001,rows,1", "day '20260202' is none"),
    ("2026-02-03,10001,rows,1", "is of 2026-02-03, in a file of 2026-02-02. Move it to golden/2026-02-03.csv"),
    ("2026-02-02,10001,refined/events:revenue,1", "refined/events:revenue is no measure"),
    ("2026-02-02,10001,events,1", "events is a measure of several tables (aggregates/city_events:events, "),
    ("2026-02-02,10001,rows,NaN", "value 'NaN' is not a number"),
    ("2026-02-02,10001,rows,1e3", "value '1e3' is not a number"),
    ("2026-02-02,10001,rows,1_000", "value '1_000' is not a number"),
    ('2026-02-02,10001,rows,"1,5"', "value '1,5' is not a number"),
    ("2026-02-02,10001,rows,", "value '' is not a number"),
    ("2026-02-02,10001,rows," + "9" * 60, "is not a number"),
    ("2026-02-02,10001,refined/events:rows,2", f"again, after {FILE_KEY} line 2"),
])  # fmt: skip
def test_a_bad_line_is_named_and_those_beside_it_count(line: str | bytes, said: str) -> None:
    found = _read("2026-02-02,10001,rows,1", line, "2026-02-02,10002,rows,3")
    (fault,) = found.faults
    assert str(fault).startswith(f"{FILE_KEY} line 3: ")
    assert said in str(fault)
    expected = {f"2026-02-02/1000{number} refined/events:rows": Decimal(value) for number, value in ((1, 1), (2, 3))}
    assert (_values(found), found.days) == (expected, frozenset())


@pytest.mark.parametrize(("content", "said"), [
    (b"\xef\xbb\xbf\n\n", "is empty"),
    (b"day;project;measure;value\n2026-02-02;10001;rows;1\n", "is not the header (day;project;measure;value)"),
    (b"\x1f\x8b\x08\x00\x00", "is not the header"),
    (b"day,project,measure,value,note\n", "is not the header"),
])  # fmt: skip
def test_a_file_without_the_header_has_one_fault_and_retracts_nothing(content: bytes, said: str) -> None:
    found = golden.read_file(FILE_KEY, DAY, content, NAMES)
    (fault,) = found.faults
    assert said in fault.reason
    assert (found.totals, found.days) == ((), frozenset())


def test_a_header_alone_says_that_there_are_no_totals() -> None:
    found = _read()
    assert (found.totals, found.faults, found.days) == ((), (), {DAY})


def test_many_bad_lines_are_counted() -> None:
    found = _read(*["x"] * 500, "2026-02-02,10001,rows,1")
    assert len(found.faults) == 21
    assert "480 lines in all are wrong" in str(found.faults[-1])
    assert len(found.totals) == 1


def test_names_of_files() -> None:
    assert golden.golden_day("golden/2026-02-02.csv") == golden.golden_day("golden/2026-02-02.csv line 3") == DAY
    for key in ("golden/2026-02-30.csv", "golden/2026-02-02.csv.gz", "golden/a/2026-02-02.csv", "golden/totals.csv"):
        assert golden.golden_day(key) is None


@given(st.binary(max_size=300))
def test_no_bytes_break_it(content: bytes) -> None:
    golden.read_file(FILE_KEY, DAY, content, NAMES)
    golden.read_file(FILE_KEY, DAY, HEADER.encode() + b"\n" + content, NAMES)
