"""Read Iceberg's metadata through its Java API: snapshots, the files of slices, filters over slices and batches."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import chain, takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import Slice, days_by_project
from resources.iceberg.catalog_at_rest import RUN_PROPERTY
from resources.iceberg.errors import again

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pipeline_assets.tables.table import Table

WAREHOUSE_OF = "spark.tidemark.warehouse"
"""Prefix of a session's setting, before the catalog's name; a REST catalog may name a warehouse without its place."""
_EPOCH = date(1970, 1, 1)
_MOST_KEPT, _MOST_KEPT_FILES = 64, 64
"""The JVM holds some kilobytes of metrics per file."""


@dataclass(frozen=True)
class SliceFiles:
    """The live files of one slice in one snapshot."""

    paths: frozenset[str]
    rows: int
    """Of the data files; where there are deletes, readers see fewer."""
    deletes: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)
    rows_of: Mapping[str, int] = field(default_factory=dict)
    """Path of a data file -> its bytes, and its rows."""

    @property
    def file_hash(self) -> str:
        """A hash of exactly this set of files; a ledger row is believed only while it matches (law 10)."""
        return hashlib.sha256("\n".join(sorted(self.paths | self.deletes)).encode()).hexdigest()[:32]


NO_FILES = SliceFiles(frozenset(), 0)


class LiveFiles(dict[str, Any]):
    """Path -> Java DataFile; `deletes`: path -> name -> Java DeleteFile that applies to it."""

    deletes: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    @property
    def names(self) -> frozenset[str]:
        """The names of all files, which identify a slice's state."""
        return frozenset(self).union(*self.deletes.values())


@dataclass(frozen=True)
class Commit:
    """One snapshot of main's history."""

    snapshot_id: int
    parent_id: int | None
    run_id: str | None
    """None for a foreign commit."""
    slices: frozenset[Slice]
    committed_at: str
    """Timezone-aware ISO 8601, by the committer's clock."""


