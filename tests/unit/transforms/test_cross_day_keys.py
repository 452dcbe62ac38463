"""Slices that exchange keys, and keys that a partial rollback would break, are those that plain Python finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.keys import (
    BEFORE,
    BUILT,
    NOW,
    RAW,
    THEN,
    KeyRows,
    keys_by_range,
    linked,
    torn,
)

Key = tuple[int, int]
Held = Mapping[Slice, Sequence[Key]]
Result = TypeVar("Result")
_DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(6)]
_HALVES = st.sampled_from([-(1 << 63), -1, 0, (1 << 63) - 1])
_SLICES = st.builds(Slice, st.sampled_from(_DAYS), st.sampled_from(["1", "2"]))
_HELD = st.dictionaries(_SLICES, st.lists(st.tuples(_HALVES, st.integers(0, 1)), max_size=5), max_size=6)


def _rows(states: Mapping[int, Held]) -> list[KeyRows]:
    """Each slice's keys in each state, as tasks tell them of two files."""
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
    return {
        frozenset((one, other))
        for one in every
        for other in every
        if _are_near(one, other, window)
        and (moved[one] & moved[other] or ((one in built) != (other in built) and after[one] & after[other]))
    }


@settings(max_examples=250, deadline=None)
@given(_HELD, _HELD, _HELD, st.sets(_SLICES, max_size=4), st.integers(0, 3), st.integers(1, 5))
def test_slices_are_linked_by_keys_that_leave_and_keys_on_two_days(
    before: Held, staged: Held, raw: Held, built: set[Slice], window: int, ranges: int
) -> None:
    """Scenario: few keys on six days of two projects, as published, as built, in raw. Outcome: the pairs of the rule; also if
    keys are divided into ranges."""
    states = {BEFORE: before, BUILT: {key: keys for key, keys in staged.items() if key in built}, RAW: raw}
    expected = _links(before, states[BUILT], raw, built, window)
    linking, rows = partial(linked, frozenset(built), window), _rows(states)
    found = linking(0, rows)
    assert {frozenset(pair) for pair in found} == expected
    assert len(found) == len(expected)
    assert set().union(*_by_ranges(linking, rows, ranges)) == found


_ONE, _TWO, _FAR = (Slice(_DAYS[place], "1") for place in (0, 1, 3))
_K: Key = (7, 7)


@pytest.mark.parametrize(
    ("before", "staged", "raw", "links"),
    [
        # The key leaves the built day; the other day is to gain it.
        ([_ONE], [], [_ONE, _TWO], True),
        # The day is to gain it, but has it: nothing moves.
        ([_ONE, _TWO], [], [_ONE, _TWO], False),
        # No day is to gain it.
        ([_ONE], [], [_ONE], False),
        # Another day still holds what the built day gains.
        ([_TWO], [_ONE], [_ONE, _TWO], True),
        # The day stays as it is; others' raw rows alone link nothing.
        ([_ONE], [_ONE], [_ONE, _TWO], False),
        # Beyond the window the same key is another event.
        ([_ONE], [], [_ONE, _FAR], False),
    ],
)
def test_each_way_to_be_linked(before: list[Slice], staged: list[Slice], raw: list[Slice], links: bool) -> None:
    """One key, of which the first day is built."""
    states = {state: dict.fromkeys(slices, (_K,)) for state, slices in ((BEFORE, before), (BUILT, staged), (RAW, raw))}
    found = linked(frozenset([_ONE]), 1, 0, _rows(states))
    assert found == ({(_ONE, _TWO)} if links else set())


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


@settings(max_examples=250, deadline=None)
@given(_HELD, _HELD, st.sets(_SLICES, max_size=4), st.integers(0, 3), st.integers(1, 5))
def test_a_rollback_of_some_days_doubles_and_loses_what_the_rule_says(
    then: Held, now: Held, chosen: set[Slice], window: int, ranges: int
) -> None:
    """Scenario: few keys on six days of two projects, then and now. Outcome: the keys of the rule, by day; also by ranges."""
    tearing, rows = partial(torn, frozenset(chosen), window), _rows({THEN: then, NOW: now})
    found = tearing(0, rows)
    assert found == _torn(then, now, chosen, window)
    assert sum(_by_ranges(tearing, rows, ranges), Counter()) == found
