"""Iceberg's metadata through its Java API: snapshots, the files of slices, filters over slices and batches.

Contains: reading metadata, and the slices of a file.
Add here: another thing to be read from metadata.
Does not contain: anything that writes (lakehouse.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import Slice, Source, days_by_project

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pipeline_assets.tables.table import Table

RUN_PROPERTY = "tidemark.run-id"
_EPOCH = date(1970, 1, 1)


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
class Commit:
    """One snapshot of main's history."""

    snapshot_id: int
    parent_id: int | None
    run_id: str | None
    """Of the run of ours that wrote it; None for foreign ones."""
    slices: frozenset[Slice]
    """Those whose files it changed."""
    committed_at: str
    """Aware time as ISO text, by the clock of the machine that committed."""


class JavaTables:
    """Loads tables of one catalog as Java objects."""

    def __init__(self, spark: SparkSession, catalog_name: str) -> None:
        """Wrap a session whose catalog `catalog_name` is configured (spark/session.py)."""
        self.spark = spark
        self.catalog_name = catalog_name

    def java_class(self, name: str) -> Any:
        """A class of the JVM, in one question: a name written with dots asks for each part of it, in every jar there is."""
        return getattr(self.spark._jvm, name)

    def identifier(self, table: Table) -> str:
        """The table's name in SQL, `lake.refined.events`."""
        return f"{self.catalog_name}.{table.identifier}"

    def exists(self, table: Table) -> bool:
        """Whether the catalog knows the table."""
        self._activate()
        return bool(self.spark.catalog.tableExists(self.identifier(table)))

    def place(self, table: Table) -> str:
        """Where the table lies once it is created: in the warehouse that the session was told, whatever catalog it is."""
        warehouse = str(self.spark.conf.get(f"spark.sql.catalog.{self.catalog_name}.warehouse")).rstrip("/")
        return f"{warehouse}/{table.identifier.replace('.', '/')}"

    def location(self, table: Table) -> str:
        """Where a table that the catalog knows lies."""
        return str(self.load(table).location())

    def namespace_properties(self, namespace: str) -> dict[str, str]:
        """What the catalog keeps of a namespace; nothing where it knows none of this name."""
        self._activate()
        catalog = self._spark_catalog()
        gateway: Any = self.spark.sparkContext._gateway
        names = gateway.new_array(self.java_class("java.lang.String"), 1)
        names[0] = namespace
        if not catalog.namespaceExists(names):
            return {}
        return {str(key): str(value) for key, value in dict(catalog.loadNamespaceMetadata(names)).items()}

    def load(self, table: Table) -> Any:
        """The table as it is now."""
        self._activate()
        loader = self.java_class("org.apache.iceberg.spark.Spark3Util")
        return loader.loadIcebergTable(self.spark._jsparkSession, self.identifier(table))

    def catalog(self) -> Any:
        """Iceberg's catalog itself."""
        self._activate()
        return self._spark_catalog().icebergCatalog()

    def _spark_catalog(self) -> Any:
        return self.spark._jsparkSession.sessionState().catalogManager().catalog(self.catalog_name)

    def _activate(self) -> None:
        # A run's op may live in a thread of its own, where table loading needs the session made active.
        self.java_class("org.apache.spark.sql.SparkSession").setActiveSession(self.spark._jsparkSession)

    def files(self, java: Any, snapshot_id: int, slices: Collection[Slice] | None) -> dict[str, Any]:
        """Path -> Java DataFile of a snapshot; of these slices alone where any are given.

        Raises LakehouseError for delete files, which are never written here.
        """
        scan = java.newScan().useSnapshot(snapshot_id)
        if slices is not None:
            if not slices:
                return {}
            scan = scan.filter(self.expression(java.spec().fields().get(0).name(), slices))
        files: dict[str, Any] = {}
        with closing(scan.includeColumnStats().planFiles()) as tasks:
            for task in _each(tasks):
                if task.deletes().size():
                    raise LakehouseError(
                        java.name(), "holds delete files, which Tidemark never writes", "Rewrite its data files"
                    )
                file = task.file()
                # Files are planned by their metrics: a superset of the slices asked for.
                if slices is None or slice_of(file) in slices:
                    files[str(file.location())] = file
        return files

    def may_hold(self, java: Any, snapshot_id: int, expression: Any) -> bool:
        """Whether a scan of a snapshot with this filter would open any file."""
        with closing(java.newScan().useSnapshot(snapshot_id).filter(expression).planFiles()) as tasks:
            return bool(tasks.iterator().hasNext())

    def expression(self, day_column: str, slices: Collection[Slice]) -> Any:
        """The slices as an Iceberg expression."""
        expressions = self.java_class("org.apache.iceberg.expressions.Expressions")
        combined = expressions.alwaysFalse()
        for project_id, days in sorted(days_by_project(slices).items()):
            literals = self.java_class("java.util.ArrayList")()
            for day in sorted(days):
                literals.add(day.isoformat())
            of_days = getattr(expressions, "in")(day_column, literals)
            combined = getattr(expressions, "or")(
                combined, getattr(expressions, "and")(expressions.equal("project_id", project_id), of_days)
            )
        return combined

    def commits(self, java: Any, since: int | None) -> Iterator[Commit]:
        """Commits of main's history made after the snapshot `since` was its head, newest first; all that are kept for None.

        A head that was set back to an older snapshot is no commit: what that undid is told by the files alone.
        """
        heads = [int(entry.snapshotId()) for entry in _each(java.history())]
        start = len(heads) - heads[::-1].index(since) if since in heads else 0
        fresh = set(heads[start:]) - set(heads[:start])
        snapshot = java.currentSnapshot()
        while snapshot is not None and snapshot.snapshotId() in fresh:
            parent_id = snapshot.parentId()
            yield Commit(
                int(snapshot.snapshotId()),
                None if parent_id is None else int(parent_id),
                snapshot.summary().get(RUN_PROPERTY),
                frozenset(self._changed(java, snapshot)),
                committed_at(snapshot).isoformat(),
            )
            snapshot = java.snapshot(parent_id) if parent_id is not None else None

    def ancestry(self, java: Any) -> Iterator[tuple[int, datetime]]:
        """Main's snapshots and when they were committed, newest first, as far as they are kept."""
        snapshot = java.currentSnapshot()
        while snapshot is not None:
            yield int(snapshot.snapshotId()), committed_at(snapshot)
            parent_id = snapshot.parentId()
            snapshot = java.snapshot(parent_id) if parent_id is not None else None

    def snapshot_ids(self, java: Any) -> Iterator[int]:
        """All that are kept."""
        return (int(snapshot.snapshotId()) for snapshot in _each(java.snapshots()))

    def _changed(self, java: Any, snapshot: Any) -> set[Slice]:
        changes = self.java_class("org.apache.iceberg.SnapshotChanges").builderFor(java).snapshot(snapshot).build()
        return {
            slice_of(file) for files in (changes.addedDataFiles(), changes.removedDataFiles()) for file in _each(files)
        }