class JavaTables:
    """Loads tables of one catalog as Java objects."""

    def __init__(self, spark: SparkSession, catalog_name: str) -> None:
        self.spark, self.catalog_name = spark, catalog_name
        self._kept: dict[tuple[str, int, frozenset[Slice] | None, str | None], LiveFiles] = {}
        self._loaded: dict[str, Any] = {}
        self._here = threading.local()

    def java_class(self, name: str) -> Any:
        """Return a class of the JVM in one round trip; attribute access looks up each part of the name in every jar."""
        return getattr(self.spark._jvm, name)

    def java_list(self, items: Iterable[Any]) -> Any:
        """Return a Java list of these strings or Java objects."""
        listed = self.java_class("java.util.ArrayList")()
        for item in items:
            listed.add(item)
        return listed

    def identifier(self, table: Table) -> str:
        """Return the table's name in SQL, `lake.refined.events`."""
        return f"{self.catalog_name}.{table.identifier}"

    def exists(self, table: Table) -> bool:
        """Whether the catalog knows the table; fails where it does and the metadata file is gone."""
        return bool(self.catalog().tableExists(self.name(table))) and self.load(table) is not None

    def name(self, table: Table) -> Any:
        """Return the table's name in Iceberg's catalog."""
        return self.java_class("org.apache.iceberg.catalog.TableIdentifier").parse(table.identifier)

    def place(self, table: Table) -> str:
        """Return a new table's location in the session's warehouse, for any type of catalog."""
        warehouse = str(self.spark.conf.get(f"{WAREHOUSE_OF}.{self.catalog_name}"))
        return f"{warehouse}/{table.identifier.replace('.', '/')}"

    def namespace_properties(self, namespace: str) -> dict[str, str]:
        """Return a namespace's properties in the catalog; empty for an unknown namespace."""
        catalog = self._spark_catalog()
        gateway: Any = self.spark.sparkContext._gateway
        names = gateway.new_array(self.java_class("java.lang.String"), 1)
        names[0] = namespace
        if not catalog.namespaceExists(names):
            return {}
        entries = catalog.loadNamespaceMetadata(names).entrySet()
        return {str(entry.getKey()): str(entry.getValue()) for entry in each(entries)}

    def set_namespace_properties(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Set a namespace's properties in the catalog; creates a missing namespace."""
        named, listed = f"{self.catalog_name}.{namespace}", ", ".join(f"'{k}'='{v}'" for k, v in properties.items())
        again(lambda: self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {named}"))
        again(lambda: self.spark.sql(f"ALTER NAMESPACE {named} SET PROPERTIES ({listed})"))

    def load(self, table: Table) -> Any:
        """Load the table's current state as a Java object."""
        self._activate()
        loader = self.java_class("org.apache.iceberg.spark.Spark3Util")
        java = loader.loadIcebergTable(self.spark._jsparkSession, self.identifier(table))
        self._loaded[table.key] = java
        return java

    def knowing(self, table: Table, snapshot_id: int | None = None) -> Any:
        """Return the table as loaded last if it knows this snapshot, for facts that never change, such as its location."""
        java = self._loaded.get(table.key)
        is_known = java is not None and (snapshot_id is None or java.snapshot(snapshot_id) is not None)
        return java if is_known else self.current(table)

    def column_names(self, java: Any) -> dict[str, int]:
        """Return the names of a table's columns and their ids, in one call: a wide table would take hundreds."""
        parser = self.java_class("org.apache.iceberg.SchemaParser")
        return {field["name"]: field["id"] for field in json.loads(parser.toJson(java.schema()))["fields"]}

    def current(self, table: Table) -> Any:
        """Load the table with retries while the catalog is out of reach."""
        return again(partial(self.load, table))

    def metadata_files(self, java: Any) -> list[str]:
        """Return the locations of the metadata files that a table's present one lists, and its own, oldest first."""
        metadata = java.operations().current()
        return [*(str(entry.file()) for entry in metadata.previousFiles()), str(metadata.metadataFileLocation())]

    def catalog(self) -> Any:
        """Return Iceberg's own Java catalog."""
        return self._spark_catalog().icebergCatalog()

    def _spark_catalog(self) -> Any:
        self._activate()
        return self.spark._jsparkSession.sessionState().catalogManager().catalog(self.catalog_name)

    def _activate(self) -> None:
        # Dagster may run an op in its own thread, where the session must be active too.
        if getattr(self._here, "session", None) is not self.spark:
            self.java_class("org.apache.spark.sql.SparkSession").setActiveSession(self.spark._jsparkSession)
            self._here.session = self.spark

    def files(
        self, java: Any, snapshot_id: int, slices: Collection[Slice] | None, held_in: str | None = None
    ) -> LiveFiles:
        """Return a snapshot's live files; `held_in`: a column of days, for all files that may hold these projects and days."""
        if slices is not None and not slices:
            return LiveFiles()
        question = (str(java.name()), snapshot_id, None if slices is None else frozenset(slices), held_in)
        files = self._kept.get(question)
        if files is None:
            files = self._planned(java, snapshot_id, slices, held_in)
            if len(files) <= _MOST_KEPT_FILES:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                self._kept[question] = files
        return files

    def _planned(self, java: Any, snapshot_id: int, slices: Collection[Slice] | None, held_in: str | None) -> LiveFiles:
        scan = java.newScan().useSnapshot(snapshot_id)
        if slices is not None:
            scan = scan.filter(self.expression(held_in or java.spec().fields().get(0).name(), slices))
        files, deletes = LiveFiles(), dict[str, Mapping[str, Any]]()
        with closing(scan.includeColumnStats().planFiles()) as tasks:
            for task in each(tasks):
                file = task.file()
                if slices is None or held_in is not None or slice_of(file) in slices:
                    files[str(file.location())] = file
                    if task.deletes().size():
                        # One Puffin file may hold the deletion vectors of several data files.
                        own = {f"{one.location()}#{one.contentOffset()}": one for one in each(task.deletes())}
                        deletes[str(file.location())] = own
        files.deletes = deletes
        return files

    def expression(self, day_column: str, slices: Collection[Slice]) -> Any:
        """Return the slices as an Iceberg expression."""
        expressions = self.java_class("org.apache.iceberg.expressions.Expressions")
        combined = expressions.alwaysFalse()
        for project_id, days in sorted(days_by_project(slices).items()):
            literals = self.java_list(day.isoformat() for day in sorted(days))
            of_days = getattr(expressions, "in")(day_column, literals)
            of_project = getattr(expressions, "and")(expressions.equal("project_id", project_id), of_days)
            combined = getattr(expressions, "or")(combined, of_project)
        return combined

    def commits(self, java: Any, since: int | None) -> Iterator[Commit]:
        """Yield commits to main after its head `since`, newest first; for None all. Setting main back is no commit."""
        heads = [int(entry.snapshotId()) for entry in each(java.history())]
        start = len(heads) - heads[::-1].index(since) if since in heads else 0
        fresh = set(heads[start:]) - set(heads[:start])
        builder = self.java_class("org.apache.iceberg.SnapshotChanges")
        for snapshot in takewhile(lambda one: one.snapshotId() in fresh, walk(java, java.currentSnapshot())):
            parent_id, changes = snapshot.parentId(), builder.builderFor(java).snapshot(snapshot).build()
            files = chain(each(changes.addedDataFiles()), each(changes.removedDataFiles()))
            yield Commit(
                int(snapshot.snapshotId()),
                None if parent_id is None else int(parent_id),
                snapshot.summary().get(RUN_PROPERTY),
                frozenset(map(slice_of, files)),
                committed_at(snapshot).isoformat(),
            )


def walk(java: Any, snapshot: Any) -> Iterator[Any]:
    """Yield a Java snapshot and its kept ancestors, newest first."""
    while snapshot is not None:
        yield snapshot
        parent_id = snapshot.parentId()
        snapshot = java.snapshot(parent_id) if parent_id is not None else None


def ancestry(java: Any) -> dict[int, datetime]:
    """Return main's kept snapshots -> commit time, newest first."""
    return {int(snapshot.snapshotId()): committed_at(snapshot) for snapshot in walk(java, java.currentSnapshot())}


def committed_at(snapshot: Any) -> datetime:
    """Return a Java snapshot's commit time, by the committer's clock."""
    return datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC)


def each(iterable: Any) -> Iterator[Any]:
    """Yield the items of a Java iterable."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def slice_of(file: Any) -> Slice:
    """Return the slice of a Java DataFile."""
    value = file.partition().toString()
    # PartitionData renders as PartitionData{event_date=20454, project_id=10001}: one call instead of typed getters.
    fields = dict(part.split("=", 1) for part in value[value.index("{") + 1 : -1].split(", ") if part)
    if len(fields) != 2:
        reason = "lies in no partition of a day and a project: another program changed the table's partitions"
        raise LakehouseError(str(file.location()), reason, "Set main back to a snapshot before that")
    day, project_id = fields.values()
    return Slice(_EPOCH + timedelta(days=int(day)), project_id)


def by_slice(files: LiveFiles, slices: Iterable[Slice] = ()) -> dict[Slice, SliceFiles]:
    """Group files by slice; includes the given slices also without files."""
    sizes: dict[Slice, dict[str, int]] = {key: {} for key in slices}
    rows = {path: int(file.recordCount()) for path, file in files.items()}
    for path, file in files.items():
        sizes.setdefault(slice_of(file), {})[path] = int(file.fileSizeInBytes())
    return {
        key: SliceFiles(
            paths=frozenset(own),
            rows=sum(rows[path] for path in own),
            deletes=frozenset().union(*(files.deletes.get(path, ()) for path in own)),
            sizes=own,
            rows_of={path: rows[path] for path in own},
        )
        for key, own in sizes.items()
    }


def slices_condition(table: Table, slices: Collection[Slice]) -> Column:
    """Return the slices as a condition over columns; it selects whole partitions."""
    import pyspark.sql.functions as F  # noqa: PLC0415 - keeps this module importable without a running Spark

    condition = F.lit(False)
    for project_id, days in sorted(days_by_project(slices).items()):
        condition = condition | ((F.col("project_id") == project_id) & F.col(table.day_column).isin(*sorted(days)))
    return condition


def with_missing(rows: DataFrame, table: Table) -> DataFrame:
    """Return the rows with every column of the table; missing columns are null."""
    import pyspark.sql.functions as F  # noqa: PLC0415 - keeps this module importable without a running Spark

    present = set(rows.columns)
    missing = {c.name: F.lit(None).cast(c.type) for c in table.columns if c.name not in present}
    return rows.withColumns(missing) if missing else rows
