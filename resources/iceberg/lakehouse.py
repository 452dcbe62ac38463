"""The tables of one catalog: reading them at a snapshot and staging changes on branches (ARCHITECTURE, laws 2 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from resources.failpoints import Failpoint, failpoint
from resources.iceberg import metadata
from resources.iceberg.catalog_at_rest import CatalogAtRest, TableAtRest, lost_at_rest, lost_slices
from resources.iceberg.errors import again
from resources.iceberg.lake_identity import NAMESPACE, Purpose, is_one_lake, require_own_lake
from resources.iceberg.slice_changes import SliceChanges
from resources.iceberg.staging import PREFIX, Branches, IsLive, TableFiles
from resources.iceberg.upkeep import KEPT_PROPERTIES, prepare, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline_assets.tables.table import Table
    from resources.ledger.store import LakeOfLedger

_ANY_BYTES = 2**63 - 1


@dataclass(frozen=True)
class Staged:
    """A staged snapshot on a branch: complete and readable, but not on main."""

    table: Table
    branch: str
    base_id: int
    snapshot_id: int


class Lakehouse:
    """The Iceberg tables of one catalog, written through branches and exact swaps of files."""

    def __init__(
        self, spark: SparkSession | Callable[[], SparkSession], catalog_name: str, at_rest: CatalogAtRest | None = None
    ) -> None:
        """Take a session with this catalog, or a function that starts one; `at_rest` answers until the session has started."""
        self._session, self._catalog = spark, at_rest
        self.engine: SparkSession | None = spark if not callable(spark) else None
        self.catalog_name = catalog_name
        self._known: set[str] = set()
        self._ensured: set[str] = set()

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started on first use."""
        if self.engine is None:
            assert callable(self._session)
            self.engine = self._session()
        return self.engine

    @cached_property
    def tables(self) -> metadata.JavaTables:
        """The catalog's tables as Java objects."""
        return metadata.JavaTables(self.spark, self.catalog_name)

    @cached_property
    def branches(self) -> Branches:
        """Branches of this catalog's tables."""
        return Branches(self.tables)

    @cached_property
    def changes(self) -> SliceChanges:
        """Changes of slices of this catalog's tables."""
        return SliceChanges(self.tables)

    @cached_property
    def files(self) -> TableFiles:
        """Commits of data files that tasks wrote."""
        return TableFiles(self.tables)

    def identifier(self, table: Table) -> str:
        """Return the table's name in SQL, `lake.refined.events`."""
        return self.tables.identifier(table)

    def head(self, table: Table) -> int:
        """Return main's snapshot id; raises LakehouseError for an unknown table, or one that was never written."""
        resting = self._at_rest(table)
        if resting is not None and resting.head is not None:
            return resting.head
        if table.key not in self._known:
            if not self.knows(table):
                hint = "Load days first (tidemark load --help), or check TIDEMARK_CATALOG_URL and TIDEMARK_CATALOG_NAME"
                raise LakehouseError(self.identifier(table), "the catalog knows no such table", hint)
            require_columns(self.tables, table)
            self._known.add(table.key)
        if (snapshot := self.tables.current(table).currentSnapshot()) is None:
            hint = "Load days: tidemark load --help"
            raise LakehouseError(self.identifier(table), "was created and never written", hint)
        return int(snapshot.snapshotId())

    def read(self, table: Table, snapshot_id: int) -> DataFrame:
        """Return the table as of a snapshot, also a staged one; a column that it lacked then is null."""
        rows = self.spark.read.option("versionAsOf", snapshot_id).table(self.identifier(table))
        return metadata.with_missing(rows, table)

    def slice_files(
        self, table: Table, snapshot_id: int, slices: Collection[Slice] | None = None, held_in: str | None = None
    ) -> dict[Slice, metadata.SliceFiles]:
        """Return the live files per slice; `held_in`: a column of days, for all files that may hold these projects and days."""
        java = self.tables.knowing(table, snapshot_id)
        return metadata.by_slice(self.tables.files(java, snapshot_id, slices, held_in))

    def column_bytes(
        self, table: Table, snapshot_id: int, slices: Collection[Slice], columns: Collection[str], held_in: str | None
    ) -> int:
        """Return the bytes of these columns in the files that `slice_files` returns; a file without such sizes counts whole."""
        java = self.tables.knowing(table, snapshot_id)
        ids = [field.fieldId() for name in columns if (field := java.schema().findField(name)) is not None]
        total = 0
        for file in self.tables.files(java, snapshot_id, slices, held_in).values():
            sizes = file.columnSizes()
            total += int(file.fileSizeInBytes()) if sizes is None else sum(sizes.get(number) or 0 for number in ids)
        return total

    def lost_slices(self, table: Table, snapshot_id: int, slices: Collection[Slice]) -> dict[Slice, str]:
        """Return main's slices among these that lost a data file -> the first such file."""
        resting = None if self._catalog is None else self._catalog.table(table)
        if resting is None or resting.head != snapshot_id:
            files = self.slice_files(table, snapshot_id, slices)
            return lost_slices({key: one.paths for key, one in files.items()})
        lost = lost_at_rest(resting, {key.event_date for key in slices})
        return {key: path for key, path in lost.items() if key in slices}

    def commits(self, table: Table, since: int | None) -> list[metadata.Commit]:
        """Return commits to main after the snapshot `since`, newest first; for None all kept ones."""
        return list(self.tables.commits(self.tables.current(table), since))

    def ancestry(self, table: Table) -> dict[int, datetime]:
        """Return the kept snapshots of main's history -> commit time, newest first."""
        return metadata.ancestry(self.tables.current(table))

    def snapshot_ids(self, table: Table) -> frozenset[int]:
        """Return all kept snapshots of the table, staged ones included."""
        return frozenset(int(snapshot.snapshotId()) for snapshot in self.tables.current(table).snapshots())

    def require_own(
        self, settings: Settings, ours: Collection[Table], purpose: Purpose, ledger: LakeOfLedger | None
    ) -> None:
        """Raise LakehouseError or LedgerError unless warehouse, catalog, ledger and all tables' places are one lake."""
        if (at_rest := self._catalog) is not None:
            known = at_rest.namespace_properties(NAMESPACE)
            if is_one_lake(settings, known, partial(at_rest.outside, ours), purpose, ledger):
                return
        again(partial(require_own_lake, self.tables, settings, ours, purpose, ledger))

    def knows(self, table: Table) -> bool:
        """Whether the catalog knows the table; creates nothing."""
        is_known = table.key in self._known or self._at_rest(table) is not None
        return is_known or bool(again(lambda: self.tables.exists(table)))

    def place(self, table: Table) -> str:
        """Return the table's location, whether or not it exists yet."""
        return self.tables.place(table)

    def ensure(self, table: Table) -> None:
        """Create the table with an empty snapshot unless it exists; raises LakehouseError where its location is in use."""
        if not _is_whole(self._at_rest(table), table) and table.key not in self._ensured:
            again(partial(prepare, self.tables, table))
            self._known.add(table.key)
            self._ensured.add(table.key)

    def sweep(self, tables: Sequence[Table], is_live: IsLive) -> list[str]:
        """Drop the branches of dead attempts; returns `table:branch` of each."""
        if not any(_has_drafts(self._at_rest(table)) for table in tables):
            return []
        return self.branches.sweep(tables, is_live)

    def _at_rest(self, table: Table) -> TableAtRest | None:
        return None if self._catalog is None or self.engine is not None else self._catalog.table(table)

    def stage(self, table: Table, base_id: int, attempt: str, write: Callable[[str], None]) -> Staged:
        """Create a branch at `base_id`, let `write` fill it by its SQL name, and return the staged snapshot."""
        branch = self.branches.create(table, attempt, base_id)
        try:
            staged = self._filled(table, attempt, base_id, write)
        except BaseException:
            self.branches.drop(table, [branch])
            raise
        failpoint(Failpoint.AFTER_STAGE, table.key)
        return staged

    def extend(self, table: Table, attempt: str, base_id: int, write: Callable[[str], None]) -> Staged:
        """Let `write` change the attempt's branch, made at `base_id` and kept even after a failure; returns its new snapshot."""
        if self.branches.head(table, attempt) is None:
            self.branches.create(table, attempt, base_id)
        staged = self._filled(table, attempt, base_id, write)
        failpoint(Failpoint.AFTER_GREEN, table.key)
        return staged

    def _filled(self, table: Table, attempt: str, base_id: int, write: Callable[[str], None]) -> Staged:
        branch = self.branches.name(attempt)
        write(f"{self.identifier(table)}.branch_{branch}")
        if (snapshot_id := self.branches.head(table, attempt)) is None:
            raise LakehouseError(table.key, f"somebody removed the branch {branch}", "Start it again")
        return Staged(table, branch, base_id, snapshot_id)

    def replace_slices(self, table: Table, target: str, slices: Collection[Slice], rows: DataFrame) -> None:
        """Write `rows` over exactly these slices of a branch; slices without rows become empty."""
        placed = rows.select(*[column.name for column in table.columns])
        placed.writeTo(target).overwrite(metadata.slices_condition(table, slices))

    def keep_rows(self, table: Table, target: str, slices: Collection[Slice], condition: str) -> None:
        """Rewrite these slices of a branch with only the rows that meet a SQL condition, all columns included."""
        where = metadata.slices_condition(table, slices)
        rows = self.spark.read.table(target).where(where).where(condition)
        rows.writeTo(target).option("fanout-enabled", "false").overwrite(where)

    def join_files(self, table: Table, target: str, slices: Collection[Slice], small_bytes: int) -> None:
        """Join these slices' files on a branch that are smaller than `small_bytes` or have rows that delete files hide."""
        actions = self.tables.java_class("org.apache.iceberg.spark.actions.SparkActions")
        joining = actions.get(self.spark._jsparkSession).rewriteDataFiles(self.tables.current(table))
        options = {"min-file-size-bytes": small_bytes, "max-file-size-bytes": _ANY_BYTES, "min-input-files": 2}
        for name, value in (options | {"delete-file-threshold": 1}).items():
            joining = joining.option(name, str(value))
        joining = joining.toBranch(target.rpartition(".branch_")[2])
        joining.filter(self.tables.expression(table.day_column, slices)).execute()

    def drop(self, staged: Staged) -> None:
        """Drop a staged branch; its snapshot stays until maintenance expires it."""
        self.branches.drop(staged.table, [staged.branch])


def _is_whole(resting: TableAtRest | None, table: Table) -> bool:
    return (
        resting is not None
        and resting.head is not None
        and resting.columns >= {column.name for column in table.columns}
        and resting.properties.items() >= KEPT_PROPERTIES.items()
    )


def _has_drafts(resting: TableAtRest | None) -> bool:
    return resting is None or any(name.startswith(PREFIX) for name in resting.refs)
