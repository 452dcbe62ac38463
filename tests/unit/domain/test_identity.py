"""Identity and winner as laws over 10,000 random cases: nothing but keys, days and ranks decides."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.identity import KeyKind, RankPart, RawRow, RowFate, defeat, outcomes, rank
from pipeline_assets.domain.slices import Source

CASES = 10_000
BACKFILL_FIRST = (Source.BACKFILL, Source.REGULAR)
DAY = date(2026, 2, 2)
ROW = RawRow("1", DAY, Source.REGULAR, "o", 1, (1, "d"), "i", "u", None, None, (1, 1))


def _case(number: int) -> tuple[list[RawRow], int, tuple[Source, ...]]:
    """Up to nine rows of few keys, days, times and contents, so that ties, nulls and window edges are common."""
    rng = random.Random(number)
    times = (None, datetime(2026, 2, 2, 1, tzinfo=UTC), datetime(2026, 2, 2, 2, tzinfo=UTC))
    rows = [
        RawRow(
            rng.choice(("1", "1", "1", "2")),
            DAY + timedelta(days=rng.randrange(6)),
            rng.choice(list(Source)),
            f"o{rng.randrange(3)}",
            line,
            (rng.choice((None, 7, 7)), rng.choice((None, "", "d", "d", "d", "e"))),
            rng.choice((None, "", "i", "i", "j")),
            rng.choice((None, " ", "u", "v")),
            rng.choice(times),
            rng.choice(times),
            (rng.choice((1, 1, 2)), 0),
        )
        for line in range(rng.randrange(1, 10))
    ]
    return rows, rng.randrange(4), tuple(rng.sample(BACKFILL_FIRST, 2))


def test_the_winner_rule_holds_its_laws_in_every_case() -> None:
    """Scenario: 10,000 random cases. Outcome: a row wins if and only if nothing of its key within the window ranks higher; no two
    winners of a key lie within the window; each loser's reason fits what beats it; the order of rows is irrelevant."""
    seen: Counter[object] = Counter()
    for number in range(CASES):
        rows, window, precedence = _case(number)
        decided = dict(zip(rows, outcomes(rows, precedence, window), strict=True))
        shuffled = random.Random(-number).sample(rows, len(rows))
        assert dict(zip(shuffled, outcomes(shuffled, precedence, window), strict=True)) == decided
        for row, outcome in decided.items():
            competing_digests = [
                r for r in rows if r.key == row.key and abs((r.event_date - row.event_date).days) <= window
            ]
            higher = [rival for rival in competing_digests if rank(rival, precedence) > rank(row, precedence)]
            assert (outcome is RowFate.WINNER) == (not higher), number
            beaten = defeat(row, outcome, rows, precedence, window)
            assert (beaten is None) == (outcome is RowFate.WINNER)
            if beaten is not None:
                assert beaten.by in higher
                assert (beaten.part is RankPart.POSITION) == _is_identical(beaten.by, row, precedence)
                seen[beaten.part] += 1
            is_copied = any(
                r.named_row_id == row.named_row_id is not None or row.key[1] is KeyKind.CONTENT for r in higher
            )
            assert (outcome is RowFate.DELIVERY_DUPLICATE) == is_copied
            if outcome in (RowFate.SEND_DUPLICATE, RowFate.SUPERSEDED_BY_OTHER_DAY):
                best = max(competing_digests, key=lambda rival: rank(rival, precedence))
                assert (best.event_date == row.event_date) == (outcome is RowFate.SEND_DUPLICATE)
            seen[outcome] += 1
        won = [row for row, outcome in decided.items() if outcome is RowFate.WINNER]
        for row in won:
            assert all(r is row or r.key != row.key or abs((r.event_date - row.event_date).days) > window for r in won)
    assert min(seen[kind] for kind in (*RowFate, *RankPart)) > 50, seen


def _is_identical(one: RawRow, other: RawRow, precedence: tuple[Source, ...]) -> bool:
    return rank(one, precedence)[:-2] == rank(other, precedence)[:-2]


@pytest.mark.parametrize(
    ("changes", "is_same_event"),
    [
        ({"row_id": "other"}, True),
        ({"send_id": "other"}, False),
        ({"sender": (1, None)}, False),
        ({"sender": (1, "other")}, False),
        ({"sender": (None, "d")}, False),
        ({"project_id": "2"}, False),
        ({"send_id": None}, False),
        ({"content": (2, 2)}, True),
    ],
    ids=str,
)
def test_what_makes_two_rows_one_event(changes: dict[str, object], is_same_event: bool) -> None:
    other = replace(ROW, **changes)  # type: ignore[arg-type]
    assert (other.key == ROW.key) == is_same_event


