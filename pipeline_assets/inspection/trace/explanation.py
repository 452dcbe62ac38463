"""The answer of `explain`: an event, its deliveries, publications and state, each with its wording."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from pipeline_assets.domain.identity import Defeat, KeyKind, RankPart, RawRow, RowFate
from pipeline_assets.domain.records import BatchRecord, Exclusion, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.trace.rows import FoundRow, QuarantinedLine
from pipeline_assets.load.staleness.decide import SlicePlan, Todo

_IDENTITY = EXPORT_FORMAT.identity


def place(row: RawRow) -> str:
    """The object key and line of a row."""
    return f"{row.object_key} line {row.line_number}"


@dataclass(frozen=True)
class Delivered:
    """One raw row of the event and its fate."""

    found: FoundRow
    outcome: RowFate
    defeat: Defeat | None
    """None for a winner."""

    @property
    def row(self) -> RawRow:
        """The row's identity, rank and place."""
        return self.found.row

    @property
    def reason(self) -> str:
        """Why the row won or lost: for a loser, the row that beat it and the part of the rank that decided."""
        if self.defeat is None:
            return "winner"
        better = self.defeat.by
        text = {
            RowFate.DELIVERY_DUPLICATE: f"delivery duplicate of {place(better)}",
            RowFate.SEND_DUPLICATE: f"send duplicate: sent again as {_IDENTITY.row_id} {better.row_id}, {place(better)}",
            RowFate.SUPERSEDED_BY_OTHER_DAY: f"superseded by another day: {better.event_date}, {place(better)}",
        }[self.outcome]
        return f"{text}; {_grounds(self.row, self.defeat)}{_unread(self.row, self.defeat)}"


@dataclass(frozen=True)
class Published:
    """One recorded publication of a refined.events slice that the event belongs to."""

    record: PublicationRecord
    rows: tuple[RawRow, ...] | None
    """The event's rows on all of its days as of that snapshot; None where that is no longer known."""
    obstacle: str | None = None
    """Why the rows are not known."""

    @property
    def visible(self) -> str:
        """Whether the published slice showed the event, and as which row."""
        if self.rows is None:
            return f"unknown: {self.obstacle}"
        day = self.record.key.event_date
        here = [place(row) for row in self.rows if row.event_date == day]
        elsewhere = [f"{row.event_date} as {place(row)}" for row in self.rows if row.event_date != day]
        if here:
            return f"yes, as {' and '.join(here)}"
        return f"no, but on {' and on '.join(elsewhere)}" if elsewhere else "no"


@dataclass(frozen=True)
class Standing:
    """Whether one day of refined.events shows the event as the current rule says, and if not, why."""

    key: Slice
    expected: tuple[RawRow, ...]
    live: tuple[RawRow, ...]
    record: SliceRecord | None
    decision: SlicePlan | None
    """What a load of the day would do now."""

    @property
    def agrees(self) -> bool:
        """Whether expected and live rows match by content: any of several identical rows may have been published."""
        return sorted(row.content for row in self.expected) == sorted(row.content for row in self.live)

    @property
    def is_stale(self) -> bool:
        """Whether a load of the day would build it again."""
        return self.decision is not None and self.decision.todo in (Todo.REBUILD, Todo.CHECK)

    @property
    def reason(self) -> str | None:
        """Why the day is not as it should be; None where it is."""
        bad = self.decision.reason if self.decision is not None else None
        if self.record is not None and not self.record.verdict.is_good:
            verdict = f"{self.record.verdict.value}: "
            bad = f"is {verdict}{(self.record.reason or '').removeprefix(verdict)}"
        if self.is_stale and self.decision is not None and not self.agrees:
            stale = f"not built since its inputs changed ({self.decision.cause})"
            return f"{bad}; {stale}" if bad else stale
        if bad is None and not self.agrees:
            return "the ledger holds it to be up to date"
        return bad

    @property
    def hint(self) -> str | None:
        """What the operator can do; None where nothing is wrong."""
        if self.reason is None:
            return None
        if self.record is not None and not self.record.verdict.is_good and self.record.hint:
            return self.record.hint
        day = self.key.event_date
        return f"Load it again: tidemark load --source regular --from {day} --to {day}"


