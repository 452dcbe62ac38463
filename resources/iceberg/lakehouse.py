"""Tables behind one catalog: reading them at a snapshot, staging what they may become (ARCHITECTURE, laws 2 and 6).

Contains: reading a table as of a snapshot, staging a branch, the change of slices that a publish makes of it.
Add here: another way to stage.
Does not contain: publishing (resources/publishing/), branches (branches.py), creating a table (creation.py),
removing files (procedures.py), reading metadata (metadata.py), what is written (tables/),
whether it may be seen (load/).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import Slice
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.branches import Branches, IsLive
from resources.iceberg.creation import add_columns, begin_history, create_table, require_columns
from resources.iceberg.errors import again
from resources.iceberg.lake_identity import Purpose, lake_of, require_own_lake
from resources.iceberg.metadata import (
    Commit,
    JavaTables,
    SliceFiles,
    by_slice,
    slice_of,
    slices_condition,
    with_missing,
)
from resources.iceberg.prepared import Prepared, discard, prepare
from resources.iceberg.slice_change import Published, SliceChange
from resources.iceberg.table_commit import commit_change
from resources.iceberg.table_files import TableFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline_assets.domain.settings import Settings
    from pipeline_assets.tables.table import Table

_AS_IT_COMES = {
    "use-table-distribution-and-ordering": "false",
    "distribution-mode": "none",
    # Else the default here: an open file for each slice and task, which is as much memory as there are days.
    "fanout-enabled": "false",
}
"""Options of a write whose rows are in place already: those of a slice follow each other within their task."""


@dataclass(frozen=True)
class Staged:
    """A staged snapshot on a branch: complete, readable, invisible on main."""

    table: Table
    branch: str
    base_id: int
    snapshot_id: int


class Lakehouse:
    """Iceberg tables behind one catalog name, written through branches and exact file swaps."""

    def __init__(self, spark: SparkSession | Callable[[], SparkSession], catalog_name: str) -> None:
        """Wrap a session whose catalog `catalog_name` is configured (resources/spark/session.py), or what starts one."""
        self._session = spark
        self.engine: SparkSession | None = spark if not callable(spark) else None
        """The session, None as long as nothing needed one."""
        self.catalog_name = catalog_name
        """The catalog's name in SQL."""
        self._known: set[str] = set()
        self._ensured: set[str] = set()

    @cached_property
    def spark(self) -> SparkSession:
        """The session; starts it."""
        if self.engine is None:
            assert callable(self._session)
            self.engine = self._session()
        return self.engine

    @cached_property
    def _tables(self) -> JavaTables:
        return JavaTables(self.spark, self.catalog_name)

    @cached_property
    def branches(self) -> Branches:
        """Our branches of its tables."""
        return Branches(self._tables)

    @cached_property
    def files(self) -> TableFiles:
        """Files that tasks wrote, and where they go."""
        return TableFiles(self._tables)

    # -- reading -----------------------------------------------------------------------------------------------

    def identifier(self, table: Table) -> str:
        """The table's name in SQL, `lake.refined.events`."""
        return self._tables.identifier(table)

    def head(self, table: Table) -> int:
        """Snapshot id of main; raises LakehouseError for a table that the catalog does not know."""
        self._require(table)
        snapshot = self._load(table).currentSnapshot()
        if snapshot is None:
            raise LakehouseError(
                self.identifier(table), "was created and never written", "Load days: tidemark load --help"
            )
        return int(snapshot.snapshotId())

    def read(self, table: Table, snapshot_id: int) -> DataFrame:
        """The table as of a snapshot, staged ones included; a column that it did not have then is null."""
        rows = self.spark.read.option("versionAsOf", snapshot_id).table(self._tables.identifier(table))
        return with_missing(rows, table)

    def slice_files(
        self, table: Table, snapshot_id: int, slices: Collection[Slice] | None = None
    ) -> dict[Slice, SliceFiles]:
        """Live files and row counts per slice from metadata alone; all slices, or only those asked for."""
        return by_slice(self._tables.files(self._load(table), snapshot_id, slices))

    def file_sizes(self, table: Table, snapshot_id: int, slices: Collection[Slice]) -> dict[Slice, dict[str, int]]:
        """Live files of these slices, with their sizes in bytes, from metadata alone."""
        sizes: dict[Slice, dict[str, int]] = {}
        for path, file in self._tables.files(self._load(table), snapshot_id, set(slices)).items():
            sizes.setdefault(slice_of(file), {})[path] = int(file.fileSizeInBytes())
        return sizes

    def may_hold(self, table: Table, snapshot_id: int, column: str, days: Collection[Slice]) -> bool:
        """Whether any file may hold rows of a project with one of these days in a column, by its metrics alone."""
        return self._tables.may_hold(self._load(table), snapshot_id, self._tables.expression(column, days))

    def commits(self, table: Table, since: int | None) -> list[Commit]:
        """Commits to main since its head was the snapshot `since`, newest first; all that are kept for None."""
        return list(self._tables.commits(self._load(table), since))

    def ancestry(self, table: Table) -> dict[int, datetime]:
        """The snapshots that main went through and that are kept, and when they were committed; newest first."""
        return dict(self._tables.ancestry(self._load(table)))

    def snapshot_ids(self, table: Table) -> frozenset[int]:
        """All snapshots of the table that are kept, staged ones included."""
        return frozenset(self._tables.snapshot_ids(self._load(table)))

    # -- tables ------------------------------------------------------------------------------------------------

    def require_own(self, settings: Settings, ours: Collection[Table], purpose: Purpose) -> None:
        """Raise LakehouseError where catalog and warehouse do not belong together (lake_identity.py)."""
        again(lambda: require_own_lake(self._tables, settings, ours, purpose))

    def lake(self, settings: Settings) -> str | None:
        """The identity of the lake, which its ledger carries as well; None before its first load."""
        identity: str | None = again(lambda: lake_of(self._tables, settings))
        return identity

    def knows(self, table: Table) -> bool:
        """Whether the catalog knows the table; nothing is created."""
        return table.key in self._known or bool(again(lambda: self._tables.exists(table)))

    def place(self, table: Table) -> str:
        """Where the table lies, or would."""
        return self._tables.place(table)

    def ensure(self, table: Table) -> None:
        """Create the table with its write order and one empty snapshot, unless it is there; for loads alone.

        Raises LakehouseError where its place holds files that the catalog does not know.
        """
        if table.key in self._ensured:
            return
        # Another process may create the same table at the same moment; the second one finds it.
        again(lambda: create_table(self._tables, table))
        again(lambda: add_columns(self._tables, table))
        self._require_columns(table)
        again(lambda: begin_history(self._tables, table))
        self._ensured.add(table.key)

    def sweep(self, tables: Sequence[Table], is_live: IsLive) -> list[str]:
        """Drop the branches of attempts that are not live; returns `table:branch` of each dropped one."""
        return self.branches.sweep(tables, is_live)

    def _require(self, table: Table) -> None:
        """Raise LakehouseError unless the catalog knows the table, and it is ours."""
        if table.key in self._known:
            return
        name = self._tables.identifier(table)
        if not self.knows(table):
            raise LakehouseError(
                name,
                "the catalog knows no such table",
                "Load days first (tidemark load --help), or check TIDEMARK_CATALOG_URL and TIDEMARK_CATALOG_NAME",
            )
        self._require_columns(table)

    def _require_columns(self, table: Table) -> None:
        require_columns(self._tables, table)
        self._known.add(table.key)

    # -- stage, audit, publish ---------------------------------------------------------------------------------

    def stage(self, table: Table, base_id: int, attempt: str, write: Callable[[str], None]) -> Staged:
        """Create a branch at `base_id`, let `write` fill it by its SQL name, and return the staged snapshot."""
        branch = self.branches.create(table, attempt, base_id)
        try:
            write(f"{self._tables.identifier(table)}.branch_{branch}")
            java = self._load(table)
            staged = Staged(table, branch, base_id, int(java.snapshot(branch).snapshotId()))
        except BaseException:
            self.branches.drop(table, [branch])
            raise
        failpoint(Failpoint.AFTER_STAGE, table.key)
        return staged

    def extend(self, table: Table, attempt: str, base_id: int, write: Callable[[str], None]) -> Staged:
        """Let `write` change a branch that stays, whatever becomes of it, and return what it holds then.

        The branch of this attempt is made at `base_id`, main's head, where there is none yet.
        """
        if self.branches.head(table, attempt) is None:
            self.branches.create(table, attempt, base_id)
        branch = self.branches.name(attempt)
        write(f"{self._tables.identifier(table)}.branch_{branch}")
        snapshot_id = self.branches.head(table, attempt)
        if snapshot_id is None:
            raise LakehouseError(table.key, f"somebody removed the branch {branch}", "Start the rebuild again")
        failpoint(Failpoint.AFTER_GREEN, table.key)
        return Staged(table, branch, base_id, snapshot_id)

    def replace_slices(
        self, table: Table, target: str, slices: Collection[Slice], rows: DataFrame, *, is_shuffled: bool = True
    ) -> None:
        """Write `rows` over exactly these slices of a branch; slices without rows become empty.

        Rows that lie together by slice already need not be shuffled, only sorted.
        """
        placed = rows.select(*[column.name for column in table.columns])
        if is_shuffled:
            writer = placed.writeTo(target)
        else:
            order = (table.day_column, "project_id", *table.write_order)
            writer = placed.sortWithinPartitions(*order).writeTo(target).options(**_AS_IT_COMES)
        writer.overwrite(slices_condition(table, slices))

    def rewrite_slices(self, table: Table, target: str, slices: Collection[Slice], keeps: str = "true") -> None:
        """Write the rows of these slices of a branch again, with every column that the table has, as few files as it takes.

        `keeps`: a SQL condition, of the rows that stay.
        """
        where = slices_condition(table, slices)
        rows = self.spark.read.table(target).where(where).where(keeps)
        rows.writeTo(target).option("fanout-enabled", "false").overwrite(where)

    def change(
        self, table: Table, base_id: int, snapshot_id: int, slices: Collection[Slice], branches: Sequence[str] = ()
    ) -> SliceChange:
        """What makes these slices of main, read at `base_id`, what they are in a staged snapshot."""
        wanted = frozenset(slices)
        files = self._tables.files(self._load(table), snapshot_id, wanted)
        return SliceChange(table, base_id, wanted, files, tuple(branches))

    def files_of(self, change: SliceChange) -> dict[Slice, SliceFiles]:
        """The files of every slice of a change, as they are after it."""
        return by_slice(change.files, change.slices)

    def restoring(self, table: Table, base_id: int, snapshots: Mapping[Slice, int | None]) -> SliceChange:
        """What makes these slices what they were in the snapshots named (None: empty), and writes no data.

        Raises LakehouseError where a file of then is gone. For snapshots kept meanwhile (`branches.keeping`): what a foreign
        hand removes nevertheless is looked for once more by the publish.
        """
        files = self.require_files(table, snapshots)
        return SliceChange(table, base_id, frozenset(snapshots), files, is_restored=True)

    def prepare(self, change: SliceChange, run_id: str) -> Prepared:
        """A change on top of main's head, whole and invisible; raises SliceConflictError (resources/iceberg/prepared.py)."""
        return prepare(self._tables, change, run_id)

    def discard(self, prepared: Prepared) -> None:
        """Forget a prepared change that was not and will not be published."""
        discard(self._tables, prepared)

    def commit(self, change: SliceChange, name: str, run_id: str, *, branch: str | None = None) -> Published:
        """A change committed to main, or to a branch; `name` tells this commit from others of the run.

        Raises SliceConflictError, with nothing committed, when main changed in one of the slices since its base.
        """
        return commit_change(self._tables, change, name, run_id, branch=branch)

    def require_restorable(self, change: SliceChange) -> None:
        """Raise LakehouseError where a file that a change restores is gone."""
        if change.is_restored:
            self._require_there(change.table, change.files)

    def require_files(self, table: Table, snapshots: Mapping[Slice, int | None]) -> Mapping[str, Any]:
        """Path -> Java DataFile of these slices in these snapshots; raises LakehouseError for one that is gone."""
        java = self._load(table)
        files: dict[str, Any] = {}
        for snapshot_id in {known for known in snapshots.values() if known is not None}:
            chosen = {key for key, known in snapshots.items() if known == snapshot_id}
            files |= self._tables.files(java, snapshot_id, chosen)
        self._require_there(table, files)
        return files

    def _require_there(self, table: Table, paths: Iterable[str]) -> None:
        store = self._load(table).io()
        for path in sorted(paths):
            if not store.newInputFile(path).exists():
                raise LakehouseError(path, "is gone, so its rows cannot be restored", "Choose a later state")

    def drop(self, staged: Staged) -> None:
        """Drop a staged branch; its snapshot stays until maintenance expires it."""
        self.branches.drop(staged.table, [staged.branch])

    def _load(self, table: Table) -> Any:
        return again(lambda: self._tables.load(table))