def test_nulls_never_collapse_rows() -> None:
    """Scenario: rows without a send id, without a row id, with neither. Outcome: the row id, then content tells events apart."""
    by_row_id = replace(ROW, send_id=None)
    by_content = replace(by_row_id, row_id=None)
    assert by_row_id.key != replace(by_row_id, row_id="v").key
    assert by_row_id.key == replace(by_row_id, content=(2, 2), sender=(None, None)).key
    assert by_content.key != replace(by_content, content=(2, 2)).key
    # A send id that looks like another event's row id is still a send id.
    assert replace(ROW, send_id="u").key != by_row_id.key


BLANK = (
    "",
    " ",
    "\t",
    "\x00",
    "\n \r",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\u2060\u200d",
    "\ufff9\ufffb",
    "\U0001d173",
    "\U000e0001\U000e0fff",
)


@pytest.mark.parametrize("blank", BLANK, ids=ascii)
def test_an_id_that_nobody_can_see_is_no_id(blank: str) -> None:
    """Scenario: events of different content whose insert_id, uuid or device is empty or blank. Outcome: they are named as if it
    were absent, and an id with something to see keeps its blanks."""
    nameless = replace(ROW, send_id=blank, row_id=blank)
    assert nameless.key != replace(nameless, content=(2, 2)).key
    assert nameless.key == replace(ROW, send_id=None, row_id=None).key
    assert replace(ROW, send_id=blank).key == replace(ROW, send_id=None).key
    assert replace(ROW, sender=(1, blank)).key == replace(ROW, sender=(1, None)).key
    assert replace(ROW, send_id=f"i{blank}").key[-1] == f"i{blank}"
    twice = [replace(ROW, row_id=blank), replace(ROW, row_id=blank, line_number=2)]
    assert outcomes(twice, BACKFILL_FIRST, 1) == [RowFate.SEND_DUPLICATE, RowFate.WINNER]


@pytest.mark.parametrize("days_apart", [0, 1, 2, 3])
def test_the_window_ends_where_it_says(days_apart: int) -> None:
    later = replace(
        ROW, event_date=DAY + timedelta(days=days_apart), received_at=datetime(2026, 2, 9, tzinfo=UTC), row_id="v"
    )
    first, _ = outcomes([ROW, later], BACKFILL_FIRST, 2)
    expected = (
        RowFate.SEND_DUPLICATE,
        RowFate.SUPERSEDED_BY_OTHER_DAY,
        RowFate.SUPERSEDED_BY_OTHER_DAY,
        RowFate.WINNER,
    )
    assert first is expected[days_apart]


def test_a_row_loses_to_one_that_loses_itself() -> None:
    """Scenario: three rows a day apart, each better than the one before, with a window of one day.
    Outcome: pairwise and without chaining, only the last one wins."""
    rows = [
        replace(ROW, event_date=DAY + timedelta(days=n), row_id=str(n), received_at=datetime(2026, 2, 9, n, tzinfo=UTC))
        for n in range(3)
    ]
    found = outcomes(rows, BACKFILL_FIRST, 1)
    assert found == [RowFate.SUPERSEDED_BY_OTHER_DAY, RowFate.SUPERSEDED_BY_OTHER_DAY, RowFate.WINNER]


UNREAD = "2026:02:02 01:00:00"
LATER = replace(ROW, received_at=datetime(2026, 2, 2, 2, tzinfo=UTC), line_number=2, content=(2, 2))


@pytest.mark.parametrize(
    ("changes", "better", "is_by_unread"),
    [
        ({"unread": UNREAD}, {"processed_at": datetime(2026, 2, 2, 3, tzinfo=UTC)}, True),
        ({"unread": UNREAD}, {"unread": UNREAD}, True),
        ({}, {"unread": UNREAD}, True),
        ({}, {"processed_at": datetime(2026, 2, 2, 3, tzinfo=UTC)}, False),
        ({"unread": UNREAD, "received_at": datetime(2026, 2, 2, 1, tzinfo=UTC)}, {}, False),
        ({"unread": UNREAD, "content": (2, 2)}, {"unread": UNREAD}, False),
    ],
    ids=[
        "time wins over unread",
        "both unread",
        "winner unread",
        "absent, not unread",
        "first rank decides",
        "equal rows",
    ],
)
def test_an_unread_time_decides_only_between_unequal_rows_that_the_first_rank_leaves_open(
    changes: dict[str, Any], better: dict[str, Any], is_by_unread: bool
) -> None:
    row = replace(LATER, **{"line_number": 1, "content": (1, 1), "row_id": "v"} | changes)
    other = replace(LATER, **better)
    (first, _) = outcomes([row, other], BACKFILL_FIRST, 1)
    lost = defeat(row, first, [row, other], BACKFILL_FIRST, 1)
    assert lost is not None
    assert lost.by == other
    assert lost.by_unread(row) == is_by_unread
