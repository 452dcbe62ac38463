"""Rules of maintenance: which snapshots and metadata files no reader, rollback or run needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

YOUNGEST = timedelta(hours=24)
"""Younger files stay: a run may use them, and Iceberg refuses to remove younger orphan files."""
_CLOCKS_APART = timedelta(hours=1)
"""Greatest difference between the clocks of ledger, store and this machine."""

EDGE = timedelta(hours=24)
"""History is kept this much longer than promised: the ledger may date a change long after its commit."""


NOTICES_KEPT = timedelta(days=30)
"""From the moment every receiver got it; the change itself stays on record."""


def least_age(live: Iterable[timedelta]) -> timedelta:
    """The age below which nothing is removed: a day, or that of the oldest live run."""
    return max((YOUNGEST, *(age + _CLOCKS_APART for age in live)))


@dataclass(frozen=True)
class SnapshotAge:
    """The parts of a snapshot that decide its removal."""

    snapshot_id: int
    made_at: datetime
    is_on_main: bool
    """Whether main shows it, showed it before, or grew from it."""


def expirable(snapshots: Sequence[SnapshotAge], named: Collection[int], now: datetime, history: timedelta) -> list[int]:
    """Ids of the snapshots to expire, oldest first; `named`: those of branches and tags, which stay.

    Snapshots younger than a day stay, and main's of `history` plus a day, with the newest one before.
    """
    cutoff = now - max(history, YOUNGEST) - EDGE
    main = sorted((snapshot for snapshot in snapshots if snapshot.is_on_main), key=lambda snapshot: snapshot.made_at)
    older = [snapshot for snapshot in main if snapshot.made_at < cutoff]
    kept = {snapshot.snapshot_id for snapshot in main if snapshot.made_at >= cutoff} | {
        snapshot.snapshot_id for snapshot in older[-1:]
    }
    return [
        snapshot.snapshot_id
        for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.made_at)
        if snapshot.snapshot_id not in kept and snapshot.snapshot_id not in named and snapshot.made_at < now - YOUNGEST
    ]


_FEW = 10
"""This many orphans are never suspicious."""


def is_bulk(orphans: int, files: int, max_share: float) -> bool:
    """Whether too large a share of a table's files are orphans to come from a few dead runs."""
    return orphans > _FEW and orphans > files * max_share


_KILLED = 3
"""Unknown commits of one day that dead runs of one writer can explain."""


def is_living_fork(commits: int) -> bool:
    """Whether the last day has so many unknown commits that another catalog must be writing."""
    return commits > _KILLED


def outlived_metadata(
    files: Iterable[tuple[str, datetime]], named: Collection[str], now: datetime, history: timedelta
) -> list[str]:
    """Names of removable metadata files, sorted; `files`: (name, when written).

    Files of the metadata log stay, and those younger than the history: a catalog restored from a backup names them.
    """
    cutoff = now - max(history, YOUNGEST) - EDGE
    return sorted(name for name, written_at in files if name not in named and written_at < cutoff)
