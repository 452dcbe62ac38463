"""The calendar: the state of each day of each table, all projects together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from pipeline_assets.domain.slices import BatchVerdict, Source, Verdict
from pipeline_assets.inspection.health.answers import table_of
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import ASSET_TABLES, OPTIONAL_TABLES
from resources.ledger.summaries import Fault, VerdictCount

TABLES: tuple[str, ...] = tuple(table.key for table in ASSET_TABLES)
OF_DIMENSIONS: tuple[str, ...] = tuple(table.key for table in OPTIONAL_TABLES)
"""Shown only if the lake has them; a month of intervals is shown on its first day."""
WORST_FIRST = (Verdict.REFUSED, Verdict.HELD, Verdict.WAITING, Verdict.PUBLISHED, Verdict.UNCHANGED)
_OF_BATCH = {
    BatchVerdict.ACCEPTED.value: Verdict.PUBLISHED,
    BatchVerdict.REFUSED.value: Verdict.REFUSED,
    BatchVerdict.WAITING.value: Verdict.WAITING,
    BatchVerdict.MOVED.value: Verdict.WAITING,
}
_NOT_AWAITED = {RAW_TABLES[Source.BACKFILL].key, *OF_DIMENSIONS}
"""Tables in which no project is expected: a day may have no recovery, a dimension has no projects, and joined tables begin only
with their dimension."""


@dataclass(frozen=True)
class DayState:
    """The state of one day of one table."""

    table: str
    day: date
    verdict: Verdict
    """The worst among its projects."""
    projects: int
    """Number of projects on record."""
    absent: int
    """Number of further projects expected, because their first deliveries came before that day."""
    faults: tuple[Fault, ...]
    is_missing: bool = False
    """For a dimension: whether the day has no snapshot, and the settings let another day's stand in."""

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to report about the day."""
        return self.verdict.is_good and not self.absent and not self.is_missing


@dataclass(frozen=True)
class Calendar:
    """All days on record."""

    first: date
    last: date
    states: Mapping[tuple[str, date], DayState]

    def state(self, table: str, day: date) -> DayState | None:
        """The state of a day; None where nothing is on record."""
        return self.states.get((table, day))

    @property
    def red(self) -> list[DayState]:
        """Refused or held days, by day and then in the order of the graph."""
        red = [one for one in self.states.values() if one.verdict in (Verdict.REFUSED, Verdict.HELD)]
        return sorted(red, key=lambda one: (one.day, TABLES.index(one.table) if one.table in TABLES else len(TABLES)))


def calendar(
    slices: Sequence[VerdictCount],
    batches: Sequence[VerdictCount],
    faults: Sequence[Fault],
    first_days: Mapping[str, date],
    missing: frozenset[tuple[str, date]] = frozenset(),
) -> Calendar | None:
    """The calendar from the first delivery to the last day on record; None where there is none. Earlier red days stay in it.

    `missing`: (dimension table, day) pairs without a snapshot, where another day's may stand in.
    """
    raw = {table.key for table in RAW_TABLES.values()}
    counted = [(count.place, Verdict(count.verdict), count) for count in slices if count.place not in raw]
    counted += [(RAW_TABLES[Source(count.place)].key, _OF_BATCH[count.verdict], count) for count in batches]
    verdicts: dict[tuple[str, date], Counter[Verdict]] = {}
    for table, verdict, count in counted:
        verdicts.setdefault((table, count.day), Counter())[verdict] += count.projects
    told: dict[tuple[str, date], list[Fault]] = {}
    for fault in faults:
        told.setdefault((table_of(fault), fault.day), []).append(fault)
    begun = min(first_days.values(), default=None)
    states = {}
    for (table, day), counts in verdicts.items():
        place = (table, day)
        # Late events reach far back: of the days before the first delivery, only red ones matter.
        if begun is None or day >= begun or place in told:
            awaited = sum(first <= day for first in first_days.values()) if table not in _NOT_AWAITED else 0
            verdict = next(one for one in WORST_FIRST if one in counts)
            absent, of_day = max(0, awaited - counts.total()), tuple(told.get(place, ()))
            states[place] = DayState(table, day, verdict, counts.total(), absent, of_day, place in missing)
    if not states:
        return None
    days = [day for _, day in states]
    return Calendar(begun or min(days), max(days), states)
