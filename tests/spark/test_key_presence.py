"""Keys that are on one side only, by a list's ids or by event identity."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyspark.sql.functions as F
import pytest

from pipeline_assets.transforms.digests import BY_ID, by_event_key, by_ids, presence
from pipeline_assets.transforms.event_hashes import KEY

pytestmark = pytest.mark.slow
DAYS = {number: date(2026, 2, number) for number in range(1, 7)}
FIRST, LAST = DAYS[2], DAYS[4]
IDS = "project_id string, insert_id string, uuid string, app string, device_id string, event_date date"
HASHED = (
    "project_id string, insert_id string, uuid string, event_date date, _key_a long, _key_b long, _meaning_hash long"
)


def test_keys_of_a_list_and_of_another_table(spark: Any) -> None:
    """Outcome: each key of the range has one state and one day; rows around the range only explain."""

    def frame(*rows: tuple[Any, ...]) -> Any:
        return spark.createDataFrame([("1", *row) for row in rows], IDS)

    def states(found: Any) -> dict[str, tuple[str, date | None]]:
        return {row["name"]: (row["state"], row["day"]) for row in found.collect()}

    events = frame(
        ("same", "u1", "1", "d1", DAYS[2]), ("here", "u2", "1", "d1", DAYS[4]), ("moved", "u3", "1", None, DAYS[3]),
        ("around", "u4", "1", "d1", DAYS[5]), ("spilt", "u5", "1", "d1", DAYS[1]), (" ", "u6", "1", None, DAYS[2]),
    )  # fmt: skip
    listed = frame(
        ("same", None, "1", "d2", DAYS[2]), ("moved", None, "1", "", DAYS[4]), ("there", None, "1", "d1", DAYS[3]),
        ("spilt", None, "1", "d1", DAYS[2]), ("same", None, "1", "d2", DAYS[2]),
    )  # fmt: skip

    def by(columns: set[str], *, has_days: bool) -> dict[str, tuple[str, date | None]]:
        told = listed if has_days else listed.withColumn("event_date", F.lit(None).cast("date"))
        here = by_ids(events, columns, has_days=has_days).where("_id IS NOT NULL")
        return states(presence(here, by_ids(told, columns, has_days=has_days), BY_ID, FIRST, LAST))

    assert by({"insert_id"}, has_days=True) == {
        "same": ("same", DAYS[2]), "here": ("only here", DAYS[4]), "moved": ("different", DAYS[3]),
        "there": ("only there", DAYS[3]), "spilt": ("different", DAYS[2]),
    }  # fmt: skip
    # Without days a key of the list may be of any day: it has none, and keys around the range are not missed.
    assert by({"insert_id"}, has_days=False) == {
        "same": ("same", DAYS[2]), "here": ("only here", DAYS[4]), "moved": ("same", DAYS[3]), "there": ("only there", None),
    }  # fmt: skip
    # Another sender is another event; none and a blank are the same.
    senders = by_ids(events, {"insert_id", "device_id"}, has_days=True).where("_id IS NOT NULL")
    found = presence(senders, by_ids(listed, {"insert_id", "device_id"}, has_days=True), BY_ID, FIRST, LAST)
    rows = sorted((row["name"], row["state"]) for row in found.collect())
    assert [row for row in rows if row[0] in ("same", "moved")] == [
        ("moved", "different"), ("same", "only here"), ("same", "only there"),
    ]  # fmt: skip
    # Without senders, a key with other numbers of lines and rows differs. Around the range a row explains a line of a
    # list without days, and none of a list with days, which was cut to the range.
    many = frame(
        ("one", "u1", "1", "d1", DAYS[2]), ("two", "u2", "1", "d1", DAYS[3]), ("two", "u3", "1", "d2", DAYS[3]),
        ("edge", "u4", "1", "d1", DAYS[1]), ("edge", "u5", "1", "d2", DAYS[2]), ("pair", "u6", "1", "d1", DAYS[3]),
        ("pair", "u7", "1", "d2", DAYS[4]), ("far", "u8", "1", "d1", DAYS[5]), ("shy", "u9", "1", "d1", DAYS[1]),
        ("shy", "u10", "1", "d2", DAYS[2]),
    )  # fmt: skip
    told = [
        ("one", DAYS[2]),
        ("one", DAYS[2]),
        ("two", DAYS[3]),
        ("edge", DAYS[2]),
        ("pair", DAYS[3]),
        ("pair", DAYS[4]),
    ]

    def counted(*more: tuple[str, date], has_days: bool) -> dict[str, tuple[str, date | None]]:
        listed = frame(*((name, None, "1", None, day if has_days else None) for name, day in [*told, *more]))
        sides = [by_ids(side, {"insert_id"}, has_days=has_days) for side in (many, listed)]
        return states(presence(*sides, BY_ID, FIRST, LAST, is_counted=True))

    expected = {
        "one": ("fewer here", DAYS[2]), "two": ("more here", DAYS[3]), "edge": ("same", DAYS[2]), "pair": ("same", DAYS[3]),
        "shy": ("only here", DAYS[2]),
    }  # fmt: skip
    assert counted(has_days=True) == counted(has_days=False) == expected
    twice = ("edge", DAYS[2])
    assert counted(twice, has_days=True) == {**expected, "edge": ("fewer here", DAYS[2])}
    assert counted(twice, has_days=False) == expected
    assert counted(twice, twice, has_days=False) == {**expected, "edge": ("fewer here", DAYS[2])}
    # A row with an empty first id goes by the other one, where a list has it.
    both = by_ids(events, {"insert_id", "uuid"}, has_days=True)
    assert {row["_name"] for row in both.where("_kind = 'uuid'").collect()} == {"u6"}
    assert by_ids(events, {"insert_id"}, has_days=True).where("_id IS NULL").count() == 1

    def hashed(*rows: tuple[Any, ...]) -> Any:
        made = [("1", name, None, day, key, key, meaning) for name, day, key, meaning in rows]
        return by_event_key(spark.createDataFrame(made, HASHED))

    refined = hashed(("a", DAYS[2], 1, 10), ("b", DAYS[3], 2, 20), ("c", DAYS[4], 3, 30), ("e", DAYS[1], 5, 50))
    # Raw holds an event as often as it was sent; one of its rows is published.
    raw = hashed(
        ("a", DAYS[2], 1, 11),
        ("a", DAYS[2], 1, 10),
        ("b", DAYS[3], 2, 21),
        ("d", DAYS[4], 4, 40),
        ("e", DAYS[2], 5, 50),
    )
    assert states(presence(refined, raw, KEY, FIRST, LAST)) == {
        "a": ("same", DAYS[2]), "b": ("different", DAYS[3]), "c": ("only here", DAYS[4]), "d": ("only there", DAYS[4]),
        "e": ("same", DAYS[2]),
    }  # fmt: skip
