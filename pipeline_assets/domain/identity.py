"""Identity and winner: which rows are the same event, and which of them is kept.

Contains: the rule over plain values, the reference that the Spark expression is tested against.
Add here: a change of the rule.
Does not contain: its Spark form (transforms/dedupe.py). Source of the 7-day send rule the window
narrows: the vendor's export documentation on `$insert_id`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum

from pipeline_assets.domain.slices import Source

_NO_TIME = datetime(1, 1, 1, tzinfo=UTC)

SOMETHING_TO_SEE = (
    "[^\x00-\x20\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    "\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""A character that a reader sees: none of white space, controls, and what Unicode draws with no width or no ink. One class in the
characters themselves, because `strip` of Python and `trim` of Spark know different white space."""
_SEEN = re.compile(SOMETHING_TO_SEE)


_TIE = ":tied"
"""Ends the digest of competing rows where content alone decides between two days."""


class RowFate(StrEnum):
    """What became of one raw row in refinement; every raw row has exactly one (law 7)."""

    WINNER = "winner"
    """It is the event's row in refined.events."""
    DELIVERY_DUPLICATE = "delivery_duplicate"
    """The same row was exported more than once: a better row has the same row id (or the same content)."""
    SEND_DUPLICATE = "send_duplicate"
    """The same event was sent again: the best row has the same key and day but another row id."""
    SUPERSEDED_BY_OTHER_DAY = "superseded_by_other_day"
    """The best row with the same key lies on another day within the dedupe window."""


class KeyKind(StrEnum):
    """What tells an event from others, in the order in which it is looked for."""

    SEND_ID = "send_id"
    """The id that its sender gave it, and who that is."""
    ROW_ID = "row_id"
    """It has no send id: the id that the exporter gave the row."""
    CONTENT = "content"
    """It has no id at all: the hashes of its content."""


class RankPart(StrEnum):
    """The part of the rank that decides between two rows, in the order in which parts are compared."""

    RECEIVED_AT = "received_at"
    """The exporter received it later."""
    PROCESSED_AT = "processed_at"
    """Received at the same time; the exporter processed it later."""
    SOURCE = "source"
    """Both times are equal; its source goes first by the setting `source_precedence`."""
    CONTENT = "content"
    """Times and source are equal, content is not: the greater hash wins, so that the choice is the same every time."""
    POSITION = "place"
    """The rows are identical: object key and line only choose which of them names the lineage."""


def with_tie(digest: str) -> str:
    """The text of a digest of competing rows of which content alone decides between two days."""
    return f"{digest}{_TIE}"


def is_tie(digest: str) -> bool:
    """Whether content alone decides between two days; such a digest never counts as unchanged."""
    return digest.endswith(_TIE)


def named(identifier: str | None) -> str | None:
    """An id that names something; one that is empty or blank is none."""
    return identifier if identifier is not None and _SEEN.search(identifier) else None


def named_sender(sender: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    """Who sent a row, where blank texts name nothing."""
    return tuple(named(part) if isinstance(part, str) else part for part in sender)


@dataclass(frozen=True)
class RawRow:
    """The parts of a raw row that identity and winner depend on; a format says which columns they are (formats/base.py)."""

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

    @property
    def named_row_id(self) -> str | None:
        """The row id, where it names something."""
        return named(self.row_id)

    @property
    def key(self) -> tuple[object, ...]:
        """Rows of one project with equal keys are the same event when their days are close enough."""
        if (send_id := named(self.send_id)) is not None:
            return (self.project_id, KeyKind.SEND_ID, *named_sender(self.sender), send_id)
        if self.named_row_id is not None:
            return (self.project_id, KeyKind.ROW_ID, self.named_row_id)
        return (self.project_id, KeyKind.CONTENT, *self.content)


@dataclass(frozen=True)
class Defeat:
    """Why a row lost: the row its outcome is named after, and the part of the rank by which that one is greater."""

    by: RawRow
    part: RankPart


def rank(row: RawRow, precedence: Sequence[Source]) -> tuple[object, ...]:
    """A total order over raw rows; the greatest wins. Nulls rank last."""
    return (
        (row.received_at is not None, row.received_at or _NO_TIME),
        (row.processed_at is not None, row.processed_at or _NO_TIME),
        -list(precedence).index(row.source),
        row.content,
        row.object_key,
        row.line_number,
    )


def outcomes(rows: Sequence[RawRow], precedence: Sequence[Source], dedupe_window_days: int) -> list[RowFate]:
    """The outcome of each row, by the pairwise rule: no chaining, so free of order."""
    return [_outcome(row, rows, precedence, dedupe_window_days) for row in rows]


def defeat(
    row: RawRow, outcome: RowFate, rows: Sequence[RawRow], precedence: Sequence[Source], dedupe_window_days: int
) -> Defeat | None:
    """What beat a row of this outcome, None for a winner.

    A delivery duplicate is beaten by the best copy of itself, any other loser by the best row within its window, also
    where that one loses in turn.
    """
    if outcome is RowFate.WINNER:
        return None
    competing = _competing(row, rows, dedupe_window_days)
    if outcome is RowFate.DELIVERY_DUPLICATE:
        competing = [other for other in competing if _is_copy(other, row)]
    best = max(competing, key=lambda other: rank(other, precedence))
    parts = zip(rank(row, precedence), rank(best, precedence), strict=True)
    place = next(place for place, (own, greater) in enumerate(parts) if own != greater)
    # The last two parts of the rank, object key and line, are one to a reader.
    return Defeat(best, list(RankPart)[min(place, len(RankPart) - 1)])


def _outcome(row: RawRow, rows: Sequence[RawRow], precedence: Sequence[Source], window: int) -> RowFate:
    competing = _competing(row, rows, window)
    best = max(competing, key=lambda other: rank(other, precedence))
    if best == row:
        return RowFate.WINNER
    own = rank(row, precedence)
    if any(_is_copy(other, row) and rank(other, precedence) > own for other in competing):
        return RowFate.DELIVERY_DUPLICATE
    return RowFate.SEND_DUPLICATE if best.event_date == row.event_date else RowFate.SUPERSEDED_BY_OTHER_DAY


def _competing(row: RawRow, rows: Sequence[RawRow], window: int) -> list[RawRow]:
    """Rows of the same event, the row itself included."""
    return [other for other in rows if other.key == row.key and abs((other.event_date - row.event_date).days) <= window]


def _is_copy(other: RawRow, row: RawRow) -> bool:
    """Whether two rows of one key are deliveries of the same row."""
    is_same_id = other.named_row_id is not None and other.named_row_id == row.named_row_id
    return is_same_id or row.key[1] is KeyKind.CONTENT
