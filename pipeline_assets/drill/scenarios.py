"""The trials of a drill: where a load is killed or meets another one, and how it is started again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from pipeline_assets.domain.slices import EMPTY, Slice
from resources.failpoints import Failpoint
from resources.publishing.promise import Promise

_K = TypeVar("_K", bound=Any)
_V = TypeVar("_V")
RAW, REFINED, AGGREGATE, QUARANTINE = (
    "raw/regular_events",
    "refined/events",
    "aggregates/event_counts",
    "raw/quarantine",
)


class Disturbance(StrEnum):
    """The kinds of disturbance."""

    RETRIED = "killed, retried"
    """The load is killed; Dagster notices the dead run and starts it again."""
    FRESH = "killed, another run"
    """The load is killed; another run comes before anybody notices."""
    MET = "overtaken by another run"
    """The load is paused, another run publishes the same days, and the load continues."""
    RECOVERED = "recovery killed, run again"
    """A recovery from the vendor is killed; the same command continues it."""
    REBUILT = "rebuild killed, run again"
    """A rebuild or its swap is killed; the same command continues it, and an undo takes it back."""


@dataclass(frozen=True)
class Trial:
    """One disturbed load, recovery or rebuild."""

    event: Disturbance
    point: Failpoint
    qualifier: str = ""

    @property
    def armed(self) -> str:
        """The value for the process's environment variable."""
        return f"{self.point}:{self.qualifier}" if self.qualifier else str(self.point)


_OF_TABLES = (
    Failpoint.AFTER_PIN,
    Failpoint.AFTER_STAGE,
    Failpoint.AFTER_AUDIT,
    Failpoint.BETWEEN_TABLES,
    Failpoint.BEFORE_EVENTS,
)
_OF_PUBLISHES = {
    Promise.ONE_TRANSACTION: (Failpoint.AFTER_APPLY,),
    Promise.TABLE_BY_TABLE: (Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT, Failpoint.BEFORE_LEDGER),
}
"""Further points per table, depending on how the deployment publishes; the ledger has none of quarantine."""
_OF_TRANSACTIONS = (Failpoint.BEFORE_PUBLISH, Failpoint.IN_TRANSACTION, Failpoint.AFTER_PUBLISH)
_OF_RECOVERIES = (Failpoint.AFTER_DOWNLOAD, Failpoint.AFTER_OBJECT, Failpoint.BEFORE_MARKER)
_OF_REBUILDS = (
    Failpoint.AFTER_GREEN,
    Failpoint.AFTER_CHUNK,
    Failpoint.BEFORE_REPORT,
    Failpoint.BEFORE_SWAP,
    Failpoint.AFTER_SWAPS,
)
IN_SWAP = {Promise.ONE_TRANSACTION: Failpoint.IN_TRANSACTION, Promise.TABLE_BY_TABLE: Failpoint.AFTER_COMMIT}
"""The point in the middle of a rebuild's swap."""


def planned(project: str, promise: Promise, *, is_full: bool) -> Sequence[Trial]:
    """Every point once, alternating tables and ways to start again; if full, all combinations of points, tables and ways.

    Then the meetings, the recoveries and the rebuilds.
    """
    of_publishes = _OF_PUBLISHES[promise]
    of_tables = (*_OF_TABLES, *of_publishes)
    tables, ways = (RAW, REFINED, AGGREGATE), (Disturbance.RETRIED, Disturbance.FRESH)
    alone = [
        (Failpoint.DURING_LISTING, f"regular/{project}"),
        (Failpoint.MID_PARSE, ""),
        (Failpoint.BETWEEN_CHUNKS, ""),
        (Failpoint.BEFORE_NOTICES, ""),
        *((point, "") for point in _OF_TRANSACTIONS if promise is Promise.ONE_TRANSACTION),
    ]
    if is_full:
        alone += [(Failpoint.AFTER_FILES, RAW), (Failpoint.AFTER_FILES, REFINED)]
        alone += [(point, QUARANTINE) for point in (Failpoint.AFTER_STAGE, *of_publishes[:2])]
        alone += [(point, table) for table in tables for point in of_tables]
        kills = [Trial(way, *place) for place in alone for way in ways]
    else:
        alone += [(Failpoint.AFTER_FILES, REFINED)]
        alone += [(point, tables[turn % 3]) for turn, point in enumerate(of_tables)]
        kills = [Trial(ways[turn % 2], *place) for turn, place in enumerate(alone)]
    meetings = ((Failpoint.AFTER_PIN, RAW), (Failpoint.AFTER_STAGE, REFINED), (of_publishes[0], AGGREGATE))
    kills += [Trial(Disturbance.MET, *place) for place in meetings]
    kills += [Trial(Disturbance.RECOVERED, point) for point in _OF_RECOVERIES]
    return kills + [Trial(Disturbance.REBUILT, point) for point in (*_OF_REBUILDS, IN_SWAP[promise])]


def differing(expected: Mapping[_K, _V], found: Mapping[_K, _V]) -> Iterator[tuple[_K, _V | None, _V | None]]:
    """Keys in their order that have different values, with what was expected and what was found; None where it is missing."""
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key):
            yield key, expected.get(key), found.get(key)


class Change(NamedTuple):
    """One recorded publication of a slice."""

    table: str
    key: Slice
    before: str
    """The digest before it."""
    after: str


@dataclass(frozen=True)
class DrillState:
    """The state of tables, ledger and Dagster after a trial."""

    digests: Mapping[str, Mapping[Slice, str]]
    """Table -> slice -> digest of the rows that a reader sees."""
    changes: Sequence[Change]
    """In the order of the ledger."""
    branches: Sequence[str]
    """Remaining staged branches, as `table branch`."""
    shown: Mapping[str, Set[date]]
    """Table -> days that Dagster shows as materialized."""


def faults(state: DrillState, calm: Mapping[str, Mapping[Slice, str]], days: Sequence[date]) -> Iterator[str]:
    """The broken invariants, in words.

    `calm`: the digests after undisturbed loads of the same deliveries; `days`: all loaded days.
    """
    for table, expected in calm.items():
        for key, wanted, found in differing(expected, state.digests.get(table, {})):
            yield f"{table} {key}: {found or EMPTY} instead of {wanted or EMPTY}"
    last: dict[tuple[str, Slice], Change] = {}
    for change in state.changes:
        former = last.get((change.table, change.key))
        # Not in a row it is no fault: an undo is followed by what it undid.
        if change == former:
            yield f"{change.table} {change.key}: the same change is on record twice"
        elif change.before != (former.after if former else str(EMPTY)):
            yield f"{change.table} {change.key}: a change is missing on record"
        last[change.table, change.key] = change
    recorded = {place: change.after for place, change in last.items() if change.after != str(EMPTY)}
    # The ledger records no changes of quarantine, and Dagster does not show it.
    held = {
        (table, key): digest
        for table, digests in state.digests.items()
        for key, digest in digests.items()
        if table in state.shown
    }
    for (table, key), _, _ in differing(recorded, held):
        yield f"{table} {key}: the last change on record is not what the table holds"
    yield from (f"{branch}: a staged branch is left" for branch in state.branches)
    for table, shown in state.shown.items():
        yield from (f"{table} {day}: Dagster shows no materialization" for day in days if day not in shown)
