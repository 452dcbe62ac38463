"""A day's status is the worst of its projects', and no more than the ledger knows."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from pipeline_assets.domain.checks import lost_file
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.inspection.status import (
    DayStatus,
    day_statuses,
    dimension_statuses,
    joined_statuses,
    recorded_statuses,
)
from pipeline_assets.tables.dimension import ITEM
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

PROJECTS, DAY = ("10001", "10002"), date(2026, 2, 2)
RAW, REFINED, JOINED = "raw/regular_events", "refined/events", "aggregates/active_item_events"


def a_slice(project: str, verdict: Verdict, table: str = REFINED, reason: str | None = None) -> SliceRecord:
    digest = Digest(5, 1, 1)
    return SliceRecord(table, Slice(DAY, project), verdict, reason, reason and "fix it", is_final=True, digest=digest)


def of_item(day: date) -> list[SliceRecord]:
    """A day's snapshot, and its month's intervals."""
    places = (ITEM.snapshot.key, day), (ITEM.validity.key, day.replace(day=1))
    return [
        SliceRecord(table, Slice(of, ALL_PROJECTS), Verdict.PUBLISHED, digest=Digest(3, 1, 1)) for table, of in places
    ]


def status_of(ledger: Ledger, table: str) -> DayStatus:
    statuses = day_statuses(ledger, PROJECTS, [DAY], (Source.REGULAR,))
    return next(status for status in statuses if status.table == table)


@pytest.mark.parametrize(("better", "worst"), [
    (Verdict.UNCHANGED, Verdict.PUBLISHED), (Verdict.PUBLISHED, Verdict.WAITING), (Verdict.WAITING, Verdict.HELD),
    (Verdict.HELD, Verdict.REFUSED),
])  # fmt: skip
def test_a_day_is_as_good_as_its_worst_project(ledger: Ledger, better: Verdict, worst: Verdict) -> None:
    ledger.record(Changes(slices=[a_slice("10001", better), a_slice("10002", worst)]), "run")
    status, is_good = status_of(ledger, REFINED), worst is Verdict.PUBLISHED
    assert (status.verdict, status.is_good, status.rows, status.is_final) == (worst, is_good, 10, True)


def test_a_day_that_one_project_lacks_is_not_loaded_though_its_rows_and_reasons_are_shown(ledger: Ledger) -> None:
    ledger.record(Changes(slices=[a_slice("10001", Verdict.REFUSED, reason="shrinks")]), "run")
    status = status_of(ledger, REFINED)
    assert (status.to_json()["verdict"], status.is_good, status.rows) == ("not loaded", False, 5)
    assert status.reasons == ("10001: shrinks. fix it",)
    (recorded,) = recorded_statuses(ledger, {Slice(DAY, "10001")}, ())
    assert (recorded.table, recorded.verdict) == (REFINED, Verdict.REFUSED)


def test_a_raw_day_has_the_verdict_of_its_batches(ledger: Ledger) -> None:
    batches = [
        BatchRecord(BatchKey(Source.REGULAR, "10001", DAY), BatchVerdict.ACCEPTED, is_closed=True),
        BatchRecord(BatchKey(Source.REGULAR, "10002", DAY), BatchVerdict.REFUSED, "unreadable", "export it again"),
    ]
    ledger.record(Changes(batches=batches, slices=[a_slice("10001", Verdict.PUBLISHED, RAW)]), "run")
    status = status_of(ledger, RAW)
    assert (status.verdict, status.rows, status.is_final) == (Verdict.REFUSED, 5, False)
    assert status.reasons == ("10002: unreadable. export it again",)
    loss = lost_file(RAW, Slice(DAY, "10001"), "a.parquet")
    lost = a_slice("10001", Verdict.REFUSED, RAW)
    lost = replace(lost, reason=loss.reason, hint=loss.hint, refused_evaluations=(loss,))
    ledger.record(Changes(slices=[lost]), "run")
    assert "10001: its data file a.parquet is gone from the warehouse. Put it back" in status_of(ledger, RAW).reasons[0]


def test_dimensions_stand_beside_events_where_they_are_in_use(ledger: Ledger) -> None:
    """Outcome: without a snapshot no column of dimensions; then every day has one, and a month of intervals on each day."""
    days = date(2026, 2, 2), date(2026, 2, 3)
    assert joined_statuses(ledger, ["1"], days, is_all_wanted=True) == dimension_statuses(ledger, days) == []
    waits = SliceRecord(JOINED, Slice(days[0], "1"), Verdict.WAITING, "is early")
    ledger.record(Changes(slices=[*of_item(days[0]), waits]), "run")
    told = [*joined_statuses(ledger, ["1"], days, is_all_wanted=True), *dimension_statuses(ledger, days)]
    snapshot, validity, good = ITEM.snapshot.key, ITEM.validity.key, Verdict.PUBLISHED
    assert [(one.table, one.day.day, one.verdict) for one in told] == [
        (JOINED, 2, Verdict.WAITING), (JOINED, 3, None),
        (snapshot, 2, good), (validity, 2, good), (snapshot, 3, None), (validity, 3, good),
    ]  # fmt: skip
    assert [one.day for one in joined_statuses(ledger, ["1"], days)] == [days[0]]
    assert joined_statuses(ledger, ["1"], days)[0].reasons == ("1: is early",)


def test_a_released_day_of_a_dimension_is_told_with_its_intervals_and_what_is_joined_with_it(ledger: Ledger) -> None:
    """Outcome: the day of all projects shows all three tables; the day of one project shows its aggregate alone."""
    joined = [a_slice("10001", Verdict.PUBLISHED, JOINED), a_slice("10002", Verdict.REFUSED, JOINED, "shrinks")]
    ledger.record(Changes(slices=[*of_item(DAY), *joined]), "run")
    told = {one.table: (one.day, one.verdict) for one in recorded_statuses(ledger, {Slice(DAY, ALL_PROJECTS)}, ())}
    of_item_tables = dict.fromkeys((ITEM.snapshot.key, ITEM.validity.key), (DAY, Verdict.PUBLISHED))
    assert told == {**of_item_tables, JOINED: (DAY, Verdict.REFUSED)}
    (own,) = recorded_statuses(ledger, {Slice(DAY, "10001")}, ())
    assert (own.table, own.verdict) == (JOINED, Verdict.PUBLISHED)
