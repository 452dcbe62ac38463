"""The contest in numpy is the rule of domain/identity.py, row by row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.identity import LOST_UNREAD, KeyKind, RawRow, RowFate, fate_of, outcomes
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.transforms import contest
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.event_hashes import ROW_ID
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
