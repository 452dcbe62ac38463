"""Stage, audit, publish: the only code that writes tables (FACTS: the protocol; DESIGN laws 2 and 6).

Lives here: branches, staged snapshots, the exact file diff, one conflict-checked commit per publish. Put here: any
operation on Iceberg metadata. Keep out: what is written (tables/) and whether it may be seen (load_path/).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError, PublishConflictError
from pipeline_assets.domain.slices import Slice
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.base import PySparkException

from resources.crash_points import CrashPoint, crash_point

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table
    from pyspark.sql import DataFrame, SparkSession

RUN_PROPERTY = "tidemark.run-id"
PUBLISH_PROPERTY = "tidemark.publish-id"
BRANCH_PREFIX = "tidemark_"
_AS_IT_COMES = {"use-table-distribution-and-ordering": "false", "distribution-mode": "none"}
"""Options of a write whose rows are in place already."""
_EPOCH = date(1970, 1, 1)
_REFERENCE_ATTEMPTS = 5
_CONFLICT_MARKS = (
    "Found conflicting files",
    "Missing required files to delete",
    "Cannot commit, found new",
    "CommitFailedException",
    "ValidationException",
)


@dataclass(frozen=True)
class SliceFiles:
    """The live data files of one slice in one snapshot."""

    paths: frozenset[str]
    rows: int

    @property
    def file_hash(self) -> str:
        """Names exactly this set of files; the ledger's row counts only while it matches (law 10)."""
        return hashlib.sha256("\n".join(sorted(self.paths)).encode()).hexdigest()[:32]


NO_FILES = SliceFiles(frozenset(), 0)


@dataclass(frozen=True)
class Staged:
    """A staged snapshot on a branch: complete, readable, invisible on main."""

    table: Table
    branch: str
    base_id: int
    snapshot_id: int


@dataclass(frozen=True)
class Publication:
    """One commit to main."""

    snapshot_id: int
    parent_id: int
    files: Mapping[Slice, SliceFiles]
    """The live files of every published slice after the commit."""
    is_empty: bool = False
    """True where the staged files were live already and nothing was committed."""


