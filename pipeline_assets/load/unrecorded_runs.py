"""Runs of ours that committed to a table without a row in this ledger.

Contains: which run changed a slice that the ledger knows otherwise. Only where the ledger lies elsewhere than the catalog, so
that a run may die between commit and record, or where another ledger's deployment wrote to the table.
Add here: another trace that such a run leaves.
Does not contain: what follows of it (ledger_sync.py), publishing (resources/publishing/).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline_assets.domain.records import Head
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table
from resources.iceberg.metadata import Commit


@dataclass(frozen=True)
class UnrecordedRuns:
    """Their commits to one table, newest first."""

    commits: Sequence[Commit]
    recorded: Collection[tuple[Slice, int]]
    """(slice, snapshot) of publications that are on record."""

    @classmethod
    def read(cls, runtime: Runtime, table: Table, known: Head | None) -> UnrecordedRuns:
        """All since the head that the ledger knew; all that are kept for None."""
        since = None if known is None else known.snapshot_id
        commits = [commit for commit in runtime.lakehouse.commits(table, since) if commit.run_id is not None]
        recorded = runtime.ledger.recorded_snapshots(table.key, [commit.snapshot_id for commit in commits])
        return cls(commits, recorded)

    def last_that_changed(self, key: Slice) -> Commit | None:
        """The last commit to a slice; None where none explains that the slice is another one than the ledger says."""
        made = next((commit for commit in self.commits if key in commit.slices), None)
        # One that is on record does not: main was set back since, or a foreign hand came later.
        return None if made is None or (key, made.snapshot_id) in self.recorded else made
