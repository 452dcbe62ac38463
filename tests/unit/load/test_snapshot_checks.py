"""Refusals of a snapshot: an unreadable object is retried, an accepted or lasting count is not reported again."""

from __future__ import annotations

from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import UNREAD_OBJECTS
from pipeline_assets.domain.deliveries import NOT_READABLE
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.build.snapshot import accepted_last, judge_count, judge_whole
from pipeline_assets.tables.dimension import ITEM
from pipeline_assets.transforms.object_text import MOVED
from pipeline_assets.transforms.snapshot_rows import BAD
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

OBJECT = "dimensions/item/2026-02-04.csv"
DAY = date(2026, 2, 4)
KEY = Slice(DAY, ALL_PROJECTS)
READ = {"rows": 0, "trimmed": 0, "problem": None, "detail": None}
COUNTS = {DAY - timedelta(days=2): 300, DAY + timedelta(days=1): 7}
SMALL, OTHER, WHOLE = Digest(7, 1, 1), Digest(7, 2, 2), Digest(300, 3, 3)


@pytest.mark.parametrize(("problem", "is_unread"), [(MOVED, 1), (NOT_READABLE, 1), (BAD, 0)])
def test_what_moved_or_could_not_be_read_is_tried_again_and_what_is_bad_is_not(problem: str, is_unread: int) -> None:
    found = judge_whole(OBJECT, {**READ, "problem": problem, "detail": "is wrong"}, 0, 0)
    assert (found.is_passed, found.figures[UNREAD_OBJECTS], found.reason) == (False, is_unread, f"{OBJECT}: is wrong")


def test_white_space_that_was_left_out_is_counted_and_told_and_refuses_nothing() -> None:
    read = {**READ, "rows": WHOLE.rows}
    found = judge_whole(OBJECT, {**read, "trimmed": 1200}, WHOLE.rows, WHOLE.rows)
    assert (found.is_passed, found.figures["trimmed_items"]) == (True, 1200)
    assert found.reason == f"{OBJECT}: white space around id or status of 1,200 items is left out"
    assert judge_whole(OBJECT, read, WHOLE.rows, WHOLE.rows).reason is None


@pytest.mark.parametrize(
    ("staged", "known", "is_passed", "reason"),
    [
        (SMALL, {}, False, "7 items, 300 in the snapshot of 2026-02-02: 97.7% fewer"),
        (SMALL, {"published": OTHER}, False, "97.7% fewer"),
        (SMALL, {"accepted_before": lambda: OTHER}, False, "97.7% fewer"),
        (EMPTY, {"published": EMPTY, "accepted_before": lambda: EMPTY}, False, "100.0% fewer"),
        (SMALL, {"accepted": "shops closed"}, True, "accepted: shops closed (7 items"),
        (SMALL, {"published": SMALL}, True, "the same items are published"),
        (SMALL, {"accepted_before": lambda: SMALL}, True, "an operator accepted the same items before"),
        (WHOLE, {}, True, None),
    ],
)
def test_a_count_beyond_bounds_is_refused_once_and_never_again_when_it_stands_or_was_accepted(
    staged: Digest, known: dict[str, Any], is_passed: bool, reason: str | None
) -> None:
    on_record: dict[str, Any] = {"published": EMPTY, "accepted": None, "accepted_before": lambda: None, **known}
    found = judge_count(DAY, staged, COUNTS, Settings(change_min_rows=2), **on_record)
    assert found.is_passed is is_passed
    assert (found.reason is None) if reason is None else (reason in (found.reason or ""))


def test_what_a_person_let_a_day_change_to_last_is_remembered_and_a_rollback_of_it_as_well(tmp_path: Path) -> None:
    def published(number: int, digest: Digest, why: str | None) -> PublicationRecord:
        cause = Cause.of(CauseKind.DELIVERY)
        return PublicationRecord(
            ITEM.snapshot.key, KEY, number, number - 1, EMPTY, digest, cause, "run", accepted_reason=why
        )

    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        assert accepted_last(ledger, ITEM.snapshot, KEY) is None
        ledger.record(Changes(publications=[published(1, SMALL, "closed"), published(2, WHOLE, None)]), "run")
        assert accepted_last(ledger, ITEM.snapshot, KEY) == SMALL
        ledger.record(Changes(publications=[published(3, OTHER, "rolled back")]), "run")
        assert accepted_last(ledger, ITEM.snapshot, KEY) == OTHER
