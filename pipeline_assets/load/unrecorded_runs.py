"""Finds loads that committed to a table without a record in this ledger.

Such runs exist only where the ledger is not in the catalog's database, so that a run can die between commit and record, or
where another ledger has just been attached.
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
    """Commits of loads to one table, newest first, and the publications on record."""

    commits: Sequence[Commit]
    recorded: Collection[tuple[Slice, int]]
    """(slice, snapshot id) of recorded publications."""

    @classmethod
    def read(cls, runtime: Runtime, table: Table, known: Head | None) -> UnrecordedRuns:
        """Read the commits since the head that the ledger knew; if that is None, all commits that the table still keeps."""
        since = None if known is None else known.snapshot_id
        commits = [commit for commit in runtime.lakehouse.commits(table, since) if commit.run_id is not None]
        recorded = runtime.ledger.recorded_snapshots(table.key, [commit.snapshot_id for commit in commits])
        return cls(commits, recorded)

    def last_that_changed(self, key: Slice) -> Commit | None:
        """The last commit to a slice; None if no commit explains its difference from the ledger."""
        made = next((commit for commit in self.commits if key in commit.slices), None)
        # A recorded commit is no explanation: main was rolled back since, or another writer changed the slice later.
        return None if made is None or (key, made.snapshot_id) in self.recorded else made
