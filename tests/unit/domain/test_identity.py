"""Identity and winner as laws over 10,000 random cases: only keys, days and ranks decide."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain.identity import Defeat, KeyKind, RankPart, RawRow, RowFate, fate_of, outcomes, rank, shown
from pipeline_assets.domain.slices import EMPTY, Digest, Source

CASES = 10_000
BACKFILL_FIRST = (Source.BACKFILL, Source.REGULAR)
DAY = date(2026, 2, 2)
ROW = RawRow("1", DAY, Source.REGULAR, "o", 1, (1, "d"), "i", "u", None, None, (1, 1))


def _case(number: int) -> tuple[list[RawRow], int, tuple[Source, ...]]:
    """Up to nine rows with few keys, days, times and contents, so ties, nulls and window edges are common."""
    rng = random.Random(number)
    times = (None, datetime(2026, 2, 2, 1, tzinfo=UTC), datetime(2026, 2, 2, 2, tzinfo=UTC))
    rows = []
    for line in range(rng.randrange(1, 10)):
        place = ("1112"[rng.randrange(4)], DAY + timedelta(days=rng.randrange(6)), rng.choice(list(Source)))
        sender = rng.choice((None, 7, 7)), rng.choice((None, "", "d", "d", "d", "e"))
        ids = rng.choice((None, "", "i", "i", "j")), rng.choice((None, " ", "u", "v"))
        ranks = rng.choice(times), rng.choice(times), (rng.choice((1, 1, 2)), 0)
        rows.append(RawRow(*place, f"o{rng.randrange(3)}", line, sender, *ids, *ranks))
    rows = delivered_whole(rows)
    again = rng.sample(rows, rng.randrange(len(rows)) // 3)
    rows += [replace(row, source=rng.choice(list(Source)), line_number=20 + at) for at, row in enumerate(again)]
    return rows, rng.randrange(4), tuple(rng.sample(BACKFILL_FIRST, 2))


def delivered_whole(rows: Sequence[RawRow]) -> list[RawRow]:
    """Rows whose contents cover ids, times and days, like hashes: equal contents mean equal rows."""
    numbers: dict[tuple[object, ...], int] = {}
    found = []
    for row in rows:
        said = (row.project_id, row.event_date, row.sender, row.send_id, row.row_id, row.received_at, row.processed_at)
        number = numbers.setdefault((*said, row.unread, row.content), len(numbers))
        found.append(replace(row, content=(row.content[0], number)))
    return found


def test_the_winner_rule_holds_its_laws_in_every_case() -> None:
    """Outcome: a row wins if and only if none of its key in the window outranks its greatest equal, and it is the shown
    one; no two winners of a key lie in one window; each reason fits its better row; order is irrelevant."""
    seen: Counter[object] = Counter()
    for number in range(CASES):
        rows, window, precedence = _case(number)
        named = {row.name for row in random.Random(number).sample(rows, len(rows) // 3)}
        decided = dict(zip(rows, outcomes(rows, precedence, window, named), strict=True))
        shuffled = random.Random(-number).sample(rows, len(rows))
        assert dict(zip(shuffled, outcomes(shuffled, precedence, window, named), strict=True)) == decided
        for row, outcome in decided.items():
            competing = [r for r in rows if r.key == row.key and abs((r.event_date - row.event_date).days) <= window]
            equal = [r for r in competing if r.content == row.content]
            own = max(rank(r, precedence) for r in equal)
            higher = [rival for rival in competing if rank(rival, precedence) > own]
            is_shown = row == shown(equal, named)
            assert (outcome is RowFate.WINNER) == (is_shown and not higher), number
            beaten = fate_of(row, rows, precedence, window, named)[1]
            assert (beaten is None) == (outcome is RowFate.WINNER)
            if beaten is not None:
                assert beaten.by == shown([r for r in competing if r.content == beaten.by.content], named)
                assert (beaten.part is RankPart.EQUAL) == (beaten.by in equal)
                assert beaten.by in equal or any(r.content == beaten.by.content for r in higher)
                seen[beaten.part] += 1
            higher += [] if is_shown else equal
            is_copied = any(
                r.named_row_id == row.named_row_id is not None or row.key[1] is KeyKind.CONTENT for r in higher
            )
            assert (outcome is RowFate.DELIVERY_DUPLICATE) == is_copied
            if outcome in (RowFate.SEND_DUPLICATE, RowFate.SUPERSEDED_BY_OTHER_DAY):
                best = max(competing, key=lambda rival: rank(rival, precedence))
                assert (best.event_date == row.event_date) == (outcome is RowFate.SEND_DUPLICATE)
            seen[outcome] += 1
        won = [row for row, outcome in decided.items() if outcome is RowFate.WINNER]
        for row in won:
            assert all(r is row or r.key != row.key or abs((r.event_date - row.event_date).days) > window for r in won)
    assert min(seen[kind] for kind in (*RowFate, *RankPart)) > 50, seen


def test_of_equal_rows_the_one_that_is_named_is_shown_else_the_least() -> None:
    """Scenario: one row by two regular objects and a preferred backfill, beside an unequal tie.
    Outcome: it wins; shown is the row that refined names, else the least: regular before backfill, then object and line."""
    least, regular, recovered = ROW, replace(ROW, object_key="p"), replace(ROW, source=Source.BACKFILL, object_key="a")
    other = replace(ROW, content=(2, 2), row_id="v", object_key="0")
    rows = [recovered, other, regular, least]
    # Alone, the other row outranks the regular rows.
    assert outcomes([other, regular, least], BACKFILL_FIRST, 1)[0] is RowFate.WINNER
    changed = replace(regular, content=(3, 3))
    names = ([], least), ([regular], regular), ([recovered], recovered), ([other], least), ([changed], least)
    for those, winner in names:
        named = [row.name for row in those]
        assert shown([recovered, regular, least], named) == winner
        found = dict(zip(rows, outcomes(rows, BACKFILL_FIRST, 1, named), strict=True))
        assert {row for row, fate in found.items() if fate is RowFate.WINNER} == {winner}
        assert [fate for row, fate in found.items() if row not in (winner, other)] == [RowFate.DELIVERY_DUPLICATE] * 2
        assert fate_of(other, rows, BACKFILL_FIRST, 1, named)[1] == Defeat(winner, RankPart.SOURCE)


@pytest.mark.parametrize(("changes", "is_same_event"), [
    ({"row_id": "other"}, True), ({"send_id": "other"}, False), ({"sender": (1, None)}, False),
    ({"sender": (1, "other")}, False), ({"sender": (None, "d")}, False), ({"project_id": "2"}, False),
    ({"send_id": None}, False), ({"content": (2, 2)}, True),
], ids=str)  # fmt: skip
def test_what_makes_two_rows_one_event(changes: dict[str, object], is_same_event: bool) -> None:
    other = replace(ROW, **changes)  # type: ignore[arg-type]
    assert (other.key == ROW.key) == is_same_event


def test_nulls_never_collapse_rows() -> None:
    """Scenario: rows without send id, row id or both. Outcome: the row id, then content tells events apart."""
    by_row_id = replace(ROW, send_id=None)
    by_content = replace(by_row_id, row_id=None)
    assert by_row_id.key != replace(by_row_id, row_id="v").key
    assert by_row_id.key == replace(by_row_id, content=(2, 2), sender=(None, None)).key
    assert by_content.key != replace(by_content, content=(2, 2)).key
    # A send id that looks like another event's row id is still a send id.
    assert replace(ROW, send_id="u").key != by_row_id.key


BLANK = (
    "", " ", "\t", "\x00", "\n \r", "\u00a0", "\u3000", "\u200b", "\ufeff", "\u2060\u200d", "\ufff9\ufffb",
    "\U0001d173", "\U000e0001\U000e0fff",
)  # fmt: skip


@pytest.mark.parametrize("blank", BLANK, ids=ascii)
def test_an_id_that_nobody_can_see_is_no_id(blank: str) -> None:
    """Outcome: an empty or blank id counts as absent; a visible id keeps its blanks."""
    nameless = replace(ROW, send_id=blank, row_id=blank)
    assert nameless.key != replace(nameless, content=(2, 2)).key
    assert nameless.key == replace(ROW, send_id=None, row_id=None).key
    assert replace(ROW, send_id=blank).key == replace(ROW, send_id=None).key
    assert replace(ROW, sender=(1, blank)).key == replace(ROW, sender=(1, None)).key
    assert replace(ROW, send_id=f"i{blank}").key[-1] == f"i{blank}"
    twice = [replace(ROW, row_id=blank), replace(ROW, row_id=blank, line_number=2)]
    assert outcomes(twice, BACKFILL_FIRST, 1) == [RowFate.WINNER, RowFate.SEND_DUPLICATE]


@pytest.mark.parametrize(("window", "winners"), [(1, {3}), (2, {3}), (0, {0, 1, 2, 3})])
def test_a_row_loses_to_a_better_one_within_the_window_even_to_one_that_loses_itself(
    window: int, winners: set[int]
) -> None:
    """Scenario: four rows a day apart, each better than the one before."""
    times = [
        {"event_date": DAY + timedelta(days=n), "received_at": datetime(2026, 2, 9, n, tzinfo=UTC)} for n in range(4)
    ]
    found = outcomes(
        [replace(ROW, row_id=str(n), **changes) for n, changes in enumerate(times)], BACKFILL_FIRST, window
    )
    assert {n for n, fate in enumerate(found) if fate is RowFate.WINNER} == winners
    assert {*found} <= {RowFate.WINNER, RowFate.SUPERSEDED_BY_OTHER_DAY}


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
        ({"unread": UNREAD, "content": (2, 2), "row_id": "u"}, {"unread": UNREAD, "line_number": 0}, False),
    ],
    ids=["time over unread", "both unread", "winner unread", "absent, not unread", "first rank decides", "equal rows"],
)
def test_an_unread_time_decides_only_between_unequal_rows_that_the_first_rank_leaves_open(
    changes: dict[str, Any], better: dict[str, Any], is_by_unread: bool
) -> None:
    row = replace(LATER, **{"line_number": 1, "content": (1, 1), "row_id": "v"} | changes)
    other = replace(LATER, **better)
    _, lost = fate_of(row, [row, other], BACKFILL_FIRST, 1)
    assert lost is not None
    assert (lost.by, lost.by_unread(row)) == (other, is_by_unread)


_SUMS = st.integers(-(10**28), 10**28)
digests = st.builds(Digest, st.integers(1, 10**9), _SUMS, _SUMS, st.sampled_from((1, 2))) | st.just(EMPTY)


@given(digests, digests, digests)
def test_a_digest_is_a_sum_of_one_version_and_its_text_is_lossless(a: Digest, b: Digest, c: Digest) -> None:
    """Outcome: equal figures of two versions differ, except for no rows; text without a version is of version 1."""
    assert ((a + b) + c, a + b, a + EMPTY, Digest.parse(str(a))) == (a + (b + c), b + a, a, a)
    assert a == EMPTY or replace(a, version=1) != replace(a, version=2)
    if EMPTY not in (a, b) and a.version != b.version:
        assert (a + b).version not in (1, 2)
    assert (str(EMPTY), Digest.parse("0:0:0"), Digest.parse("3:a:b")) == ("0:0:0", EMPTY, Digest(3, 10, 11, version=1))
