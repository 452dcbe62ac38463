"""Sums of files equal those of their rows, and exactly the rows that share a key nearby are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.identity import named
from pipeline_assets.domain.lateness import GREATEST_SECONDS, LatenessSketch, merged
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.formats.amplitude.columns import TRANSPORT_COLUMNS
from pipeline_assets.tables.events import event_hashes
from pipeline_assets.transforms import row_sums
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.keys import KEY_TYPES, KeyRows, first_halves, keys_among, keys_by_range, occurring_twice
from tests.support.reference import bin_of
from tests.support.row_hash import event_hash

KEY = Slice(date(2026, 5, 10), "10001")
FILE = SliceFile("raw/regular_events", KEY, "f.parquet", 1, 1)
SUMMING = row_sums.SummingRaw()
AT = datetime(2026, 5, 10, 10, 30, tzinfo=UTC)
_POWERS = [1 << n for n in range(34)]
_LATENESS = st.one_of(
    st.integers(-(10**9), 10**9),
    st.sampled_from([sign * (power + near) for power in _POWERS for near in (-1, 0, 1) for sign in (1, -1)]),
    st.sampled_from([edge + near for edge in GREATEST_SECONDS[:550] for near in (0, 1)]),
)
LONGS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([-(1 << 63), (1 << 63) - 1]))


@st.composite
def raw_rows(draw: st.DrawFn) -> dict[str, Any]:
    """A row with the columns of SUMMING and the objects; micros that are no whole seconds, missing times."""
    micros = draw(_LATENESS) * 1_000_000 + draw(st.sampled_from([0, 0, 1, 999_999]))
    received = draw(st.none() | st.just(AT)) if draw(st.booleans()) else AT
    return {
        "_hash_a": draw(LONGS),
        "_hash_b": draw(LONGS),
        "_object_key": draw(st.sampled_from(["o1", "o2", "é"])),
        "_object_etag": draw(st.sampled_from(["e1", "e2", None])),
        "_line_number": draw(st.integers(1, 4)),
        "_arrival_date": draw(st.sampled_from([KEY.event_date, KEY.event_date + timedelta(days=1), None])),
        "event_time": draw(st.sampled_from([None, *[AT - timedelta(microseconds=micros)] * 5])),
        "server_upload_time": received,
        "_key_a": draw(LONGS),
    }


def a_table(rows: Sequence[dict[str, Any]], types: dict[str, str]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], ARROW_TYPES[kind]) for name, kind in types.items()})


def in_batches(rows: Sequence[dict[str, Any]], cuts: Sequence[int], types: dict[str, str]) -> Iterator[pa.Table]:
    cuts = sorted(min(cut, len(rows)) for cut in cuts)
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        yield a_table(rows[start:end], types)


def together(found: Sequence[tuple[Slice, dict[date | None, row_sums.ArrivedRows]]]) -> dict[Any, Any]:
    days = {day for _, arrivals in found for day in arrivals}
    return {day: row_sums.arrived(arrivals[day] for _, arrivals in found if day in arrivals).batch_day for day in days}


def digest_of(rows: Sequence[dict[str, Any]]) -> Digest:
    return Digest(len(rows), *(sum(row[name] for row in rows) for name in ("_hash_a", "_hash_b")))


def sketch_of(row: dict[str, Any]) -> LatenessSketch:
    if row["server_upload_time"] is None or row["event_time"] is None:
        return LatenessSketch(unknown=1)
    seconds = (row["server_upload_time"] - row["event_time"]) // timedelta(seconds=1)
    return LatenessSketch({bin_of(seconds): 1}, 0, seconds, seconds)


_SPLITS = st.tuples(st.lists(raw_rows(), max_size=25), st.lists(st.integers(0, 25), max_size=4), st.randoms())


@settings(max_examples=120)
@given(_SPLITS)
def test_sums_of_raw_are_those_of_its_rows_in_any_order_and_grouping(given_rows: tuple[Any, ...]) -> None:
    """Scenario: extreme hashes and times of three arrival days, in one file, and in two with other orders and batches.
    Outcome: digests, sketches and keys of plain Python, and an equal lineage both times."""
    rows, cuts, random = given_rows
    one = SUMMING(FILE, in_batches(rows, cuts, SUMMING.types))
    shuffled = random.sample(rows, len(rows))
    half = len(rows) // 2
    two = [SUMMING(FILE, in_batches(part, [], SUMMING.types)) for part in (shuffled[:half], shuffled[half:])]

    days: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        days.setdefault(row["_arrival_date"], []).append(row)
    measured = together([one])
    assert measured.keys() == days.keys()
    for day, own in days.items():
        assert measured[day].digest == digest_of(own)
        assert measured[day].lateness.to_text() == merged(map(sketch_of, own)).to_text()
    assert together(two) == measured
    assert [part.lateness for part in together(two).values()] == [measured[day].lateness for day in together(two)]
    # Objects are counted with their greatest version.
    found = row_sums.objects_together([row_sums.objects_of(FILE, in_batches(rows, cuts, row_sums.OBJECT_TYPES))] * 2)
    counts = Counter(("10001", row["_arrival_date"], row["_object_key"]) for row in rows)
    assert {key: one.rows for key, one in found.items()} == {key: 2 * count for key, count in counts.items()}
    for (_, day, name), one in found.items():
        of_object = [row for row in rows if (row["_arrival_date"], row["_object_key"]) == (day, name)]
        assert one.etag == max((row["_object_etag"] for row in of_object if row["_object_etag"]), default=None)


ROW = {
    "_hash_a": 5, "_hash_b": -7, "_object_key": "o1", "_line_number": 3, "_arrival_date": KEY.event_date, "event_time": AT,
    "server_upload_time": AT, "_key_a": 1,
}  # fmt: skip


@pytest.mark.parametrize("other", [{"_object_key": "o2"}, {"_line_number": 4}, {"_hash_a": 6}, {"_hash_b": -6}])
def test_a_row_in_another_place_has_another_lineage(other: dict[str, Any]) -> None:
    """Scenario: rows that differ in object, line or half a hash, or swap it. Outcome: other lineage, in both halves."""

    def lineage(*rows: dict[str, Any]) -> list[str]:
        part = together([SUMMING(FILE, in_batches(rows, [], SUMMING.types))])[KEY.event_date]
        return str(part.lineage).split(":")[1:]

    changed = sum(one != two for one, two in zip(lineage(ROW), lineage({**ROW, **other}), strict=True))
    assert changed == (1 if "_hash_a" in other or "_hash_b" in other else 2)
    far = {**ROW, "_object_key": "far", "_line_number": 77, "_hash_a": 70, "_hash_b": 71}
    (name,) = other
    swapped = ({**ROW, name: far[name]}, {**far, name: ROW[name]})
    assert lineage(ROW, far) != lineage(*swapped)
    assert lineage(ROW, far) == lineage(far, ROW)


CHECKING = row_sums.SummingRaw(event_hashes())


def sound_rows(count: int) -> pa.Table:
    types = event_hashes().types
    rows: list[dict[str, Any]] = [
        {**dict.fromkeys(types), "app": 10001, "insert_id": f"i{n}", "event_time": AT, "server_upload_time": AT}
        for n in range(count)
    ]
    table = a_table(rows, dict(types))
    made = event_hashes().of(table.append_column("project_id", pa.repeat(KEY.project_id, count)))
    for name, values in made.items():
        table = table.append_column(name, values)
    places = [{**ROW, "_line_number": n} for n in range(count)]
    kinds = {name: CHECKING.types[name] for name in ("_object_key", "_line_number", "_arrival_date")}
    for name, column in zip(kinds, a_table(places, kinds).columns, strict=True):
        table = table.append_column(name, column)
    assert made["_hash_a"][0].as_py() == event_hash(rows[0], types, TRANSPORT_COLUMNS)[0]
    return table


@pytest.mark.parametrize("name", [*HASH_COLUMNS, "insert_id"])
def test_a_false_hash_makes_the_digest_equal_none(name: str) -> None:
    """Outcome: a changed or missing hash or column gives a digest that equals no sound one, alone and in sums."""
    table = sound_rows(3)
    (sound,) = CHECKING(FILE, iter([table]))[1].values()
    (stored,) = row_sums.SummingRaw()(FILE, iter([table.select(list(row_sums.SummingRaw().types))]))[1].values()
    assert sound == stored
    at = table.column_names.index(name)
    for value in (None, "x" if name == "insert_id" else 1):
        values = [*table.column(name).to_pylist()[:2], value]
        broken = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
        (found,) = CHECKING(FILE, iter([broken]))[1].values()
        assert found.digest.rows == 3
        assert found.digest != replace(found.digest, version=sound.digest.version)
        sums = (row_sums.arrived(both).digest.version for both in ([found, sound], [sound, found]))
        assert {*sums} == {found.digest.version}


SUMMING_REFINED = row_sums.SummingRefined()
NEXT_DAY = datetime(2026, 5, 11, tzinfo=AT.tzinfo)
_IDS = st.sampled_from([None, "", " ", "\u3000\u200b", "i"])
_BEFORE_1970 = datetime(1969, 12, 31, 23, tzinfo=AT.tzinfo)
_TIMES = st.sampled_from([None, AT, NEXT_DAY - timedelta(microseconds=1), NEXT_DAY, _BEFORE_1970])
_COLUMNS = {
    "_hash_a": LONGS, "_hash_b": LONGS, "insert_id": _IDS, "uuid": _IDS, "event_time": _TIMES,
    "server_upload_time": _TIMES, "_key_a": LONGS,
}  # fmt: skip
REFINED_ROWS = st.lists(st.fixed_dictionaries(_COLUMNS), max_size=25)


def a_file(key: Slice) -> SliceFile:
    return SliceFile("refined/events", key, "f.parquet", 1, 1)


def micros(rows: Sequence[dict[str, Any]], name: str) -> int | None:
    times = [row[name] for row in rows if row[name] is not None]
    return (max(times) - datetime(1970, 1, 1, tzinfo=AT.tzinfo)) // timedelta(microseconds=1) if times else None


@settings(max_examples=120)
@given(REFINED_ROWS, st.lists(st.integers(0, 25), max_size=3), st.randoms())
def test_sums_of_refined_are_those_of_its_rows_in_any_order_and_grouping(
    rows: list[Any], cuts: list[int], random: Any
) -> None:
    """Scenario: extreme hashes, blank ids, missing times, a day's first and last moment. Outcome: plain Python's counts."""
    one = SUMMING_REFINED(a_file(KEY), in_batches(rows, cuts, SUMMING_REFINED.types))
    ids = [(row["insert_id"], row["uuid"]) for row in rows]
    seen = [tuple(map(named, both)) for both in ids]
    received = [row["server_upload_time"] for row in rows]
    assert one.sums == row_sums.RefinedSums(
        digest_of(rows),
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
    parts = [in_batches(part, [], SUMMING_REFINED.types) for part in (shuffled[:half], shuffled[half:])]
    assert sum((SUMMING_REFINED(a_file(KEY), part).sums for part in parts), row_sums.RefinedSums()) == one.sums


_HALVES = st.sampled_from([-(1 << 63), -1, 0, 1, 7, (1 << 63) - 1])
KEYS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["1", "2"]), _HALVES, st.sampled_from([-5, 0, 9])), max_size=30
)


@settings(max_examples=200)
@given(KEYS, st.integers(0, 3), st.integers(1, 7))
def test_rows_that_share_a_key_are_found_exactly(
    rows: list[tuple[int, str, int, int]], window: int, ranges: int
) -> None:
    """Scenario: keys that share one half or both, on one day, within and beyond the window, in two projects.
    Outcome: plain Python's pairs, by a second pass over suspects or by an exchange of ranges."""
    days: dict[Slice, list[tuple[int, int]]] = {}
    for day, project, *key in rows:
        days.setdefault(Slice(date(2026, 5, 10 + day), project), []).append((key[0], key[1]))
    expected: dict[Slice, row_sums.Twice] = {}
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
            expected[slice_] = row_sums.Twice(near, same)

    def tables(key: Slice) -> Any:
        told = [{"_key_a": first, "_key_b": second} for first, second in days[key]]
        return in_batches(told, [len(told) // 2], KEY_TYPES)

    whole = [keys_among(None, a_file(key), tables(key)) for key in days]
    assert row_sums.keys_twice(whole, window) == expected

    suspected, _ = occurring_twice([one.first for one in whole])
    among = [keys_among(suspected.tobytes(), a_file(key), tables(key)) for key in days]
    assert row_sums.keys_twice(among, window) == expected
    assert set(np.frombuffer(b"".join(one.first for one in among), np.int64).tolist()) == set(suspected.tolist())

    by_range: dict[int, list[KeyRows]] = {}
    for number, part in keys_by_range({}, ranges, whole):
        assert 0 <= number < ranges
        by_range.setdefault(number, []).append(part)
    found: dict[Slice, row_sums.Twice] = {}
    for parts in by_range.values():
        for key, one in row_sums.keys_twice(parts, window).items():
            found[key] = row_sums.Twice(*map(sum, zip(found.get(key, row_sums.Twice()), one, strict=True)))
    assert found == expected
