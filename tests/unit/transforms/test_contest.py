"""The contest in numpy is the rule of domain/identity.py, row by row, and so it is where tasks decide by ranges of keys."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.identity import LOST_UNREAD, KeyKind, RawRow, RowFate, fate_of, is_tie, outcomes, rank
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source
from pipeline_assets.transforms import contest, contest_tasks
from pipeline_assets.transforms.contest import READ_TYPES, best_of_days
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.event_hashes import ROW_ID
from pipeline_assets.transforms.file_rows import SliceFile, as_bytes, from_bytes, with_columns
from pipeline_assets.transforms.keys import first_halves, occurring_twice
from tests.support.row_hash import row_hash
from tests.unit.domain.test_identity import delivered_whole

DAY = date(2026, 2, 2)
_TIMES = (None, *(datetime(2026, 2, 2, hour, tzinfo=UTC) for hour in (1, 2)))
_CONTENTS = [(first, second) for first in (-1, 0, 1) for second in (0, 1)]
_CHOICES: tuple[Sequence[Any], ...] = (
    ("1", "1", "1", "2"), range(8), list(Source), (None, "", "i", "i", "i", "j"), (None, " ", "u", "u", "v"),
    _TIMES, _TIMES, _CONTENTS, (False, True), ("a", "b", "\U0001f600"),
)  # fmt: skip
_AGAIN: Sequence[Sequence[Source]] = ((), (), (Source.BACKFILL,), (), (Source.REGULAR, Source.BACKFILL))
"""Sources that deliver every fifth row once more, and every fifth twice more."""
PRECEDENCES = st.permutations(list(Source))


def raw_rows_of(drawn: Sequence[tuple[Any, ...]]) -> list[RawRow]:
    rows = []
    for line, (project, day, source, *ids, received, processed, content, is_bad, name) in enumerate(drawn):
        unread = "no time" if is_bad and processed is None else None
        times = (received, processed, content, unread)
        rows.append(RawRow(project, DAY + timedelta(days=day), source, name, line, (7, "d"), *ids, *times))
    return delivered_whole(rows)


def delivered_again(rows: Sequence[RawRow]) -> list[RawRow]:
    """The rows, some with equal ones of another line and source."""
    return [
        replace(row, source=source, line_number=len(rows) * again + row.line_number)
        for row in rows
        for again, source in enumerate([row.source, *_AGAIN[row.line_number % len(_AGAIN)]])
    ]


def _random_rows(seed: int) -> list[tuple[Any, ...]]:
    rng = random.Random(seed)
    return [tuple(map(rng.choice, _CHOICES)) for _ in range(rng.randrange(60))]


_FEW = st.lists(st.tuples(*map(st.sampled_from, _CHOICES)), max_size=20)
ROWS = (_FEW | st.integers(0, 1 << 32).map(_random_rows)).map(raw_rows_of).map(delivered_again)


_COLUMNS = (
    "_day", "project_id", "_source", "_key_a", "_key_b", contest.RECEIVED, contest.PROCESSED,
    "_hash_a", "_hash_b", "_object_key", "_line_number", ROW_ID, "_is_nameless", "_is_unread",
)  # fmt: skip


def table_of(rows: Sequence[RawRow]) -> pa.Table:
    """The narrow rows; two keys at a time share the first half of their hash."""
    numbers: dict[tuple[object, ...], int] = {}
    made = []
    for row in rows:
        number = numbers.setdefault(row.key, len(numbers))
        day, is_nameless = (row.event_date - date(1970, 1, 1)).days, row.key[1] is KeyKind.CONTENT
        place = (day, row.project_id, row.source.value, number // 2 - 1, -number, row.received_at, row.processed_at)
        names = (*row.content, row.object_key, row.line_number, row.named_row_id, is_nameless, row.unread is not None)
        made.append(dict(zip(_COLUMNS, place + names, strict=True)))
    return pa.Table.from_pylist(made, contest.SCHEMA)


@settings(max_examples=200)
@given(ROWS, PRECEDENCES, st.integers(0, 3))
@example([], [*Source], 2)
def test_fates_are_those_of_the_pure_rule(rows: list[RawRow], precedence: list[Source], window: int) -> None:
    """Groups wider than the window, ties, nulls, blank ids, keys that share half of their hash, both sources."""
    decided = contest.decide(table_of(rows), precedence, window)

    expected = outcomes(rows, precedence, window)
    assert [contest.FATES[fate] for fate in decided.fates] == expected
    unread = []
    reasons: dict[Slice, Counter[str]] = {}
    losers: dict[tuple[Slice, str], list[tuple[str, int]]] = {}
    for row, fate in zip(rows, expected, strict=True):
        lost, key = fate_of(row, rows, precedence, window)[1], Slice(row.event_date, row.project_id)
        is_by_unread = lost is not None and lost.by_unread(row)
        unread.append(is_by_unread)
        reasons.setdefault(key, Counter()).update([fate.value, *([LOST_UNREAD] if is_by_unread else [])])
        if fate is not RowFate.WINNER:
            losers.setdefault((key, row.source.value), []).append((row.object_key, row.line_number))
    assert decided.is_by_unread.tolist() == unread
    assert decided.reasons() == reasons
    found = {at: table.select(["_object_key", "_line_number"]).to_pylist() for at, table in decided.losers().items()}
    places = {at: sorted(tuple(row.values()) for row in lost) for at, lost in found.items()}
    assert places == {at: sorted(lost) for at, lost in losers.items()}


def test_rows_that_another_program_wrote_twice_or_without_a_place_both_stay() -> None:
    """Outcome: no row of a doubled or missing place loses, because its place would also name the other one."""
    (row,) = raw_rows_of([("1", 0, Source.REGULAR, "i", "u", None, None, (1, 1), False, "a")])
    twice = table_of([row, row])
    placeless = [{**one, "_object_key": None, "_line_number": None} for one in twice.to_pylist()]
    for table in (twice, pa.Table.from_pylist(placeless, contest.SCHEMA)):
        assert contest.decide(table, list(Source), 1).losers() == {}


def test_a_key_of_very_many_rows_takes_time_in_proportion() -> None:
    """Scenario: 20,000 rows of one key on ten days. Outcome: one winner on each day without a better one nearby."""
    drawn = [("1", at % 10, Source.REGULAR, "i", f"u{at}", None, None, (at, 0), False, "a") for at in range(20_000)]
    decided = contest.decide(table_of(raw_rows_of(drawn)), list(Source), 2)
    counted = Counter(contest.FATES[fate] for fate in decided.fates)
    # The last day wins over two days before it, and every other day loses to a later one.
    assert counted == {RowFate.WINNER: 1, RowFate.SEND_DUPLICATE: 1_999, RowFate.SUPERSEDED_BY_OTHER_DAY: 18_000}


def test_a_files_rows_become_rows_of_a_contest() -> None:
    """Scenario: rows with a blank row id, half a key, no id. Outcome: those without a whole key take no part."""
    raw = {
        "_key_a": [1, None, 2, 3], "_key_b": [1, 1, None, 4], contest.RECEIVED: [datetime(2026, 2, 2, tzinfo=UTC)] * 4,
        contest.PROCESSED: [None] * 4, "_hash_a": [5] * 4, "_hash_b": [6] * 4, "_object_key": ["o"] * 4,
        "_line_number": [1, 2, 3, 4], "insert_id": ["i", "i", "i", "\u200b"], ROW_ID: ["", "u", "u", " "],
        "_extra": [f'{{"{contest.PROCESSED}": "soon"}}', None, None, None],
    }  # fmt: skip
    columns = {name: pa.array(raw[name], ARROW_TYPES[kind]) for name, kind in contest.READ_TYPES.items()}
    found = contest.contested_rows(pa.table(columns), Slice(DAY, "1"), "regular")
    assert found.schema == contest.SCHEMA
    assert found.select(["_key_a", ROW_ID, "_is_nameless", "_is_unread", "_line_number"]).to_pylist() == [
        {"_key_a": 1, ROW_ID: None, "_is_nameless": False, "_is_unread": True, "_line_number": 1},
        {"_key_a": 3, ROW_ID: None, "_is_nameless": True, "_is_unread": False, "_line_number": 4},
    ]
    assert set(found["_day"].to_pylist()) == {(DAY - date(1970, 1, 1)).days}
    assert set(found["_source"].to_pylist()) == {"regular"}


@pytest.mark.parametrize(("processed", "extra", "expected"), [
    (None, f'{{"{contest.PROCESSED}": "soon"}}', True),
    (None, f'{{"{contest.PROCESSED}": 12}}', True),
    (None, f'{{"{contest.PROCESSED}": {"9" * 5_000}}}', True),
    (None, f'{{"{contest.PROCESSED}": null}}', False),
    (None, f'{{"x": {{"{contest.PROCESSED}": "soon"}}}}', False),
    (None, f'{{"{contest.PROCESSED}": ', False),
    (None, f'"{contest.PROCESSED}"', False),
    (None, None, False),
    (datetime(2026, 2, 2, tzinfo=UTC), f'{{"{contest.PROCESSED}": "soon"}}', False),
], ids=["text", "number", "long number", "null", "deeper", "cut", "no object", "nothing", "read"])  # fmt: skip
def test_a_time_is_unread_where_it_was_delivered_and_is_null(
    processed: datetime | None, extra: str | None, expected: bool
) -> None:
    schema = pa.schema([(contest.PROCESSED, pa.timestamp("us", tz="UTC")), ("_extra", pa.string())])
    rows = pa.Table.from_pylist([{contest.PROCESSED: processed, "_extra": extra}], schema)
    assert contest.is_unread(rows).to_pylist() == [expected]


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
