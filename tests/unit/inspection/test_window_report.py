"""`tidemark window` shows recorded lateness, recommends a window, and exits 1 where the set one is too narrow."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Source
from pipeline_assets.inspection.window import read_window
from pipeline_assets.load.staleness.finality import too_narrow
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.recorded_history import LATE_BY_DAYS, record_history
from tests.support.shell import commands

PROJECTS = ("10001", "10002")
LAST = date(2026, 3, 31)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    ledger_url = f"sqlite:///{tmp_path}/ledger.db"
    return commands(
        TIDEMARK_LEDGER_URL=ledger_url, TIDEMARK_PROJECTS="10001,10002", TIDEMARK_TOLERATED_MISSED_SHARE="0.001"
    )


def read(ledger: Ledger, *projects: str, **settings: Any) -> Any:
    known = Settings(projects=PROJECTS, **{"tolerated_missed_share": 0.001, **settings})
    return read_window(ledger, known, Source.REGULAR, projects or PROJECTS, LAST + timedelta(days=1))


def record_late(ledger: Ledger, project: str, arrivals: int, rows: int, late_rows: int, late: int) -> None:
    """So many arrival days, each with rows of its own and of an earlier day."""
    for shift in range(arrivals):
        day = LAST - timedelta(days=shift)
        days = {day: BatchDay(Digest(rows, 1, 1)), day - timedelta(days=late): BatchDay(Digest(late_rows, 1, 1))}
        ledger.record(Changes(batch_days={BatchKey(Source.REGULAR, project, day): days}), "run")


def test_windows_their_share_and_their_cost(ledger: Ledger) -> None:
    """30 days of two projects, three objects of 18 kB a day each; 99.9 % of the rows come within five days."""
    record_history(ledger, PROJECTS, LAST, 30)
    found = read(ledger, reprocessing_window_days=3)
    assert (found.first, found.last) == (LAST - timedelta(days=90), LAST)
    assert (found.recommended, found.is_too_narrow) == (5, True)
    assert read(ledger, reprocessing_window_days=5).is_too_narrow is False
    assert read(ledger, tolerated_missed_share=0.01).recommended == 2
    by_days = {reach.days: reach for reach in found.reaches}
    assert [*by_days] == [*range(8), 10, 14, 21]
    assert found.all.late.arrival_days == 30
    assert by_days[3].caught == pytest.approx(sum(share for late, share in LATE_BY_DAYS.items() if late <= 3), abs=1e-3)
    assert by_days[21].caught == 1
    missed = found.all.late.missed_beyond(3)
    assert by_days[3].missed_a_day == pytest.approx(missed / 30)
    assert (by_days[3].arrival_days, by_days[3].objects, by_days[3].slices) == (4, 24, 4 * 2 * 4)
    # A refused object costs nothing, because raw does not hold it.
    assert (by_days[3].size_bytes, by_days[3].final_after_hours) == (round(4 * 18_000 * (30 * 6 - 1) / 30), 3 * 24 + 48)


def test_each_project_is_told_and_the_one_that_needs_most_decides(ledger: Ledger) -> None:
    """A project of few rows decides nothing."""
    for project, rows, late in (("10001", 10_000, 2), ("10002", 10, 30)):
        record_late(ledger, project, 20, rows, rows // 10, late)
    found = read(ledger)
    assert {one.project: one.advice.days for one in found.of_projects} == {"": 2, "10001": 2, "10002": None}
    assert found.recommended == 2
    assert found.reason.startswith("10001: misses 0 of 220,000 rows of 20 arrival days (0 %); 1 would miss 9.09 %")
    assert read(ledger, "10002").recommended is None
    settings = Settings(projects=PROJECTS, reprocessing_window_days=1)
    (told,) = too_narrow(ledger, settings, Source.REGULAR, PROJECTS, LAST)
    assert told.startswith("the reprocessing window is too narrow for 10001: 9.09 % of the rows of 20 arrival days")
    assert too_narrow(ledger, settings, Source.BACKFILL, PROJECTS, LAST) == []
    assert too_narrow(ledger, Settings(projects=PROJECTS), Source.REGULAR, PROJECTS, LAST) == []


def test_projects_of_few_rows_are_judged_together(ledger: Ledger) -> None:
    for project in PROJECTS:
        record_late(ledger, project, 14, 400, 20, 4)
    found = read(ledger)
    assert {one.project: one.advice.days for one in found.of_projects} == {"": 4, "10001": None, "10002": None}
    assert (found.recommended, found.is_too_narrow) == (4, True)
    assert found.reason.startswith("misses 0 of 11,760 rows")
    settings = Settings(projects=PROJECTS, tolerated_missed_share=0.001)
    (told,) = too_narrow(ledger, settings, Source.REGULAR, PROJECTS, LAST)
    assert "too narrow for all projects: 4.76 %" in told


def test_times_come_from_sketches_and_survive_a_record_without_one(ledger: Ledger) -> None:
    """Outcome: a batch's sketches stay while its rows do, and go with them."""
    batch, digest = BatchKey(Source.REGULAR, "10001", LAST), Digest(3, 1, 1)
    sketch = LatenessSketch({300: 2, -2: 1}, 0, -5, 90_000)
    old = LAST - timedelta(days=1)
    ledger.record(Changes(batch_days={batch: {LAST: BatchDay(digest, "h", sketch), old: BatchDay(digest, "h")}}), "a")
    for step in (BatchDay(digest, "other"), BatchDay(digest, None, sketch)):
        ledger.record(Changes(batch_days={batch: {LAST: step, old: BatchDay(digest)}}), "b")
        found = read(ledger).all
        assert (found.measured_days, found.times.early_rows, found.seconds["max"]) == (1, 1, 90_000)
    assert read(ledger).all.seconds["p50"] == pytest.approx(sketch.percentile(0.5))
    ledger.record(Changes(batch_days={batch: {LAST: BatchDay(Digest(3, 2, 2)), old: BatchDay(digest)}}), "c")
    assert set(read(ledger).all.seconds.values()) == {None}


