"""A file of golden totals: good lines count, every other line is named with its reason."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.golden import GoldenMeasure, GoldenNames, GoldenReading, golden_day, golden_key, read_file
from pipeline_assets.load.golden import MEASURES

DAY = date(2026, 2, 2)
KEY = golden_key(DAY)
NAMES = GoldenNames(MEASURES | {GoldenMeasure("aggregates/city_events", "events")}, ("10001", "10002"))
HEADER = "day,project,measure,value"


def _read(*lines: str | bytes, header: str = HEADER, end: bytes = b"\n", before: bytes = b"") -> GoldenReading:
    body = [header.encode(), *(line if isinstance(line, bytes) else line.encode() for line in lines)]
    return read_file(KEY, DAY, before + end.join(body) + end, NAMES)


def _values(found: GoldenReading) -> dict[str, Decimal]:
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
        assert _values(found) == expected
        assert not found.faults
        assert found.days == {DAY}
    assert _read(*lines).totals[0].origin == f"{KEY} line 2"
    turned = _read("rows,1,10001,2026-02-02", header="measure,value,project,day")
    assert _values(turned) == {"2026-02-02/10001 refined/events:rows": Decimal(1)}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2026-02-02,10001,rows", "has not the four fields"),
        ("2026-02-02,10001,rows,1,2", "has not the four fields"),
        ('2026-02-02,10001,rows,"1', "has not the four fields"),
        (b"2026-02-02,10001,rows,\xff", "has not the four fields"),
        ("02.02.2026,10001,rows,1", "day '02.02.2026' is none"),
        ("20260202,10001,rows,1", "day '20260202' is none"),
        ("2026-02-03,10001,rows,1", "is of 2026-02-03, in a file of 2026-02-02. Move it to golden/2026-02-03.csv"),
        ("2026-02-02,10003,rows,1", "project '10003' is none of the configured (10001, 10002)"),
        ("2026-02-02,10001,sales,1", "sales is no measure (aggregates/active_users:active_users"),
        ("2026-02-02,10001,refined/events:revenue,1", "refined/events:revenue is no measure"),
        ("2026-02-02,10001,events,1", "events is a measure of several tables (aggregates/city_events:events, "),
        ("2026-02-02,10001,rows,many", "value 'many' is not a number"),
        ("2026-02-02,10001,rows,NaN", "value 'NaN' is not a number"),
        ("2026-02-02,10001,rows,1e3", "value '1e3' is not a number"),
        ("2026-02-02,10001,rows,1_000", "value '1_000' is not a number"),
        ('2026-02-02,10001,rows,"1,5"', "value '1,5' is not a number"),
        ("2026-02-02,10001,rows,", "value '' is not a number"),
        ("2026-02-02,10001,rows," + "9" * 60, "is not a number"),
        ("2026-02-02,10001,refined/events:rows,2", f"again, after {KEY} line 2"),
    ],
)
def test_a_bad_line_is_named_and_those_beside_it_count(line: str | bytes, said: str) -> None:
    found = _read("2026-02-02,10001,rows,1", line, "2026-02-02,10002,rows,3")
    (fault,) = found.faults
    assert str(fault).startswith(f"{KEY} line 3: ")
    assert said in str(fault)
    assert _values(found) == {
        "2026-02-02/10001 refined/events:rows": Decimal(1),
        "2026-02-02/10002 refined/events:rows": Decimal(3),
    }
    assert found.days == frozenset()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf\n\n", "is empty"),
        (b"2026-02-02,10001,rows,1\n", "is not the header"),
        (b"day;project;measure;value\n2026-02-02;10001;rows;1\n", "is not the header (day;project;measure;value)"),
        (b"\x1f\x8b\x08\x00\x00", "is not the header"),
        (b"day,project,measure,value,note\n", "is not the header"),
    ],
)
def test_a_file_without_the_header_has_one_fault_and_retracts_nothing(content: bytes, said: str) -> None:
    found = read_file(KEY, DAY, content, NAMES)
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
    assert golden_day("golden/2026-02-02.csv") == golden_day("golden/2026-02-02.csv line 3") == DAY
    for key in ("golden/2026-02-30.csv", "golden/2026-02-02.csv.gz", "golden/a/2026-02-02.csv", "golden/totals.csv"):
        assert golden_day(key) is None


@given(st.binary(max_size=300))
def test_no_bytes_break_it(content: bytes) -> None:
    read_file(KEY, DAY, content, NAMES)
    read_file(KEY, DAY, HEADER.encode() + b"\n" + content, NAMES)
