"""Keys of two states of a slice are compared as by plain Python, and moved keys are found on days within the window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from itertools import starmap

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.file_rows import SliceFile, with_columns
from pipeline_assets.transforms.keys import (
    EVENT_CONTENTS,
    KEYS,
    KeyRows,
    TwoStates,
    compared,
    compared_states,
    contents_of,
    keys_among,
    moved,
    named_contents,
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
    columns = dict(
        zip(("_key_a", "_key_b", "_meaning_hash", "insert_id", "uuid"), zip(*rows, strict=True), strict=True)
    )
    return with_columns(pa.table({name: list(values) for name, values in columns.items()}), EVENTS.types)


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
    """Scenario: totals by a column that may be null or empty. Outcome: rows with an equal column are compared by their totals."""
    contents = named_contents({"project_id": "string", "currency": "string"}, {"revenue": "decimal(38,6)"})

    def told(totals: dict[str | None, Decimal | None]) -> list[bytes]:
        columns = {"project_id": ["1"] * len(totals), "currency": [*totals], "revenue": [*totals.values()]}
        rows = with_columns(pa.table({name: pa.array(column) for name, column in columns.items()}), contents.types)
        return [contents_of(contents, FILE, iter([rows]))[1]]

    ((_, found),) = compared_states(Shelf({}), contents, [TwoStates(KEY, told(before), told(after))])
    kept = [name for name in before.keys() & after.keys() if before[name] == after[name]]
    assert (found.kept, found.changed) == (len(kept), len(before.keys() & after.keys()) - len(kept))
    assert Counter(found.differing["is_added"].to_pylist()) == Counter(
        [True] * len(after.keys() - before.keys()) + [False] * len(before.keys() - after.keys())
    )


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
        halves = list(starmap(lambda first, second: {"_key_a": first, "_key_b": second}, [*pairs, (99, 1)]))
        file = SliceFile("refined/events", key, "f", 1, 1)
        held[True].append(keys_among(wanted, file, iter([pa.Table.from_pylist(halves)])))
    assert moved(KEY, differing, held, window) == {True: window, False: 0}
