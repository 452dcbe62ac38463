"""A dimension's snapshots: their listing in a folder and in a bucket, and refusals of one."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import UNREAD_OBJECTS
from pipeline_assets.domain.deliveries import NOT_READABLE
from pipeline_assets.domain.errors import LandingAccessError
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.build.snapshot import accepted_last, judge_count, judge_whole
from pipeline_assets.load.deliveries.snapshots import list_snapshots, log_odd_objects, log_some
from pipeline_assets.tables.dimension import ITEM
from pipeline_assets.transforms.object_text import MOVED
from pipeline_assets.transforms.snapshot_rows import BAD
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.s3 import BUCKET

OBJECTS = {
    "2026-02-02.csv": b"id,name,status\n1,a,ACTIVE\n",
    "2026-02-02_complete": b"",
    "2026-02-03.jsonl": b"{}",
    "2026-02-04.csv": b"1",
    "2026-02-04.jsonl": b"22",
    "2026-02-05_complete": b"",
    "2026-02-06.csv.tmp": b"?",
}


def _require_listing(landing: LandingStore) -> None:
    listing = list_snapshots(landing, "item")
    days = listing.days
    assert {
        day.day: (one.key.rpartition("/")[2], one.size_bytes, one.is_marked, len(one.others))
        for day, one in days.items()
    } == {2: ("2026-02-02.csv", 26, True, 0), 3: ("2026-02-03.jsonl", 2, False, 0), 4: ("2026-02-04.csv", 1, False, 1)}
    said: list[str] = []
    log_odd_objects(listing, "dimensions/item_snapshot", (date(2026, 2, 2), date(2026, 2, 3)), said.append)
    stranger, beyond = said
    assert stranger.startswith("dimensions/item_snapshot: dimensions/item/2026-02-06.csv.tmp (is called neither")
    where = "dimensions/item/2026-02-04.csv lies outside of the calendar (2026-02-02 to 2026-02-03)"
    assert beyond == f"dimensions/item_snapshot: {where} and is not loaded"
    version = days[date(2026, 2, 2)].version
    assert version == list_snapshots(landing, "item").days[date(2026, 2, 2)].version
    assert list_snapshots(landing, "shop").days == {}
    with landing.open(days[date(2026, 2, 2)].key, days[date(2026, 2, 2)].etag) as stored:
        assert stored.read() == OBJECTS["2026-02-02.csv"]


def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "dimensions" / "item"
    folder.mkdir(parents=True)
    for name, body in OBJECTS.items():
        (folder / name).write_bytes(body)
    landing = LandingStore.from_settings(Settings(landing_url=str(tmp_path)))
    _require_listing(landing)
    before = list_snapshots(landing, "item").days[date(2026, 2, 3)].version
    (folder / "2026-02-03.jsonl").write_bytes(b"{} ")
    assert list_snapshots(landing, "item").days[date(2026, 2, 3)].version != before


def test_a_bucket(bucket: Any) -> None:
    bucket.put_object(Key="exports/dimensions/item/", Body=b"")
    for name, body in OBJECTS.items():
        bucket.put_object(Key=f"exports/dimensions/item/{name}", Body=body)
    _require_listing(LandingStore.from_settings(Settings(landing_url=f"s3://{BUCKET}/exports")))


def test_a_landing_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(LandingAccessError, match="is not a folder"):
        list_snapshots(LandingStore.from_settings(Settings(landing_url=str(tmp_path / "no"))), "item")


def test_a_long_list_is_logged_in_part_and_the_rest_counted() -> None:
    said: list[str] = []
    log_some([f"object {number}" for number in range(1_500)], "raw", "objects are not loaded", said.append)
    assert said == [*(f"raw: object {number}" for number in range(20)), "raw: and 1,480 more objects are not loaded"]


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
    found = judge_count(DAY, staged, COUNTS, Settings(change_min_rows=1000), **on_record)
    assert found.is_passed is is_passed
    assert (found.reason is None) if reason is None else (reason in (found.reason or ""))


def test_what_a_person_let_a_day_change_to_last_is_remembered_and_a_rollback_of_it_as_well(ledger: Ledger) -> None:
    def published(number: int, digest: Digest, why: str | None) -> PublicationRecord:
        cause = Cause.of(CauseKind.DELIVERY)
        known = (ITEM.snapshot.key, KEY, number, number - 1, EMPTY, digest, cause)
        return PublicationRecord(*known, "run", accepted_reason=why)

    assert accepted_last(ledger, ITEM.snapshot, KEY) is None
    ledger.record(Changes(publications=[published(1, SMALL, "closed"), published(2, WHOLE, None)]), "run")
    assert accepted_last(ledger, ITEM.snapshot, KEY) == SMALL
    ledger.record(Changes(publications=[published(3, OTHER, "rolled back")]), "run")
    assert accepted_last(ledger, ITEM.snapshot, KEY) == OTHER
