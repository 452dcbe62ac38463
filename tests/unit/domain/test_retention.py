"""Expiry spares young and named snapshots, and those that main showed within the kept history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pipeline_assets.domain.retention import YOUNGEST, SnapshotAge, expirable, is_bulk, least_age, outlived_metadata

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def _snapshot(number: int, days_old: float, *, is_on_main: bool = True) -> SnapshotAge:
    return SnapshotAge(number, NOW - timedelta(days=days_old), is_on_main)


MAIN = [_snapshot(1, 50), _snapshot(2, 40), _snapshot(3, 31), _snapshot(4, 20), _snapshot(5, 0.1)]


def test_main_keeps_its_history_and_what_it_showed_when_that_begins() -> None:
    """The state of 30 days ago is the snapshot of 32 days ago."""
    main = [_snapshot(1, 50), _snapshot(2, 40), _snapshot(3, 32), _snapshot(4, 20), _snapshot(5, 0.1)]
    assert expirable(main, {5}, NOW, timedelta(days=30)) == [1, 2]


@pytest.mark.parametrize("hours_unrecorded", [0.01, 1, 23])
def test_a_change_recorded_within_the_history_can_be_undone_whenever_it_was_committed(hours_unrecorded: float) -> None:
    """On record 30 days ago, committed earlier: the state before it, 40 days old, is kept too."""
    change = _snapshot(3, 30 + hours_unrecorded / 24)
    assert expirable([_snapshot(1, 50), _snapshot(2, 40), change, MAIN[-1]], {5}, NOW, timedelta(days=30)) == [1]


def test_a_head_that_is_old_stays() -> None:
    assert expirable([_snapshot(1, 400), _snapshot(2, 300)], {2}, NOW, timedelta(days=30)) == [1]
    assert expirable([_snapshot(1, 400)], {1}, NOW, timedelta(days=30)) == []


@pytest.mark.parametrize(
    ("days_old", "named", "is_expired"), [(0.9, False, False), (1.1, False, True), (9.0, True, False)]
)
def test_staged_snapshots_live_a_day_or_as_long_as_their_branch(days_old: float, named: bool, is_expired: bool) -> None:
    """Staged: refused, or published under another id."""
    staged = _snapshot(9, days_old, is_on_main=False)
    heads = {5, 9} if named else {5}
    assert (9 in expirable([*MAIN, staged], heads, NOW, timedelta(days=30))) is is_expired


def test_nothing_is_removed_that_the_oldest_live_run_may_use() -> None:
    """Outcome: a day, or longer than the oldest run by the clocks' difference; its main snapshots stay."""
    hours = timedelta(hours=1)
    assert least_age([]) == least_age([hours]) == YOUNGEST
    assert least_age([30 * hours, hours]) == 31 * hours
    assert expirable(MAIN, {5}, NOW, least_age([timedelta(days=49)])) == []


def test_a_short_history_is_a_day_at_least() -> None:
    kept = {one.snapshot_id for one in MAIN} - set(expirable(MAIN, {5}, NOW, timedelta(0)))
    assert kept == {4, 5}


def test_metadata_goes_with_the_history_and_never_while_the_table_names_it() -> None:
    files = [(f"{days}", NOW - timedelta(days=days)) for days in (0, 1, 29, 30, 32, 50)]
    assert outlived_metadata(files, {"50"}, NOW, timedelta(days=30)) == ["32"]
    assert outlived_metadata(files, set(), NOW, timedelta(0)) == ["29", "30", "32", "50"]


@pytest.mark.parametrize(
    ("orphans", "files", "is_refused"),
    [(10, 10, False), (11, 11, True), (11, 44, False), (25, 99, True), (0, 0, False)],
)
def test_orphans_are_many_by_number_and_by_share(orphans: int, files: int, is_refused: bool) -> None:
    assert (is_bulk(orphans, files, 0.25), is_bulk(orphans, files, 1.0)) == (is_refused, False)