@dataclass(frozen=True)
class Event:
    """One event: the rows of one key whose days are close enough to be compared."""

    project_id: str
    key: tuple[object, ...]
    deliveries: tuple[Delivered, ...]
    """Winners first, then by rank. Empty where refined.events holds the event but raw no longer does."""
    publications: tuple[Published, ...]
    """Oldest first."""
    standings: tuple[Standing, ...]
    """One per event day."""

    @property
    def winners(self) -> tuple[RawRow, ...]:
        """The rows that the current rule keeps; more than one where they lie further apart than the dedupe window."""
        return tuple(delivered.row for delivered in self.deliveries if delivered.outcome is RowFate.WINNER)

    @property
    def agrees(self) -> bool:
        """Whether refined.events shows the event as the current rule says."""
        return all(standing.agrees for standing in self.standings)

    @property
    def title(self) -> str:
        """The key in words."""
        if self.key[1] is KeyKind.ROW_ID:
            return f"project {self.project_id}, {_IDENTITY.row_id} {self.key[2]} (no {_IDENTITY.send_id})"
        *sender, send_id = self.key[2:]
        parts = [f"{name} {value or 'none'}" for name, value in zip(_IDENTITY.sender, sender, strict=True)]
        return ", ".join((f"project {self.project_id}", f"{_IDENTITY.send_id} {send_id}", *parts))

    @property
    def verdict(self) -> str:
        """The fate of the event in a sentence."""
        if not self.deliveries:
            return "no longer in raw (its delivery was replaced or withdrawn), still in refined/events"
        kept = " and ".join(f"{place(row)} on {row.event_date}" for row in self.winners)
        count = len(self.deliveries)
        deliveries = "the only delivery" if count == 1 else f"of {count} deliveries"
        live = "refined/events shows it" if self.agrees else "refined/events does not show it yet"
        return f"kept: {kept}, {deliveries}; {live}"


@dataclass(frozen=True)
class Explanation:
    """All results for an identifier."""

    identifier: str
    projects: tuple[str, ...]
    first: date | None
    last: date | None
    events: tuple[Event, ...] = ()
    is_cut: bool = False
    """Whether raw has more rows than were collected; those of lowest rank are left out."""
    quarantined: tuple[QuarantinedLine, ...] = ()
    """Searched only where raw and refined hold no matching row."""
    not_in_raw: tuple[BatchRecord, ...] = ()
    """Batches whose latest deliveries are not in raw; filled only where no event was found."""
    excluded: tuple[Exclusion, ...] = ()
    """Deliveries that an operator excluded and raw does not hold; filled only where no event was found."""

    @property
    def is_found(self) -> bool:
        """Whether anything was found."""
        return bool(self.events or self.quarantined)

    @property
    def searched(self) -> str:
        """What was searched, in words."""
        days = f"event days {self.first or 'from the first'} to {self.last or 'the last'}"
        span = days if self.first or self.last else "all event days"
        return (
            f"{_IDENTITY.send_id} and {_IDENTITY.row_id} in raw/regular_events, raw/backfill_events and refined/events "
            f"({span}), and the bytes kept of refused lines in raw/quarantine (all arrival days), of project "
            f"{', '.join(self.projects)}"
        )


def _grounds(row: RawRow, lost: Defeat) -> str:
    better = lost.by
    received, processed = EXPORT_FORMAT.rank_columns
    if lost.part is RankPart.RECEIVED_AT:
        return f"that one has the later {received} ({spelled(better.received_at)} against {spelled(row.received_at)})"
    if lost.part is RankPart.PROCESSED_AT:
        against = f"{spelled(better.processed_at)} against {spelled(row.processed_at)}"
        return f"same {received}, that one has the later {processed} ({against})"
    if lost.part is RankPart.SOURCE:
        return "same times, and the source of that one, or of a delivery equal to it, goes first"
    if lost.part is RankPart.CONTENT:
        return "same times and source but other content, and that one has the greater content hash"
    return "an identical row; refined/events names one of them"


def _unread(row: RawRow, lost: Defeat) -> str:
    """The times that could not be read and so left the decision to others."""
    texts = " and ".join(filter(None, (row.unread, lost.by.unread)))
    return f"; {EXPORT_FORMAT.rank_columns[1]} could not be read: {texts}" if lost.by_unread(row) else ""


def spelled(instant: datetime | None) -> str:
    """A time as the vendor writes it, UTC."""
    return "none" if instant is None else f"{instant:%Y-%m-%d %H:%M:%S.%f}"
