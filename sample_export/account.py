"""What an export holds, counted while it is made: the truth that a pipeline's tables are compared with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

from sample_export.events import Copy, SampleEvent

DELIVERY_DUPLICATE = "delivery_duplicate"
"""A row that lies in several places: all places but one."""
SEND_DUPLICATE = "send_duplicate"
"""A send that a later one replaces, both on the same event day."""
SUPERSEDED_BY_OTHER_DAY = "superseded_by_other_day"
"""A send that a later one replaces, and that one lies on another event day."""
REASONS = (DELIVERY_DUPLICATE, SEND_DUPLICATE, SUPERSEDED_BY_OTHER_DAY)


@dataclass
class LineCounts:
    """The lines of one source, project and arrival day: each is a row, quarantined or blank."""

    rows: int = 0
    quarantined: int = 0
    blank: int = 0

    @property
    def lines(self) -> int:
        """All lines."""
        return self.rows + self.quarantined + self.blank


@dataclass
class ExportAccount:
    """Counts over everything exported; days are event days (UTC) unless named otherwise.

    Copies of one event lie at most one event day apart, so the account holds for every dedupe window of a day or more.
    """

    objects: int = 0
    """Written; 0 where it was only counted."""
    arrivals: defaultdict[tuple[str, str, date], LineCounts] = field(default_factory=lambda: defaultdict(LineCounts))
    """(source, project, arrival day) -> lines."""
    events: Counter[tuple[str, date]] = field(default_factory=Counter)
    """(project, event day) -> events, each counted once, on the day of the send that counts."""
    duplicates: Counter[tuple[str, date, str]] = field(default_factory=Counter)
    """(project, event day, reason) -> rows that stand back for a better one."""
    late: Counter[tuple[str, date]] = field(default_factory=Counter)
    """(project, event day) -> events whose counting send was uploaded on a later day."""
    corrections: int = 0
    """Events that were sent again with another amount."""
    lost_events: int = 0
    """Events that arrived on the days without being exported."""
    revenue: dict[tuple[str, date, str], Decimal] = field(default_factory=dict)
    """(project, event day, currency) -> revenue of the sends that count."""

    def add(self, project: str, event: SampleEvent, copies: Sequence[Copy]) -> None:
        """Count one event by all copies of it that are exported."""
        if not copies:
            return
        ascending = sorted((copy.send for copy in copies), key=lambda send: (send.uploaded, send.processed))
        sends = {send.uuid: send for send in ascending}
        counting, day = ascending[-1], ascending[-1].event_date
        self.events[project, day] += 1
        self.corrections += event.is_corrected
        self.late[project, day] += counting.uploaded.date() > day
        if counting.amount is not None and event.currency is not None:
            key = (project, day, event.currency)
            self.revenue[key] = self.revenue.get(key, Decimal(0)) + counting.amount
        for send in sends.values():
            count = sum(copy.send.uuid == send.uuid for copy in copies)
            self._add_duplicates(project, send.event_date, DELIVERY_DUPLICATE, count - 1)
            if send is not counting:
                reason = SEND_DUPLICATE if send.event_date == day else SUPERSEDED_BY_OTHER_DAY
                self._add_duplicates(project, send.event_date, reason, 1)
        for copy in copies:
            self.arrivals[copy.source, project, copy.day].rows += 1

    def _add_duplicates(self, project: str, day: date, reason: str, count: int) -> None:
        if count:
            self.duplicates[project, day, reason] += count

    @property
    def lines(self) -> int:
        """All lines of all objects."""
        return sum(counts.lines for counts in self.arrivals.values())

    @property
    def bad_lines(self) -> int:
        """Lines that are to be quarantined."""
        return sum(counts.quarantined for counts in self.arrivals.values())

    @property
    def blank_lines(self) -> int:
        """Lines that hold nothing."""
        return sum(counts.blank for counts in self.arrivals.values())

    @property
    def duplicates_by_reason(self) -> dict[str, int]:
        """Reason -> rows, of all slices; every reason is there."""
        counts = dict.fromkeys(REASONS, 0)
        for (_, _, reason), count in self.duplicates.items():
            counts[reason] += count
        return counts
