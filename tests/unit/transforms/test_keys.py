"""Keys that slices exchange, that a partial rollback breaks, and that differ between states equal plain Python's."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.file_rows import SliceFile, reduced_batches, with_columns
from pipeline_assets.transforms.keys import (
    BEFORE,
    BUILT,
    EVENT_CONTENTS,
    KEYS,
    NOW,
    RAW,
    THEN,
    KeyRows,
    TwoStates,
    compared,
    compared_states,
    contents_of,
    keys_among,
    keys_by_range,
    linked,
    moved,
    named_contents,
    torn,
)
from tests.unit.transforms.test_write_objects import Shelf

DAY = date(2026, 2, 2)
KEY = Slice(DAY, "1")
EVENTS = EVENT_CONTENTS
FILE = SliceFile("refined/events", KEY, "f.parquet", 1, 1)
_ROWS = st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 2), st.integers(0, 1)), max_size=12)
Row = tuple[int, int, int]


def _columns(rows: Sequence[Row]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.asarray(rows, dtype=np.int64).reshape(-1, 3).T


def _expected(before: Sequence[Row], after: Sequence[Row]) -> tuple[int, int, Counter[tuple[int, int, bool]]]:
    kept = Counter(before) & Counter(after)
    left, came = (Counter(row[:2] for row in (Counter(rows) - kept).elements()) for rows in (before, after))
    changed = left & came
    differing = Counter({(*key, True): count for key, count in (came - changed).items()})
    differing.update({(*key, False): count for key, count in (left - changed).items()})
    return kept.total(), changed.total(), differing


@given(_ROWS, _ROWS, st.integers(1, 3))
def test_keys_are_kept_changed_gained_and_lost_whole_and_in_parts(
    before: list[Row], after: list[Row], parts: int
) -> None:
    """Scenario: rows without ids share key and meaning, keys share a half. Outcome: rows are counted pair by pair."""
    expected = _expected(before, after)
    was, is_now = ([_columns(rows).tobytes()] for rows in (before, after))
    told = compared_states(Shelf({}), EVENTS, [TwoStates(KEY, was, is_now, part, parts) for part in range(parts)])
    whole = compared(*(tuple(_columns(rows)) for rows in (before, after)))  # type: ignore[arg-type]
    total = told[0][1]
    for key, one in told[1:]:
        assert key == KEY
        total += one
    for found in (whole, total):
        differing = Counter(tuple(row.values()) for row in found.differing.to_pylist())
        assert (found.kept, found.changed, differing) == expected


def _raw(rows: Sequence[tuple[int, int, int, str | None, str | None]]) -> pa.Table:
    names = ["_key_a", "_key_b", "_meaning_hash", "insert_id", "uuid"]
    return with_columns(pa.table([list(values) for values in zip(*rows, strict=True)], names), EVENTS.types)


def test_the_meaning_is_the_key_of_a_row_without_an_id() -> None:
    rows = _raw([(1, 2, 3, "i", None), (4, 5, 6, " ", "u"), (7, 8, 9, None, "\u200b"), (7, 8, 9, "", None)])
    key, told = contents_of(EVENTS, FILE, iter([rows.slice(0, 1), rows.slice(1)]))
    found = np.frombuffer(told, np.int64).reshape(3, -1).T
    assert key == KEY
    assert [tuple(row) for row in found.tolist()] == [(1, 2, 3), (4, 5, 6), (9, 0, 9), (9, 0, 9)]
    assert contents_of(EVENTS, FILE, iter([])) == (KEY, b"")


_TOTALS = st.dictionaries(
    st.sampled_from([None, "", "EUR", "USD"]), st.sampled_from([None, Decimal(0), Decimal("0.000001"), Decimal(-1)])
)


@given(_TOTALS, _TOTALS)
def test_rows_of_an_aggregate_are_kept_changed_gained_and_lost(
    before: dict[str | None, Decimal | None], after: dict[str | None, Decimal | None]
) -> None:
    """Scenario: totals by a column that may be null or empty. Outcome: rows with equal columns are compared by totals."""
    contents = named_contents({"project_id": "string", "currency": "string"}, {"revenue": "decimal(38,6)"})

    def told(totals: dict[str | None, Decimal | None]) -> list[bytes]:
        columns = {"project_id": ["1"] * len(totals), "currency": [*totals], "revenue": [*totals.values()]}
        rows = with_columns(pa.table({name: pa.array(column) for name, column in columns.items()}), contents.types)
        return [contents_of(contents, FILE, iter([rows]))[1]]

    ((_, found),) = compared_states(Shelf({}), contents, [TwoStates(KEY, told(before), told(after))])
    kept = [name for name in before.keys() & after.keys() if before[name] == after[name]]
    assert (found.kept, found.changed) == (len(kept), len(before.keys() & after.keys()) - len(kept))
    differing = [name not in before for name in before.keys() ^ after.keys()]
    assert Counter(found.differing["is_added"].to_pylist()) == Counter(differing)


@pytest.mark.parametrize("window", [1, 2])
def test_a_key_moved_if_a_day_within_the_window_held_it(window: int) -> None:
    """Scenario: keys gained and lost, held one, two and three days away, of another project, of the slice itself."""
    differing = pa.table([[1, 2, 3, 4, 5, 6, 1], [10, 20, 30, 40, 50, 60, 10], [True] * 6 + [False]], schema=KEYS)
    days = {1: (1, 10), 2: (2, 20), 3: (3, 30), 0: (5, 50)}
    told = [(Slice(DAY + timedelta(days=shift), "1"), [pair]) for shift, pair in days.items()]
    told += [(Slice(DAY - timedelta(days=1), "2"), [(4, 40)]), (Slice(DAY - timedelta(days=1), "1"), [(6, 61)])]
    wanted = np.arange(1, 7, dtype=np.int64).tobytes()
    held: dict[bool, list[KeyRows]] = {True: [], False: []}
    for key, pairs in told:
        halves = pa.table([list(half) for half in zip(*pairs, (99, 1), strict=True)], ["_key_a", "_key_b"])
        held[True].append(keys_among(wanted, replace(FILE, key=key), iter([halves])))
    assert moved(KEY, differing, held, window) == {True: window, False: 0}


Key = tuple[int, int]
Held = Mapping[Slice, Sequence[Key]]
Result = TypeVar("Result")
_DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(6)]
_HALVES = st.sampled_from([-(1 << 63), -1, 0, (1 << 63) - 1])
_SLICES = st.builds(Slice, st.sampled_from(_DAYS), st.sampled_from(["1", "2"]))
_HELD = st.dictionaries(_SLICES, st.lists(st.tuples(_HALVES, st.integers(0, 1)), max_size=5), max_size=6)


def _rows(states: Mapping[int, Held]) -> list[KeyRows]:
    """Each slice's keys in each state, as tasks give them from two files."""
    told = []
    for state, held in states.items():
        for key, keys in held.items():
            for part in (keys[:2], keys[2:]):
                halves = np.asarray(part, np.int64).reshape(-1, 2).T
                told.append(KeyRows(key, halves[0].tobytes(), halves[1].tobytes(), state))
    return told


