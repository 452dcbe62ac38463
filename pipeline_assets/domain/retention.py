"""What maintenance may remove: snapshots and metadata files that no reader, rollback or run needs any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

YOUNGEST = timedelta(hours=24)
"""Nothing younger is removed: a run may still use it, and Iceberg refuses to remove younger orphan files."""
_CLOCKS_APART = timedelta(hours=1)
"""By how much the clocks of ledger, store and this machine may differ (resources/iceberg/lake_objects.py)."""

EDGE = timedelta(hours=24)
"""History is kept this much longer than promised. A change enters the ledger after its commit, by another machine's clock,
or only with the next maintenance if a foreign writer made it, and may be asked for by that later time."""


NOTICES_KEPT = timedelta(days=30)
"""How long a notice of a change is kept after every receiver got it; the change itself stays on record."""


def least_age(live: Iterable[timedelta]) -> timedelta:
    """The age below which nothing is removed: a day, or the age of the oldest live run, which may use all it found or wrote."""
    return max((YOUNGEST, *(age + _CLOCKS_APART for age in live)))


@dataclass(frozen=True)
class SnapshotAge:
    """The parts of a snapshot that decide its removal."""

    snapshot_id: int
    made_at: datetime
    """An aware time."""
    is_on_main: bool
    """Whether main shows it, showed it before, or grew from it."""


def expirable(snapshots: Sequence[SnapshotAge], named: Collection[int], now: datetime, history: timedelta) -> list[int]:
    """Ids of the snapshots to expire, oldest first; `named` are those that a branch or tag points at.

    Kept are named snapshots and those younger than a day. Of main, all snapshots within `history` plus a day are kept, and
    the newest one before, which main showed when the history begins.
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
"""This many orphans are never suspicious, however small the table is."""


def is_bulk(orphans: int, files: int, max_share: float) -> bool:
    """Whether too large a share of a table's files are orphans to come from a few dead runs."""
    return orphans > _FEW and orphans > files * max_share


_KILLED = 3
"""The unknown commits of one day that one writer can explain: runs that died between writing a metadata file and the catalog."""


def is_living_fork(commits: int) -> bool:
    """Whether the last day has too many commits unknown to the table, so that another catalog must be committing."""
    return commits > _KILLED


def outlived_metadata(
    files: Iterable[tuple[str, datetime]], named: Collection[str], now: datetime, history: timedelta
) -> list[str]:
    """Names of metadata files that nobody will go back to, sorted; `files`: (name, when written).

    Kept are files that the table's metadata log names, and files younger than the table's history: a catalog restored from
    a backup of that time names them, and the snapshots they list are kept as long.
    """
    cutoff = now - max(history, YOUNGEST) - EDGE
    return sorted(name for name, written_at in files if name not in named and written_at < cutoff)
