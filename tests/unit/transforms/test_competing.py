"""Digests of competing rows in numpy are those of a comparison of all pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.identity import RawRow, is_tie, rank
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, row_hash
from pipeline_assets.transforms.contest_tasks import _RIVAL, CompetingSum, competing_sums
from tests.unit.transforms.test_contest import ROWS, table_of

_PRECEDENCE = (Source.BACKFILL, Source.REGULAR)


def _slice(row: RawRow) -> Slice:
    return Slice(row.event_date, row.project_id)


def _rank(row: RawRow) -> tuple[object, ...]:
    return rank(row, _PRECEDENCE)


def _equal(rows: Sequence[RawRow]) -> list[list[RawRow]]:
    found: dict[tuple[object, ...], list[RawRow]] = {}
    for row in rows:
        found.setdefault((row.key, row.event_date, row.content), []).append(row)
    return list(found.values())


def _expected(rows: Sequence[RawRow], window: int) -> dict[Slice, CompetingSum]:
    """By the words of the rule: each row of another day within the window whose key the slice holds, equal ones as one."""
    rows = [max(equal, key=_rank) for equal in _equal(rows)]
    told = table_of(rows).select(list(_RIVAL)).to_pylist()
    hashes = [row_hash(one, _RIVAL) for one in told]
    found = {}
    for key in map(_slice, rows):
        own = [row for row in rows if _slice(row) == key]
        digest, is_tied = EMPTY, False
        for row, (first, second) in zip(rows, hashes, strict=True):
            distance = abs((row.event_date - key.event_date).days)
            same = [one for one in own if one.key == row.key]
            if same and 1 <= distance <= window:
                digest += Digest(1, first, second)
                is_tied |= any(_order(one) == _order(row) for one in same)
        if digest.rows:
            found[key] = CompetingSum(digest, is_tied)
    return found


def _order(row: RawRow) -> tuple[object, ...]:
    return row.received_at, row.processed_at, row.source


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(0, 3))
def test_digests_are_those_of_all_pairs(rows: list[RawRow], window: int) -> None:
    found = competing_sums(table_of(rows), _PRECEDENCE, window) if rows else {}
    assert found == _expected(rows, window)
    assert all(is_tie(str(told)) == told.is_tied for told in found.values())


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 3))
def test_parts_add_up_where_equal_orders_stay_together(rows: list[RawRow], window: int) -> None:
    """Scenario: rows of every key are divided by their times; the best row of each key and day is a guest of both parts."""
    parts = []
    guests = list({(row.key, row.event_date): row for row in sorted(rows, key=_rank)}.values())
    for part in (0, 1):
        own = [row for row in rows if (hash(_order(row)[:2]) & 1) == part]
        if own:
            is_guest = np.asarray([False] * len(own) + [True] * len(guests))
            table = table_of([*rows, *own, *guests]).slice(len(rows))
            parts.append(competing_sums(table, _PRECEDENCE, window, is_guest))
    total: dict[Slice, CompetingSum] = {}
    for part in parts:
        total |= {key: total.get(key, CompetingSum()) + one for key, one in part.items()}
    assert total == _expected(rows, window)
