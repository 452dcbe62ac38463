"""What may be thrown away: snapshots that no reader, no rollback and no run needs any more.

Contains: rules about age and reachability.
Add here: another thing that grows old.
Does not contain: finding and removing it (operations/maintenance.py,
resources/iceberg/procedures.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

YOUNGEST = timedelta(hours=24)
"""Nothing younger is removed: a run may hold it, and Iceberg refuses to look for orphans among younger files."""

EDGE = timedelta(hours=24)
"""History is kept so much longer than is promised: a change is on record, and may be asked for by that time, only after its
commit, by the clock of another machine, or with the next maintenance where a foreign hand made it."""


NOTICES_KEPT = timedelta(days=30)
"""How long the notice of a change is kept once every receiver was told; the change itself stays on record."""


@dataclass(frozen=True)
class SnapshotAge:
    """A snapshot as far as its removal is concerned."""

    snapshot_id: int
    made_at: datetime
    """Aware."""
    is_on_main: bool
    """Whether main shows it, showed it, or grew from it."""


def expirable(snapshots: Sequence[SnapshotAge], named: Collection[int], now: datetime, history: timedelta) -> list[int]:
    """Snapshots to expire, oldest first; `named` are those that a branch or tag points at.

    Kept are: what is younger than a day or named; of main every snapshot within `history` and a day before it, and the newest
    one before that, which is what main showed when the history begins.
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
"""Orphans that are never called many, however small the table is."""


def is_bulk(orphans: int, files: int, max_share: float) -> bool:
    """Whether so many of a table's files are orphans that something else than a few dead runs must have happened."""
    return orphans > _FEW and orphans > files * max_share


_KILLED = 3
"""Commits of one day that a table may not know though nobody else writes it: those that died between file and catalog."""


def is_living_fork(commits: int) -> bool:
    """Whether so many commits of the last day that a table does not know are another catalog's work."""
    return commits > _KILLED


def outlived_metadata(
    files: Iterable[tuple[str, datetime]], named: Collection[str], now: datetime, history: timedelta
) -> list[str]:
    """Metadata files (name, when written) that nobody goes back to, sorted by name.

    Kept is what the table's own log names, and what is younger than the table's history: a catalog restored from a backup of then
    names it, and the snapshots it shows are kept as long.
    """
    cutoff = now - max(history, YOUNGEST) - EDGE
    return sorted(name for name, written_at in files if name not in named and written_at < cutoff)