def test_rows_that_no_window_is_for_are_told(ledger: Ledger) -> None:
    record_history(ledger, PROJECTS, LAST, 30)
    assert read(ledger).recommended == 5
    found = read(ledger, calendar_start=LAST - timedelta(days=33))
    assert found.out_of_reach["rows_before_calendar"] > 0


def test_the_command(ledger: Ledger, shell: Callable[..., Any]) -> None:
    empty = shell("window")
    assert (empty.exit_code, "no rows of regular deliveries" in empty.output) == (0, True), empty.output
    record_history(ledger, PROJECTS, LAST, 30)
    few = shell("window", "--from", "2026-03-20", "--to", "2026-03-31")
    assert (few.exit_code, "no window is recommended: 12 arrival days are on record, 14" in few.output) == (0, True)
    told = shell("window", "--project", "10001")
    assert told.exit_code == 1, told.output
    assert "reprocessing_window_days = 3 is too narrow" in told.output
    assert "TIDEMARK_REPROCESSING_WINDOW_DAYS=5" in told.output
    assert "TIDEMARK_TOLERATED_MISSED_SHARE=0.0022" in told.output
    assert "of 30 days no times are on record" in told.output
    wide = shell("window", "--source", "regular", TIDEMARK_REPROCESSING_WINDOW_DAYS="5")
    assert (wide.exit_code, "wide enough" in wide.output) == (0, True), wide.output
    found = json.loads(shell("window", "--json").output)
    assert (found["recommended_days"], found["set_days"], found["relative_error_of_seconds"]) == (5, 3, 0.02)
    assert [one["project"] for one in found["projects"]] == [None, *PROJECTS]
    assert found["windows"][3]["days"] == 3
    assert shell("window", "--source", "backfill", "--verbose").exit_code == 0
    for words in (["status"], ["status", "--json"]):
        status = shell(*words, TIDEMARK_PROJECTS="10001")
        assert "the reprocessing window is too narrow for 10001: 0.2" in status.output, status.output
    wrong = shell("window", "--from", "2026-03-20", "--to", "2026-03-01")
    assert (wrong.exit_code, "ends before it begins" in wrong.output) == (2, True)
