"""People are told that a day differs from its golden totals, once for each difference, and that it does so no longer."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from pipeline_assets.domain.golden import (
    Agreement,
    GoldenComparison,
    GoldenMeasure,
    GoldenSource,
    GoldenTotal,
    golden_notice,
    mismatches_by_day,
)
from pipeline_assets.domain.notices import Notice, NoticeKind
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice

DAY, TABLE = date(2026, 2, 2), "refined/events"
KEY = Slice(DAY, "10001")
LATE = datetime(2026, 2, 20, tzinfo=UTC)


def compared(agreement: Agreement, published: int | None = 60, name: str = "rows", day: date = DAY) -> GoldenComparison:
    key, measure = Slice(day, "10001"), GoldenMeasure(TABLE, name)
    total = GoldenTotal(GoldenSource.LANDING, key, measure, Decimal(61), f"golden/{day}.csv line 2")
    return GoldenComparison(total, None if published is None else Decimal(published), agreement)


def results(*comparisons: GoldenComparison, now: datetime = LATE) -> list[tuple[Slice, str | None]]:
    found = mismatches_by_day(comparisons, Settings(), now)
    assert {table for table, _ in found} <= {TABLE}
    return [(key, mismatch) for (_, key), mismatch in found.items()]


def test_a_day_has_one_result_that_names_all_that_differs_and_who_says_so() -> None:
    differs, agrees = compared(Agreement.DIFFERS), compared(Agreement.AGREES, 61, "events")
    other = compared(Agreement.AGREES, 61, day=DAY + timedelta(days=1))
    told = "rows 60 published, 61 golden (-1, 1.64%) by golden/2026-02-02.csv line 2"
    assert results(other, agrees, differs) == [(KEY, told), (other.total.key, None)]
    ((_, unmeasured),) = results(compared(Agreement.NOT_MEASURED, None))
    assert (unmeasured or "").startswith("rows not measured, 61 golden")


def test_a_day_that_is_not_loaded_is_no_mismatch_before_its_deadline() -> None:
    awaited = compared(Agreement.NOT_LOADED, None)
    assert results(awaited, now=datetime(2026, 2, 3, tzinfo=UTC)) == []
    assert [mismatch is not None for _, mismatch in results(awaited)] == [True]


def test_a_mismatch_is_told_once_and_so_is_its_end_and_the_same_one_later_is_another() -> None:
    place = (TABLE, KEY)
    assert golden_notice(place, None, None, "t", None) is None
    first = golden_notice(place, "rows 60", None, "t1", "run-1")
    assert first is not None
    assert (first.kind, first.reason, first.run_id) == (NoticeKind.GOLDEN_MISMATCH, "rows 60", "run-1")
    assert first.hint == "`tidemark reconcile --repair` proposes what closes it"
    assert first.text == "refined/events 2026-02-02/10001 differs from golden totals: rows 60"
    assert golden_notice(place, "rows 60", first, "t2", "run-2") is None
    other = golden_notice(place, "rows 59", first, "t2", "run-2")
    assert other is not None
    assert other.id != first.id
    end = golden_notice(place, None, first, "t3", None)
    assert end is not None
    assert (end.kind, end.refusal_id) == (NoticeKind.GOLDEN_AGREEMENT, first.id)
    assert end.text == "refined/events 2026-02-02/10001 differs from no golden total any more"
    again = golden_notice(place, "rows 60", end, "t4", None)
    assert again is not None
    assert again.id not in (first.id, end.id)
    assert golden_notice(place, None, end, "t4", None) is None
    for notice in (first, end):
        assert Notice.from_json(notice.to_json()) == notice
    assert end.to_json()["mismatch"] == first.id
