"""Tasks that decide a contest by ranges of keys reach one process's outcome."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.identity import RawRow, is_tie, rank
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source
from pipeline_assets.transforms import contest_tasks
from pipeline_assets.transforms.contest import READ_TYPES, best_of_days
from pipeline_assets.transforms.file_rows import SliceFile, as_bytes, from_bytes, with_columns
from pipeline_assets.transforms.keys import first_halves, occurring_twice
from tests.support.row_hash import row_hash
from tests.unit.transforms.test_contest import DAY, ROWS, table_of

_PRECEDENCE = (Source.BACKFILL, Source.REGULAR)
_FILE = SliceFile("raw/regular_events", Slice(DAY, "1"), "f.parquet", 1, 4)


def _spread(table: pa.Table) -> pa.Table:
    """Rows whose first halves fall into different ranges, like hashes."""
    keys = table["_key_a"].to_pylist()
    halves = pa.array([(key * 0x9E3779B97F4A7C15 + (1 << 63)) % (1 << 64) - (1 << 63) for key in keys], pa.int64())
    return table.set_column(table.schema.get_field_index("_key_a"), "_key_a", halves)


def _told(outcome: contest_tasks.Outcome) -> dict[str, Any]:
    rows = {at: [row for part in parts for row in part.to_pylist()] for at, parts in outcome.losers.items()}
    losers = {at: sorted(tuple(row.values()) for row in of_slice) for at, of_slice in rows.items()}
    return {"reasons": outcome.reasons, "losers": losers, "competing": outcome.competing}


@settings(max_examples=120)
@given(ROWS.filter(bool), st.integers(0, 3), st.integers(1, 3), st.integers(0, 3), st.integers(2, 6))
def test_parts_have_the_outcome_of_the_whole(
    rows: list[RawRow], window: int, usual: int, hot: int, hot_rows: int
) -> None:
    """Keys with several rows count as hot, and their rows are divided by row id and by rank."""
    table = _spread(table_of(rows))
    wanted = frozenset(Slice(row.event_date, row.project_id) for row in rows[::2])
    whole = contest_tasks.Deciding(wanted, _PRECEDENCE, window)(0, [as_bytes(table)])

    halves, counts = np.unique(table["_key_a"].to_numpy(), return_counts=True)
    ranges = contest_tasks.Ranges(usual, hot, halves[counts >= hot_rows].tobytes() if hot else b"")
    is_hot = np.isin(table["_key_a"].to_numpy(), np.frombuffer(ranges.hot_halves, np.int64))
    guests = as_bytes(best_of_days(table.filter(pa.array(is_hot)).combine_chunks(), _PRECEDENCE))
    deciding = contest_tasks.Deciding(wanted, _PRECEDENCE, window, ranges, guests if hot else None)
    divided: dict[int, list[bytes]] = defaultdict(list)
    for at in range(0, table.num_rows, 7):
        for part, of_part in ranges.divided(table.slice(at, 7).combine_chunks()):
            divided[part].append(as_bytes(of_part))
    assert all(0 <= part < ranges.parts for part in divided)
    outcome = contest_tasks.Outcome()
    for part, told in divided.items():
        outcome.add(deciding(part, told))
    assert _told(outcome) == _told(whole)


def test_no_part_holds_all_rows_of_a_hot_key() -> None:
    """Scenario: 8,000 rows of one key with their own row ids. Outcome: each of eight parts has about an eighth."""
    place = ("1", DAY, Source.REGULAR, "o")
    table = table_of([RawRow(*place, n, (), "i", f"u{n}", None, None, (n, 0)) for n in range(8_000)])
    ranges = contest_tasks.Ranges(1, 8, np.asarray([-1], np.int64).tobytes())
    sizes: Counter[int] = Counter()
    for part, of_part in ranges.divided(table):
        sizes[part] += of_part.num_rows
    assert max(size for part, size in sizes.items() if part < 1 + 8) < 8_000 / 4
    assert len([part for part in sizes if 1 <= part < 9]) == 8


@given(st.lists(st.lists(st.integers(-3, 3), max_size=20), max_size=4))
def test_halves_that_occur_twice_are_found_with_their_rows(files: list[list[int]]) -> None:
    halves, counts = occurring_twice([np.asarray(file, np.int64).tobytes() for file in files])
    expected = {key: count for key, count in Counter(half for file in files for half in file).items() if count > 1}
    assert dict(zip(halves.tolist(), counts.tolist(), strict=True)) == expected
    assert halves.tolist() == sorted(expected)


def _raw(keys: Sequence[int | None]) -> pa.Table:
    halves = pa.array(keys, pa.int64())
    return with_columns(pa.table({"_key_a": halves, "_key_b": halves}), READ_TYPES)


def test_a_file_tells_its_halves_and_its_rows_among_some() -> None:
    """Outcome: only rows of the wanted keys, of the wanted days' best."""
    batches = [_raw([1, 2, None]), _raw([2, 2, 3])]
    assert np.frombuffer(first_halves(_FILE, iter(batches)), np.int64).tolist() == [1, 2, 2, 2, 3]
    assert contest_tasks.heavy_halves(3, _FILE, iter(batches)) == {2: 3}
    assert contest_tasks.heavy_halves(3, _FILE, iter([])) == {}
    sources = {"raw/regular_events": "regular"}
    wanted = np.asarray([2, 3], np.int64).tobytes()
    for halves, expected in ((wanted, [2, 2, 2, 3]), (None, [1, 2, 2, 2, 3]), (b"", [])):
        found = from_bytes(contest_tasks.RowsAmong(sources, halves)(_FILE, iter(batches)))
        assert found["_key_a"].to_pylist() == expected
        assert set(found["_source"].to_pylist()) <= {"regular"}
    at = batches[0].schema.get_field_index("_line_number")
    numbers = [pa.array([first, first + 1, first + 2], pa.int32()) for first in (0, 10)]
    lines = [batch.set_column(at, "_line_number", one) for batch, one in zip(batches, numbers, strict=True)]
    best = from_bytes(contest_tasks.RowsAmong(sources, wanted, _PRECEDENCE)(_FILE, iter(lines)))
    assert sorted(zip(best["_key_a"].to_pylist(), best["_line_number"].to_pylist(), strict=True)) == [(2, 11), (3, 12)]