def _by_ranges(
    collect: Callable[[int, Iterable[KeyRows]], Result], rows: Sequence[KeyRows], ranges: int
) -> list[Result]:
    by_range: dict[int, list[KeyRows]] = {}
    for number, part in keys_by_range({}, ranges, rows):
        by_range.setdefault(number, []).append(part)
    return [collect(number, parts) for number, parts in by_range.items()]


def _are_near(one: Slice, other: Slice, window: int) -> bool:
    return one.project_id == other.project_id and 0 < abs((one.event_date - other.event_date).days) <= window


def _links(before: Held, staged: Held, raw: Held, built: set[Slice], window: int) -> set[frozenset[Slice]]:
    every = {*before, *staged, *raw}
    was, is_raw = ({key: set(held.get(key, ())) for key in every} for held in (before, raw))
    after = {key: set(staged.get(key, ())) if key in built else was[key] for key in every}
    left = {(key.project_id, one) for key in built & every for one in was[key] - after[key]}
    moved = {
        key: (was[key] - after[key] if key in built else set())
        | {one for one in is_raw[key] - was[key] if (key.project_id, one) in left}
        for key in every
    }
    near = [(one, other) for one in every for other in every if _are_near(one, other, window)]
    ways = [(moved[a] & moved[b] or ((a in built) != (b in built) and after[a] & after[b])) for a, b in near]
    return {frozenset(pair) for pair, way in zip(near, ways, strict=True) if way}


_ONE, _TWO, _FAR = (Slice(_DAYS[place], "1") for place in (0, 1, 3))


def _holding(*slices: Slice) -> Held:
    return dict.fromkeys(slices, ((7, 7),))


