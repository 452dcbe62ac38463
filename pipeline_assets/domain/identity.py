"""Identity and winner: which rows are the same event, and which one is kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum

from pipeline_assets.domain.slices import Source

_NO_TIME = datetime(1, 1, 1, tzinfo=UTC)

SOMETHING_TO_SEE = (
    "[^\x00-\x20\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    "\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""A regex class of visible characters, listed because `strip` and Spark's `trim` disagree about white space."""
_SEEN = re.compile(SOMETHING_TO_SEE)


LOST_UNREAD = "rows_lost_unread"
"""Figure of a slice: its rows that lost `by_unread`."""
_TIE = ":tied"
"""Suffix of a digest of competing rows when content alone decides between two days."""


class RowFate(StrEnum):
    """The fate of a raw row in refinement; every raw row has exactly one (law 7)."""

    WINNER = "winner"
    DELIVERY_DUPLICATE = "delivery_duplicate"
    """An equal or higher-ranked row has the same row id, or without ids the same content."""
    SEND_DUPLICATE = "send_duplicate"
    """The winner has the same key and day, but another row id."""
    SUPERSEDED_BY_OTHER_DAY = "superseded_by_other_day"
    """The highest-ranked row with the same key lies on another day within the dedupe window."""


class KeyKind(StrEnum):
    """Keys that identify an event, in order of preference."""

    SEND_ID = "send_id"
    """The sender, and its id for the event."""
    ROW_ID = "row_id"
    CONTENT = "content"


class RankPart(StrEnum):
    """The part of the rank that decides between two rows, in order of comparison."""

    RECEIVED_AT = "received_at"
    PROCESSED_AT = "processed_at"
    SOURCE = "source"
    CONTENT = "content"
    """The greater hash wins, so that the choice is deterministic."""
    EQUAL = "equal"
    """The rows are equal in every delivered column; `shown` chooses one."""


def with_tie(digest: str) -> str:
    """Mark the digest of competing rows where content alone decides between two days."""
    return f"{digest}{_TIE}"


def is_tie(digest: str) -> bool:
    """Whether a digest has the mark; it never counts as unchanged."""
    return digest.endswith(_TIE)


def named(identifier: str | None) -> str | None:
    """The id, or None for an empty or blank one."""
    return identifier if identifier is not None and _SEEN.search(identifier) else None