def _rank(row: RawRow) -> tuple[object, ...]:
    return rank(row, _PRECEDENCE)


def _expected(rows: Sequence[RawRow], window: int) -> dict[Slice, contest_tasks.CompetingSum]:
    """By the rule's words: each row of another day in the window whose key the slice holds, equal ones as one."""
    best: dict[tuple[object, ...], RawRow] = {}
    for row in rows:
        at = (row.key, row.event_date, row.content)
        best[at] = max(best.get(at, row), row, key=_rank)
    rows = list(best.values())
    told = table_of(rows).select(list(contest_tasks._RIVAL)).to_pylist()
    hashes = [row_hash(one, contest_tasks._RIVAL) for one in told]
    found = {}
    for key in [Slice(row.event_date, row.project_id) for row in rows]:
        own = [row for row in rows if (row.event_date, row.project_id) == (key.event_date, key.project_id)]
        digest, is_tied = EMPTY, False
        for row, (first, second) in zip(rows, hashes, strict=True):
            distance = abs((row.event_date - key.event_date).days)
            same = [one for one in own if one.key == row.key]
            if same and 1 <= distance <= window:
                digest += Digest(1, first, second)
                is_tied |= any(_order(one) == _order(row) for one in same)
        if digest.rows:
            found[key] = contest_tasks.CompetingSum(digest, is_tied)
    return found


def _order(row: RawRow) -> tuple[object, ...]:
    return row.received_at, row.processed_at, row.source


@settings(max_examples=150)
@given(ROWS, st.integers(0, 3))
def test_digests_are_those_of_all_pairs(rows: list[RawRow], window: int) -> None:
    found = contest_tasks.competing_sums(table_of(rows), _PRECEDENCE, window) if rows else {}
    assert found == _expected(rows, window)
    assert all(is_tie(str(told)) == told.is_tied for told in found.values())


@settings(max_examples=100)
@given(ROWS, st.integers(1, 3))
def test_parts_add_up_where_equal_orders_stay_together(rows: list[RawRow], window: int) -> None:
    """Scenario: rows are divided by time; the best row of each key and day is a guest of both parts."""
    parts = []
    guests = list({(row.key, row.event_date): row for row in sorted(rows, key=_rank)}.values())
    for part in (0, 1):
        own = [row for row in rows if (hash(_order(row)[:2]) & 1) == part]
        if own:
            is_guest = np.asarray([False] * len(own) + [True] * len(guests))
            table = table_of([*rows, *own, *guests]).slice(len(rows))
            parts.append(contest_tasks.competing_sums(table, _PRECEDENCE, window, is_guest))
    total: dict[Slice, contest_tasks.CompetingSum] = {}
    for part in parts:
        total |= {key: total.get(key, contest_tasks.CompetingSum()) + one for key, one in part.items()}
    assert total == _expected(rows, window)
