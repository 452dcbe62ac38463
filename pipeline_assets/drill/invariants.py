"""The invariants after a disturbed load, and which of them fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from pipeline_assets.domain.slices import EMPTY, Slice


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
        digests = state.digests.get(table, {})
        for key in sorted(expected.keys() | digests.keys()):
            if expected.get(key) != digests.get(key):
                yield f"{table} {key}: {digests.get(key, EMPTY)} instead of {expected.get(key, EMPTY)}"
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
    for table, key in sorted(
        place for place in recorded.keys() | held.keys() if recorded.get(place) != held.get(place)
    ):
        yield f"{table} {key}: the last change on record is not what the table holds"
    yield from (f"{branch}: a staged branch is left" for branch in state.branches)
    for table, shown in state.shown.items():
        yield from (f"{table} {day}: Dagster shows no materialization" for day in days if day not in shown)
