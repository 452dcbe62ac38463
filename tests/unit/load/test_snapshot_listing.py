"""A dimension's listing: days, markers, doubles and strangers, in a folder and in a bucket."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import LandingAccessError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.deliveries.snapshots import list_snapshots, log_odd_objects, log_some
from resources.landing.store import LandingStore
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