def committed_at(snapshot: Any) -> datetime:
    """When a Java snapshot was committed, by the clock of who did."""
    return datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC)


def _each(iterable: Any) -> Iterator[Any]:
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def slice_of(file: Any) -> Slice:
    """The slice of a Java DataFile."""
    value = file.partition().toString()
    # PartitionData renders as PartitionData{event_date=20454, project_id=10001}: one call instead of typed getters.
    fields = dict(part.split("=", 1) for part in value[value.index("{") + 1 : -1].split(", "))
    day, project_id = fields.values()
    return Slice(_EPOCH + timedelta(days=int(day)), project_id)


def by_slice(files: Mapping[str, Any], slices: Iterable[Slice] = ()) -> dict[Slice, SliceFiles]:
    """Files grouped; the slices named are there even where they have none."""
    paths: dict[Slice, list[str]] = {key: [] for key in slices}
    rows: dict[Slice, int] = dict.fromkeys(paths, 0)
    for path, file in files.items():
        key = slice_of(file)
        paths.setdefault(key, []).append(path)
        rows[key] = rows.get(key, 0) + int(file.recordCount())
    return {key: SliceFiles(frozenset(own), rows[key]) for key, own in paths.items()}


def slices_condition(table: Table, slices: Collection[Slice]) -> Column:
    """The slices as a condition over columns, which maps to whole partitions."""
    import pyspark.sql.functions as F  # noqa: PLC0415 - keeps this module importable without a running Spark

    condition = F.lit(False)
    for project_id, days in sorted(days_by_project(slices).items()):
        condition = condition | ((F.col("project_id") == project_id) & F.col(table.day_column).isin(*sorted(days)))
    return condition


def with_missing(rows: DataFrame, table: Table) -> DataFrame:
    """The rows with every column of the table; those that a snapshot's schema did not have are null."""
    import pyspark.sql.functions as F  # noqa: PLC0415 - keeps this module importable without a running Spark

    present = set(rows.columns)
    missing = {c.name: F.lit(None).cast(c.type) for c in table.columns if c.name not in present}
    return rows.withColumns(missing) if missing else rows


def in_batches(batches: Collection[BatchKey], source_column: str | None, day_column: str) -> Column:
    """Whether a row lies in one of these batches; `source_column` is None where a table holds one source."""
    import pyspark.sql.functions as F  # noqa: PLC0415 - keeps this module importable without a running Spark

    condition = F.lit(False)
    by_project: dict[tuple[Source, str], list[date]] = {}
    for batch in batches:
        by_project.setdefault((batch.source, batch.project_id), []).append(batch.arrival_date)
    for (source, project_id), days in by_project.items():
        part = (F.col("project_id") == project_id) & F.col(day_column).isin(*days)
        condition = condition | (part if source_column is None else part & (F.col(source_column) == source.value))
    return condition