class Lakehouse:
    """Iceberg tables behind one catalog name, written through branches and exact file swaps."""

    def __init__(self, spark: SparkSession, catalog_name: str) -> None:
        """Wrap a session whose catalog `catalog_name` is configured (resources/spark.py)."""
        self.spark = spark
        self.catalog_name = catalog_name
        self._ensured: set[str] = set()

    # -- reading -----------------------------------------------------------------------------------------------

    def identifier(self, table: Table) -> str:
        """The table's name in SQL, `lake.refined.events`."""
        return f"{self.catalog_name}.{table.identifier}"

    def head(self, table: Table) -> int:
        """Snapshot id of main."""
        self.ensure(table)
        return int(self._java(table).currentSnapshot().snapshotId())

    def read(self, table: Table, snapshot_id: int) -> DataFrame:
        """The table as of a snapshot, staged ones included."""
        return self.spark.read.option("versionAsOf", snapshot_id).table(self.identifier(table))

    def slice_files(
        self, table: Table, snapshot_id: int, slices: Collection[Slice] | None = None
    ) -> dict[Slice, SliceFiles]:
        """Live files and row counts per slice from metadata alone; all slices, or only those asked for."""
        grouped: dict[Slice, list[tuple[str, int]]] = {}
        for path, file in self._plan(self._java(table), snapshot_id, slices).items():
            grouped.setdefault(_slice_of(file), []).append((path, int(file.recordCount())))
        return {
            key: SliceFiles(frozenset(path for path, _ in files), sum(rows for _, rows in files))
            for key, files in grouped.items()
            if slices is None or key in slices
        }

    def ancestry(self, table: Table, since: int | None) -> list[tuple[int, str | None]]:
        """Main's snapshots newer than `since`, newest first, each with the run id that wrote it, None for foreign ones.

        Compactions by maintenance count as foreign here; the caller tells them apart by digest.
        """
        java = self._java(table)
        found: list[tuple[int, str | None]] = []
        snapshot = java.currentSnapshot()
        while snapshot is not None and snapshot.snapshotId() != since:
            found.append((int(snapshot.snapshotId()), snapshot.summary().get(RUN_PROPERTY)))
            parent = snapshot.parentId()
            snapshot = java.snapshot(parent) if parent is not None else None
        return found

    # -- tables ------------------------------------------------------------------------------------------------

    def ensure(self, table: Table) -> None:
        """Create the table with its write order and one empty snapshot, unless it is there."""
        if table.key in self._ensured:
            return
        name = self.identifier(table)
        if not self.spark.catalog.tableExists(name):
            self._create(table, name)
        missing = {column.name for column in table.columns} - set(self.spark.table(name).columns)
        if missing:
            raise LakehouseError(
                name, f"has no column {sorted(missing)[0]}", "Point Tidemark at a warehouse of its own"
            )
        if self._java(table).currentSnapshot() is None:
            self.spark.createDataFrame([], self.spark.table(name).schema).writeTo(name).append()
        self._ensured.add(table.key)

    def _create(self, table: Table, name: str) -> None:
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rsplit('.', 1)[0]}")
        columns = ", ".join(f"`{c.name}` {c.type}{' NOT NULL' if c.is_required else ''}" for c in table.columns)
        properties = {
            "format-version": "2",
            "commit.retry.num-retries": "20",
            "write.delete.mode": "copy-on-write",
            "write.parquet.compression-codec": "zstd",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "20",
            **{f"write.metadata.metrics.column.{column}": "full" for column in table.exact_bounds},
        }
        listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg "
            f"PARTITIONED BY ({table.day_column}, project_id) TBLPROPERTIES ({listed})"
        )
        order = ", ".join(table.write_order)
        self.spark.sql(f"ALTER TABLE {name} WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY {order}")

    # -- stage, audit, publish ---------------------------------------------------------------------------------

    def stage(self, table: Table, base_id: int, attempt: str, write: Callable[[str], None]) -> Staged:
        """Create a branch at `base_id`, let `write` fill it by its SQL name, and return the staged snapshot."""
        branch = BRANCH_PREFIX + attempt
        self._drop_branch(table, branch)
        self._reference(table, lambda snapshots: snapshots.createBranch(branch, base_id))
        try:
            write(f"{self.identifier(table)}.branch_{branch}")
            java = self._java(table)
            staged = Staged(table, branch, base_id, int(java.snapshot(branch).snapshotId()))
        except BaseException:
            self._drop_branch(table, branch)
            raise
        crash_point(CrashPoint.AFTER_STAGE, table.key)
        return staged

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
        writer.overwrite(_condition(table, slices))

    def append_in_order(self, target: str, rows: DataFrame) -> None:
        """Append to a branch without moving a row: every task writes what it holds, in the order it holds it.

        For rows that come in the table's order by task; spares the shuffle and the sort of what is wide.
        """
        rows.writeTo(target).options(**_AS_IT_COMES, **{"fanout-enabled": "true"}).append()

    def publish(self, staged: Staged, slices: Collection[Slice], run_id: str) -> Publication:
        """Swap the staged files of exactly these slices into main, in one commit.

        Raises PublishConflictError, with nothing published, when main changed in one of them since the base.
        """
        java = self._java(staged.table)
        wanted = set(slices)
        new = _only(self._plan(java, staged.snapshot_id, wanted), wanted)
        old = _only(self._plan(java, staged.base_id, wanted), wanted)
        files = _group(new, wanted)
        if old.keys() == new.keys():
            return Publication(staged.base_id, staged.base_id, files, is_empty=True)
        publish_id = f"{staged.branch}-{hashlib.sha256(repr(sorted(map(str, wanted))).encode()).hexdigest()[:12]}"
        operation = java.newOverwrite()
        for path in sorted(old.keys() - new.keys()):
            operation.deleteFile(old[path])
        for path in sorted(new.keys() - old.keys()):
            operation.addFile(new[path])
        operation.validateFromSnapshot(staged.base_id)
        operation.conflictDetectionFilter(self._expression(staged.table, wanted))
        operation.validateNoConflictingData().validateNoConflictingDeletes()
        operation.set(RUN_PROPERTY, run_id)
        operation.set(PUBLISH_PROPERTY, publish_id)
        crash_point(CrashPoint.BEFORE_COMMIT, staged.table.key)
        try:
            operation.commit()
        except (Py4JError, PySparkException) as error:
            if any(mark in str(error) for mark in _CONFLICT_MARKS):
                raise PublishConflictError(
                    f"{staged.table.key} {', '.join(sorted(map(str, wanted))[:3])}",
                    "another writer changed a slice since it was read",
                    "Nothing was published; the load rebuilds it from fresh inputs",
                ) from error
            raise
        crash_point(CrashPoint.AFTER_COMMIT, staged.table.key)
        snapshot_id, parent_id = self._committed(staged.table, publish_id)
        return Publication(snapshot_id, parent_id, files)

    def drop(self, staged: Staged) -> None:
        """Drop a staged branch; its snapshot stays until maintenance expires it."""
        self._drop_branch(staged.table, staged.branch)

    def sweep(self, tables: Iterable[Table], is_live: Callable[[str], bool]) -> list[str]:
        """Drop the branches of attempts that are not live; returns `table:branch` of each dropped one."""
        dropped = []
        for table in tables:
            self.ensure(table)
            for name in list(self._java(table).refs().keySet()):
                if name.startswith(BRANCH_PREFIX) and not is_live(name.removeprefix(BRANCH_PREFIX)):
                    self._drop_branch(table, name)
                    dropped.append(f"{table.key}:{name}")
        return dropped

    # -- Java ----------------------------------------------------------------------------------------------------

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm

    def _java(self, table: Table) -> Any:
        # A run's op may live in a thread of its own, where table loading needs the session made active.
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(self.spark._jsparkSession)
        loader = self._jvm.org.apache.iceberg.spark.Spark3Util
        return loader.loadIcebergTable(self.spark._jsparkSession, self.identifier(table))

    def _committed(self, table: Table, publish_id: str) -> tuple[int, int]:
        java = self._java(table)
        snapshot = java.currentSnapshot()
        while snapshot is not None and snapshot.summary().get(PUBLISH_PROPERTY) != publish_id:
            parent = snapshot.parentId()
            snapshot = java.snapshot(parent) if parent is not None else None
        if snapshot is None:
            raise LakehouseError(self.identifier(table), "a commit is not in main's history", "Load the days again")
        return int(snapshot.snapshotId()), int(snapshot.parentId())

    def _plan(self, java: Any, snapshot_id: int, slices: Collection[Slice] | None) -> dict[str, Any]:
        """Path -> Java DataFile of a snapshot; filtered where slices are given (a superset of them)."""
        scan = java.newScan().useSnapshot(snapshot_id)
        if slices is not None:
            if not slices:
                return {}
            day_field = java.spec().fields().get(0).name()
            scan = scan.filter(self._filter(day_field, slices))
        files: dict[str, Any] = {}
        tasks = scan.includeColumnStats().planFiles()
        try:
            iterator = tasks.iterator()
            while iterator.hasNext():
                task = iterator.next()
                if task.deletes().size():
                    raise LakehouseError(
                        java.name(), "holds delete files, which Tidemark never writes", "Rewrite its data files"
                    )
                file = task.file()
                files[str(file.location())] = file
        finally:
            tasks.close()
        return files

    def _expression(self, table: Table, slices: Collection[Slice]) -> Any:
        return self._filter(table.day_column, slices)

    def _filter(self, day_column: str, slices: Collection[Slice]) -> Any:
        expressions = self._jvm.org.apache.iceberg.expressions.Expressions
        combined = expressions.alwaysFalse()
        for project_id, days in sorted(_days_by_project(slices).items()):
            literals = self._jvm.java.util.ArrayList()
            for day in sorted(days):
                literals.add(day.isoformat())
            of_days = getattr(expressions, "in")(day_column, literals)
            combined = getattr(expressions, "or")(
                combined, getattr(expressions, "and")(expressions.equal("project_id", project_id), of_days)
            )
        return combined

    def _drop_branch(self, table: Table, branch: str) -> None:
        if self._java(table).refs().containsKey(branch):
            self._reference(table, lambda snapshots: snapshots.removeBranch(branch))

    def _reference(self, table: Table, change: Callable[[Any], Any]) -> None:
        """Run a reference operation, which Iceberg itself never retries."""
        for attempt in range(_REFERENCE_ATTEMPTS):
            try:
                change(self._java(table).manageSnapshots()).commit()
            except (Py4JError, PySparkException) as error:
                if "CommitFailedException" not in str(error) or attempt == _REFERENCE_ATTEMPTS - 1:
                    raise
                time.sleep(0.1 * 2**attempt)
            else:
                return