def named_sender(sender: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    """The sender's parts, with None for blank texts."""
    return tuple(named(part) if isinstance(part, str) else part for part in sender)


Name = tuple[Source, str, int, tuple[int, int]]
"""Source, object key, line and content of a row; unique on a day."""


@dataclass(frozen=True)
class RawRow:
    """The parts of a raw row that decide identity and winner (columns: formats/base.py)."""

    project_id: str
    event_date: date
    source: Source
    object_key: str
    line_number: int
    sender: tuple[int | str | None, ...]
    send_id: str | None
    row_id: str | None
    received_at: datetime | None
    processed_at: datetime | None
    content: tuple[int, int]
    """The two row hashes of the delivered columns and `_extra`."""
    unread: str | None = None
    """The begin of a delivered `processed_at` that could not be read."""

    @property
    def name(self) -> Name:
        """By this a row of refined.events names its delivery."""
        return self.source, self.object_key, self.line_number, self.content

    @property
    def named_row_id(self) -> str | None:
        """The row id, or None if it is empty or blank."""
        return named(self.row_id)

    @property
    def key(self) -> tuple[object, ...]:
        """Rows with equal keys are the same event if their days lie within the dedupe window."""
        if (send_id := named(self.send_id)) is not None:
            return (self.project_id, KeyKind.SEND_ID, *named_sender(self.sender), send_id)
        if self.named_row_id is not None:
            return (self.project_id, KeyKind.ROW_ID, self.named_row_id)
        return (self.project_id, KeyKind.CONTENT, *self.content)


@dataclass(frozen=True)
class Defeat:
    """The row that beat a row, and the part of the rank in which it is greater."""

    by: RawRow
    part: RankPart

    def by_unread(self, row: RawRow) -> bool:
        """Whether an unreadable time decided between the row and an unequal one."""
        is_close = self.by.received_at == row.received_at and self.by.content != row.content
        return is_close and (row.unread or self.by.unread) is not None


def rank(row: RawRow, precedence: Sequence[Source]) -> tuple[object, ...]:
    """A sort key that orders all raw rows; the greatest wins, and equal rows count as it. Nulls rank last."""
    return (
        (row.received_at is not None, row.received_at or _NO_TIME),
        (row.processed_at is not None, row.processed_at or _NO_TIME),
        -list(precedence).index(row.source),
        row.content,
        row.object_key,
        row.line_number,
    )


def shown(equal: Collection[RawRow], named: Collection[Name] = ()) -> RawRow:
    """The one of equal rows that refined.events shows: one that is `named` there already, else the least."""

    def order(row: RawRow) -> tuple[object, ...]:
        return row.name not in named, list(Source).index(row.source), row.object_key, row.line_number

    return min(equal, key=order)


def outcomes(
    rows: Sequence[RawRow], precedence: Sequence[Source], dedupe_window_days: int, named: Collection[Name] = ()
) -> list[RowFate]:
    """The fate of each row, by pairwise comparison; equal rows have the rank of their greatest. `named`: as for `shown`."""
    return [fate_of(row, rows, precedence, dedupe_window_days, named)[0] for row in rows]


def fate_of(
    row: RawRow, rows: Sequence[RawRow], precedence: Sequence[Source], window: int, named: Collection[Name] = ()
) -> tuple[RowFate, Defeat | None]:
    """The fate of a row, and the row that beat it; None for a winner.

    A delivery duplicate lost to the best copy of itself; another loser to the best row within its window, even if that
    row loses in turn. Of equal rows, the shown one counts.
    """
    competing = _competing(row, rows, window)
    own, best = _greatest_rank(row, competing, precedence), max(competing, key=lambda other: rank(other, precedence))
    is_shown = shown(_equal(row, competing), named) == row
    if is_shown and _are_equal(best, row):
        return RowFate.WINNER, None
    fate = RowFate.SEND_DUPLICATE if best.event_date == row.event_date else RowFate.SUPERSEDED_BY_OTHER_DAY
    copies = [other for other in competing if _is_copy(other, row)]
    if any(rank(other, precedence) > own or not is_shown for other in copies):
        fate, best = RowFate.DELIVERY_DUPLICATE, max(copies, key=lambda other: rank(other, precedence))
        competing = copies
    by = shown(_equal(best, competing), named)
    if _are_equal(best, row):
        return fate, Defeat(by, RankPart.EQUAL)
    parts = zip(own, rank(best, precedence), strict=True)
    place = next(place for place, (lesser, greater) in enumerate(parts) if lesser != greater)
    return fate, Defeat(by, list(RankPart)[min(place, len(RankPart) - 1)])


def _competing(row: RawRow, rows: Sequence[RawRow], window: int) -> list[RawRow]:
    """Rows of the same event within the window, including the row itself."""
    return [other for other in rows if other.key == row.key and abs((other.event_date - row.event_date).days) <= window]


def _are_equal(one: RawRow, other: RawRow) -> bool:
    return (one.key, one.event_date, one.content) == (other.key, other.event_date, other.content)


def _equal(row: RawRow, rows: Sequence[RawRow]) -> list[RawRow]:
    return [other for other in rows if _are_equal(other, row)]


def _greatest_rank(row: RawRow, rows: Sequence[RawRow], precedence: Sequence[Source]) -> tuple[object, ...]:
    return max(rank(other, precedence) for other in _equal(row, rows))


def _is_copy(other: RawRow, row: RawRow) -> bool:
    is_same_id = other.named_row_id is not None and other.named_row_id == row.named_row_id
    return is_same_id or row.key[1] is KeyKind.CONTENT
