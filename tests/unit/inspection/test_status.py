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
RAW, REFINED = "raw/regular_events", "refined/events"


def a_slice(project: str, verdict: Verdict, table: str = REFINED, reason: str | None = None) -> SliceRecord:
    digest = Digest(5, 1, 1)
    return SliceRecord(table, Slice(DAY, project), verdict, reason, reason and "fix it", is_final=True, digest=digest)


def status_of(ledger: Ledger, table: str) -> DayStatus:
    statuses = day_statuses(ledger, PROJECTS, [DAY], (Source.REGULAR,))
    return next(status for status in statuses if status.table == table)


@pytest.mark.parametrize(
    ("verdicts", "worst", "is_good"),
    [
        ((Verdict.PUBLISHED, Verdict.UNCHANGED), Verdict.PUBLISHED, True),
        ((Verdict.PUBLISHED, Verdict.WAITING), Verdict.WAITING, False),
        ((Verdict.HELD, Verdict.WAITING), Verdict.HELD, False),
        ((Verdict.HELD, Verdict.REFUSED), Verdict.REFUSED, False),
    ],
)
def test_a_day_is_as_good_as_its_worst_project(
    ledger: Ledger, verdicts: tuple[Verdict, Verdict], worst: Verdict, is_good: bool
) -> None:
    ledger.record(Changes(slices=[a_slice(*pair) for pair in zip(PROJECTS, verdicts, strict=True)]), "run")
    status = status_of(ledger, REFINED)
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
    days, month = (date(2026, 2, 2), date(2026, 2, 3)), date(2026, 2, 1)
    assert joined_statuses(ledger, ["1"], days, is_all_wanted=True) == dimension_statuses(ledger, days) == []
    held = Digest(3, 1, 1)
    records = [
        SliceRecord(ITEM.snapshot.key, Slice(days[0], ALL_PROJECTS), Verdict.PUBLISHED, digest=held),
        SliceRecord(ITEM.validity.key, Slice(month, ALL_PROJECTS), Verdict.PUBLISHED, digest=held),
        SliceRecord("aggregates/active_item_events", Slice(days[0], "1"), Verdict.WAITING, "is early"),
    ]
    ledger.record(Changes(slices=records), "run")
    told = [*joined_statuses(ledger, ["1"], days, is_all_wanted=True), *dimension_statuses(ledger, days)]
    assert [(one.table.rpartition("/")[2], one.day.day, one.verdict) for one in told] == [
        ("active_item_events", 2, Verdict.WAITING),
        ("active_item_events", 3, None),
        ("item_snapshot", 2, Verdict.PUBLISHED),
        ("item_validity", 2, Verdict.PUBLISHED),
        ("item_snapshot", 3, None),
        ("item_validity", 3, Verdict.PUBLISHED),
    ]
    assert [one.day for one in joined_statuses(ledger, ["1"], days)] == [days[0]]
    assert joined_statuses(ledger, ["1"], days)[0].reasons == ("1: is early",)


def test_a_released_day_of_a_dimension_is_told_with_its_intervals_and_what_is_joined_with_it(ledger: Ledger) -> None:
    """Outcome: the day of all projects shows all three tables; the day of one project shows its aggregate alone."""
    held = Digest(3, 1, 1)
    records = [
        SliceRecord(ITEM.snapshot.key, Slice(DAY, ALL_PROJECTS), Verdict.PUBLISHED, digest=held),
        SliceRecord(ITEM.validity.key, Slice(DAY.replace(day=1), ALL_PROJECTS), Verdict.PUBLISHED, digest=held),
        SliceRecord("aggregates/active_item_events", Slice(DAY, "10001"), Verdict.PUBLISHED, digest=held),
        SliceRecord("aggregates/active_item_events", Slice(DAY, "10002"), Verdict.REFUSED, "shrinks"),
    ]
    ledger.record(Changes(slices=records), "run")
    told = {one.table: (one.day, one.verdict) for one in recorded_statuses(ledger, {Slice(DAY, ALL_PROJECTS)}, ())}
    assert told == {
        ITEM.snapshot.key: (DAY, Verdict.PUBLISHED),
        ITEM.validity.key: (DAY, Verdict.PUBLISHED),
        "aggregates/active_item_events": (DAY, Verdict.REFUSED),
    }
    (own,) = recorded_statuses(ledger, {Slice(DAY, "10001")}, ())
    assert (own.table, own.verdict) == ("aggregates/active_item_events", Verdict.PUBLISHED)