def _slice_of(file: Any) -> Slice:
    partition = file.partition()
    value = partition.toString()
    # PartitionData renders as PartitionData{event_date=20454, project_id=10001}: one call instead of typed getters.
    fields = dict(part.split("=", 1) for part in value[value.index("{") + 1 : -1].split(", "))
    day, project_id = fields.values()
    return Slice(_EPOCH + timedelta(days=int(day)), project_id)


def _only(files: Mapping[str, Any], slices: set[Slice]) -> dict[str, Any]:
    return {path: file for path, file in files.items() if _slice_of(file) in slices}


def _group(files: Mapping[str, Any], slices: Collection[Slice]) -> dict[Slice, SliceFiles]:
    paths: dict[Slice, list[str]] = {key: [] for key in slices}
    rows: dict[Slice, int] = dict.fromkeys(slices, 0)
    for path, file in files.items():
        key = _slice_of(file)
        paths[key].append(path)
        rows[key] += int(file.recordCount())
    return {key: SliceFiles(frozenset(paths[key]), rows[key]) for key in paths}


def _days_by_project(slices: Iterable[Slice]) -> dict[str, set[date]]:
    days: dict[str, set[date]] = {}
    for key in slices:
        days.setdefault(key.project_id, set()).add(key.event_date)
    return days


def _condition(table: Table, slices: Collection[Slice]) -> Any:
    """The slices as a Spark condition that maps to whole partitions."""
    import pyspark.sql.functions as F  # noqa: PLC0415 - keeps this module importable without a running Spark

    condition = F.lit(False)
    for project_id, days in sorted(_days_by_project(slices).items()):
        condition = condition | ((F.col("project_id") == project_id) & F.col(table.day_column).isin(*sorted(days)))
    return condition


def slices_condition(table: Table, slices: Collection[Slice]) -> Any:
    """The slices as a Spark column condition, for reading."""
    return _condition(table, slices)