@settings(max_examples=250)
@given(_HELD, _HELD, _HELD, st.sets(_SLICES, max_size=4), st.integers(0, 3), st.integers(1, 5))
# The key leaves the built day, and the other day is to gain it, has it, or gains nothing.
@example(_holding(_ONE), {}, _holding(_ONE, _TWO), {_ONE}, 1, 1)
@example(_holding(_ONE, _TWO), {}, _holding(_ONE, _TWO), {_ONE}, 1, 1)
@example(_holding(_ONE), {}, _holding(_ONE), {_ONE}, 1, 1)
# Another day still holds what the built day gains; the day stays; beyond the window it is another event.
@example(_holding(_TWO), _holding(_ONE), _holding(_ONE, _TWO), {_ONE}, 1, 1)
@example(_holding(_ONE), _holding(_ONE), _holding(_ONE, _TWO), {_ONE}, 1, 1)
@example(_holding(_ONE), {}, _holding(_ONE, _FAR), {_ONE}, 1, 1)
def test_slices_are_linked_by_keys_that_leave_and_keys_on_two_days(
    before: Held, staged: Held, raw: Held, built: set[Slice], window: int, ranges: int
) -> None:
    """Scenario: few keys on six days of two projects, published, built, in raw. Outcome: the rule's pairs."""
    states = {BEFORE: before, BUILT: {key: keys for key, keys in staged.items() if key in built}, RAW: raw}
    expected = _links(before, states[BUILT], raw, built, window)
    linking, rows = partial(linked, frozenset(built), window), _rows(states)
    found = linking(0, rows)
    assert {frozenset(pair) for pair in found} == expected
    assert len(found) == len(expected)
    assert set().union(*_by_ranges(linking, rows, ranges)) == found


def _torn(then: Held, now: Held, chosen: set[Slice], window: int) -> Counter[Slice]:
    every = {*then, *now}
    was, is_now = ({key: set(held.get(key, ())) for key in every} for held in (then, now))
    torn: Counter[Slice] = Counter()
    for key in every - chosen:
        for one in was[key] | is_now[key]:
            near = [other for other in every & chosen if _are_near(key, other, window)]
            same = [other for other in every if other.project_id == key.project_id]
            is_doubled = one in is_now[key] and any(one in was[other] for other in near)
            is_taken = one in was[key] and any(one in is_now[other] for other in near)
            is_held = any(one in (was[other] if other in chosen else is_now[other]) for other in same)
            torn[key] += is_doubled or (is_taken and not is_held)
    return +torn


@settings(max_examples=250)
@given(_HELD, _HELD, st.sets(_SLICES, max_size=4), st.integers(0, 3), st.integers(1, 5))
def test_a_rollback_of_some_days_doubles_and_loses_what_the_rule_says(
    then: Held, now: Held, chosen: set[Slice], window: int, ranges: int
) -> None:
    """Scenario: few keys on six days of two projects, then and now. Outcome: the rule's keys by day, also by ranges."""
    tearing, rows = partial(torn, frozenset(chosen), window), _rows({THEN: then, NOW: now})
    found = tearing(0, rows)
    assert found == _torn(then, now, chosen, window)
    assert sum(_by_ranges(tearing, rows, ranges), Counter()) == found


_OF_SLICE = st.tuples(st.sampled_from([DAY, date(2026, 2, 3)]), st.sampled_from(["1", "2"]), st.integers(0, 9))


def _read(file: SliceFile, tables: Iterator[pa.Table]) -> tuple[str, Slice, list[tuple[int, None]]]:
    found = [(row["n"], row["lacking"]) for rows in tables for row in rows.to_pylist()]
    return file.table, file.key, found


@given(st.lists(_OF_SLICE, max_size=20), st.integers(1, 5))
def test_each_slice_of_a_partition_is_reduced_once(rows: list[tuple[date, str, int]], size: int) -> None:
    """Outcome: one result for each slice, from all of its rows; a missing column is null."""
    rows = sorted(rows)
    schema = pa.schema([("event_date", pa.date32()), ("project_id", pa.string()), ("n", pa.int32())])
    whole = pa.table([list(column) for column in zip(*rows, strict=True)] or [[], [], []], schema=schema)
    types = {"n": "bigint", "lacking": "string"}
    batches = whole.to_batches(max_chunksize=size)
    reduced = reduced_batches("raw/regular_events", "event_date", types, _read, batches)
    told = [pickle.loads(row["result"]) for batch in reduced for row in batch.to_pylist()]
    expected: dict[Slice, list[tuple[int, None]]] = {}
    for day, project, number in rows:
        expected.setdefault(Slice(day, project), []).append((number, None))
    assert told == [("raw/regular_events", key, numbers) for key, numbers in expected.items()]
