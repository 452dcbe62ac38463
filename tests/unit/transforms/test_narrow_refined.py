"""The narrow pass over refined counts what each row says, and finds exactly the rows that share a key nearby."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.identity import named
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.keys import (
    KEY_TYPES,
    KeyRows,
    first_halves,
    keys_among,
    keys_by_range,
    occurring_twice,
)
from pipeline_assets.transforms.row_sums import (
    RefinedSums,
    SummingRefined,
    Twice,
    keys_twice,
)
from tests.unit.transforms.test_narrow_raw import AT, KEY, LONGS, in_batches

SUMMING = SummingRefined()
NEXT_DAY = datetime(2026, 5, 11, tzinfo=AT.tzinfo)
_IDS = st.sampled_from([None, "", " ", "\u3000\u200b", "i"])
_TIMES = st.sampled_from(
    [None, AT, NEXT_DAY - timedelta(microseconds=1), NEXT_DAY, datetime(1969, 12, 31, 23, tzinfo=AT.tzinfo)]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "_hash_a": LONGS, "_hash_b": LONGS, "insert_id": _IDS, "uuid": _IDS, "event_time": _TIMES,
            "server_upload_time": _TIMES, "_key_a": LONGS,
        }
    ),
    max_size=25,
)  # fmt: skip


def a_file(key: Slice) -> SliceFile:
    return SliceFile("refined/events", key, "f.parquet", 1, 1)


def micros(rows: Sequence[dict[str, Any]], name: str) -> int | None:
    times = [row[name] for row in rows if row[name] is not None]
    return (max(times) - datetime(1970, 1, 1, tzinfo=AT.tzinfo)) // timedelta(microseconds=1) if times else None


@settings(max_examples=120, deadline=None)
@given(ROWS, st.lists(st.integers(0, 25), max_size=3), st.randoms())
def test_sums_are_those_of_the_rows_in_any_order_and_grouping(rows: list[Any], cuts: list[int], random: Any) -> None:
    """Scenario: rows with extreme hashes, missing and blank ids, missing times, received in the last and the first moment of a
    day; in one file, and in two in another order. Outcome: what plain Python counts, both times."""
    cuts = sorted(min(cut, len(rows)) for cut in cuts)
    one = SUMMING(a_file(KEY), in_batches(rows, cuts, SUMMING.types))
    ids = [(row["insert_id"], row["uuid"]) for row in rows]
    seen = [tuple(map(named, both)) for both in ids]
    received = [row["server_upload_time"] for row in rows]
    assert one.sums == RefinedSums(
        Digest(len(rows), *(sum(row[name] for row in rows) for name in ("_hash_a", "_hash_b"))),
        false_hashes=0,
        rows_without_id=sum(both == (None, None) for both in seen),
        rows_with_blank_id=sum(
            any(there is not None and name is None for there, name in zip(*pair, strict=True))
            for pair in zip(ids, seen, strict=True)
        ),
        late_rows=sum(time is not None and time.date() > KEY.event_date for time in received),
        received=micros(rows, "server_upload_time"),
        happened=micros(rows, "event_time"),
    )
    keys = [row["_key_a"] for row in rows]
    assert np.frombuffer(one.keys, np.int64).tolist() == keys
    assert first_halves(a_file(KEY), in_batches(rows, cuts, {"_key_a": "bigint"})) == one.keys
    shuffled, half = random.sample(rows, len(rows)), len(rows) // 2
    parts = [SUMMING(a_file(KEY), in_batches(part, [], SUMMING.types)) for part in (shuffled[:half], shuffled[half:])]
    assert sum((part.sums for part in parts), RefinedSums()) == one.sums


_HALVES = st.sampled_from([-(1 << 63), -1, 0, 1, 7, (1 << 63) - 1])
KEYS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["1", "2"]), _HALVES, st.sampled_from([-5, 0, 9])), max_size=30
)


@settings(max_examples=200, deadline=None)
@given(KEYS, st.integers(0, 3), st.integers(1, 7))
def test_rows_that_share_a_key_are_found_exactly(
    rows: list[tuple[int, str, int, int]], window: int, ranges: int
) -> None:
    """Scenario: keys that share one half or both, on one day, within the window and beyond it, in two projects.
    Outcome: the rows that plain Python pairs; whether the second halves of suspected keys are read in another pass, or all keys
    are exchanged by ranges."""
    days: dict[Slice, list[tuple[int, int]]] = {}
    for day, project, *key in rows:
        days.setdefault(Slice(date(2026, 5, 10 + day), project), []).append((key[0], key[1]))
    expected: dict[Slice, Twice] = {}
    for slice_, keys in days.items():
        near, same = 0, 0
        for at, key in enumerate(keys):
            elsewhere = [
                abs((other.event_date - slice_.event_date).days)
                for other, others in days.items()
                for place, one in enumerate(others)
                if one == key and (other, place) != (slice_, at)
            ]
            near += any(gap <= window for gap in elsewhere)
            same += 0 in elsewhere
        if near:
            expected[slice_] = Twice(near, same)

    def tables(key: Slice) -> Any:
        told = [{"_key_a": first, "_key_b": second} for first, second in days[key]]
        return in_batches(told, [len(told) // 2], KEY_TYPES)

    whole = [keys_among(None, a_file(key), tables(key)) for key in days]
    assert keys_twice(whole, window) == expected

    suspected, _ = occurring_twice([one.first for one in whole])
    among = [keys_among(suspected.tobytes(), a_file(key), tables(key)) for key in days]
    assert keys_twice(among, window) == expected
    assert set(np.frombuffer(b"".join(one.first for one in among), np.int64).tolist()) == set(suspected.tolist())

    by_range: dict[int, list[KeyRows]] = {}
    for number, part in keys_by_range({}, ranges, whole):
        assert 0 <= number < ranges
        by_range.setdefault(number, []).append(part)
    found: dict[Slice, Twice] = {}
    for parts in by_range.values():
        for key, one in keys_twice(parts, window).items():
            found[key] = Twice(*map(sum, zip(found.get(key, Twice()), one, strict=True)))
    assert found == expected
