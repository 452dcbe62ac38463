"""Create tables as declared, keep them so, and remove old snapshots and files; no other module removes table files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError, tries
from pipeline_assets.domain.retention import SnapshotAge
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS
from resources.iceberg import catalog_at_rest
from resources.iceberg.errors import FAILURES
from resources.iceberg.lake_objects import LakeObject, LakeObjects
from resources.iceberg.metadata import JavaTables, ancestry, committed_at, each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline_assets.tables.table import Table, TableColumn

KEPT_PROPERTIES = {
    # A catalog restored from a backup needs that time's metadata files; maintenance removes them once the snapshots have expired.
    "write.metadata.delete-after-commit.enabled": "false",
    # Staged slices must consist of data files alone.
    "write.delete.mode": "copy-on-write",
}
_PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "20",
    "write.parquet.compression-codec": "zstd",
    "write.distribution-mode": "hash",
    **KEPT_PROPERTIES,
    "write.metadata.previous-versions-max": "20",
}
_TRIES, _FIRST_PAUSE_SECONDS = 5, 0.25


def prepare(tables: JavaTables, table: Table) -> None:
    """Create the table where it is missing, add its missing columns, begin its history and reset its properties.

    Raises LakehouseError where its location is in use, or a column is missing still: none is added beside undeclared ones, nor
    where rows carry hashes of their columns. Existing rows are null in a new column.
    """
    for is_last in tries(_TRIES, _FIRST_PAUSE_SECONDS):
        if tables.exists(table):
            break
        objects = LakeObjects(tables.place(table))
        used = catalog_at_rest.first_use(objects)
        if used is None:
            _create(tables, table)
            break
        # Another process may be creating it: its files come before the catalog's entry.
        if is_last:
            reason = f"is not known to the catalog, while its place holds files ({objects.url}/{used}), and nothing was touched"
            hint = "Check TIDEMARK_CATALOG_URL and TIDEMARK_CATALOG_NAME, or register what lies there: tidemark attach"
            raise LakehouseError(tables.identifier(table), reason, hint)
    java = tables.load(table)
    keep_properties(java)
    missing, may_be_added = _missing(tables, java, table)
    if missing and may_be_added:
        listed = ", ".join(f"`{column.name}` {column.type}" for column in missing)
        try:
            tables.spark.sql(f"ALTER TABLE {tables.identifier(table)} ADD COLUMNS ({listed})")
        except FAILURES:
            if _missing(tables, tables.load(table), table)[0]:
                raise
    require_columns(tables, table)
    # An empty snapshot, to read and to branch from. Several creators may each commit one, which does no harm. Spark would run a
    # job for it; Iceberg's API does not.
    if java.currentSnapshot() is None:
        java.newFastAppend().commit()


def require_columns(tables: JavaTables, table: Table) -> None:
    """Raise LakehouseError where the table lacks a declared column."""
    missing, may_be_added = _missing(tables, tables.load(table), table)
    if missing:
        reason = f"has no column {min(column.name for column in missing)}"
        hint = "Point Tidemark at a warehouse of its own"
        if may_be_added:
            reason += " yet"
            hint = "The next load adds it, null in the rows that are there; `tidemark rebuild` fills it"
        raise LakehouseError(tables.identifier(table), reason, hint)


def _missing(tables: JavaTables, java: Any, table: Table) -> tuple[list[TableColumn], bool]:
    present = tables.column_names(java).keys()
    declared = {column.name for column in table.columns}
    missing = [column for column in table.columns if column.name not in present]
    may_be_added = present <= declared and not declared & set(HASH_COLUMNS)
    return missing, may_be_added and not any(column.is_required for column in missing)


def keep_properties(java: Any) -> None:
    """Reset the properties that Tidemark depends on."""
    properties = java.properties()
    differing = [(name, value) for name, value in KEPT_PROPERTIES.items() if properties.get(name) != value]
    if differing:
        reduce(lambda update, one: update.set(*one), differing, java.updateProperties()).commit()


def _create(tables: JavaTables, table: Table) -> None:
    """By Iceberg's API: SQL analyses each statement as a query and commits the write order on its own."""
    catalog, name = tables.catalog(), tables.name(table)
    columns = ", ".join(f"`{c.name}` {c.type}{' NOT NULL' if c.is_required else ''}" for c in table.columns)
    of_spark = tables.java_class("org.apache.spark.sql.types.StructType").fromDDL(columns)
    schema = tables.java_class("org.apache.iceberg.spark.SparkSchemaUtil").convert(of_spark)
    spec = tables.java_class("org.apache.iceberg.PartitionSpec").builderFor(schema)
    order = tables.java_class("org.apache.iceberg.SortOrder").builderFor(schema)
    order = reduce(lambda ordered, column: ordered.asc(column), table.write_order, order)
    building = catalog.buildTable(name, schema).withSortOrder(order.build()).withLocation(tables.place(table))
    building = building.withPartitionSpec(spec.identity(table.day_column).identity("project_id").build())
    for key, value in _PROPERTIES.items():
        building = building.withProperty(key, value)
    if not catalog.namespaceExists(name.namespace()):
        catalog.createNamespace(name.namespace())
    building.create()


_FILES_PER_CALL, _READERS = 1000, 8
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_SLICE = r"data/\w+=\d{4}-\d\d-\d\d/project_id=[^/]+/"
_OF_ICEBERG = re.compile(
    rf"{_SLICE}\d{{5,}}-\d+-{_UUID}(-\d+)?-\d{{5,}}(-deletes)?\.(parquet|puffin)|metadata/({_UUID}-m\d+\.avro"
    rf"|optimized-m-{_UUID}\.avro|snap-\d+-\d+-{_UUID}\.avro|\d{{5,}}-{_UUID}(\.gz)?\.metadata\.json"
    rf"|\d+-{_UUID}\.stats|partition-stats-\d+-{_UUID}\.parquet)"
)
"""Iceberg's names of files below a table's location: OutputFileFactory, SnapshotProducer, table metadata, statistics."""

_NAMED = "Still referenced by refs"


@dataclass(frozen=True)
class Below:
    """All files below one table's location, known to the table or not."""

    location: str
    table_uuid: str
    files: tuple[LakeObject, ...]
    log: frozenset[str]
    """Base names of the current metadata file and of those that it lists."""
    unknown: tuple[catalog_at_rest.MetadataFile, ...]
    """Metadata files that are no predecessors of the current one."""
    needed: frozenset[str]
    """Base names of the files that a snapshot or its statistics need; no metadata files."""


def is_written(name: str, table_uuid: str) -> bool:
    """Whether Iceberg names files so, or Tidemark names files of exactly this table; no other file is ever removed."""
    return bool(_OF_ICEBERG.fullmatch(name) or re.fullmatch(rf"{_SLICE}{table_uuid}-[0-9a-f]{{32}}\.parquet", name))


class Upkeep:
    """Procedures on the tables of one catalog."""

    def __init__(self, spark: SparkSession, catalog_name: str) -> None:
        self.spark = spark
        self._tables = JavaTables(spark, catalog_name)

    def snapshots(self, table: Table) -> tuple[list[SnapshotAge], set[int]]:
        """Return all snapshots, and the ids of those that a branch or tag points at."""
        java = self._tables.load(table)
        # A snapshot from before main was set back may hold the only copy of rows that landing lost.
        main = ancestry(java).keys() | {int(entry.snapshotId()) for entry in java.history()}
        made = {int(snapshot.snapshotId()): committed_at(snapshot) for snapshot in java.snapshots()}
        snapshots = [SnapshotAge(number, at, number in main) for number, at in made.items()]
        return snapshots, {int(ref.snapshotId()) for ref in java.refs().values()}

    def expire(self, table: Table, snapshot_ids: Sequence[int]) -> int:
        """Expire these snapshots and delete the files that only they needed; returns the number of deleted files.

        By manifests, as Iceberg's clean-up deleted a live file after a rollback (DECISIONS: Snapshots are expired by name).
        """
        wanted = list(snapshot_ids)
        while wanted:
            java = self._tables.load(table)
            before = self._needed(java)
            # In metadata alone. By default the API also expires snapshots older than five days.
            expiry = java.expireSnapshots().cleanExpiredFiles(False).expireOlderThan(0)
            try:
                reduce(lambda update, number: update.expireSnapshotId(number), wanted, expiry).commit()
            except FAILURES as error:
                # A rollback may have put a branch at one meanwhile; that snapshot stays.
                named = self.snapshots(table)[1]
                if _NAMED not in str(error) or not named.intersection(wanted):
                    raise
                wanted = [number for number in wanted if number not in named]
                continue
            after = set(map(catalog_at_rest.base_name, self._needed(self._tables.load(table))))
            gone = [path for path in before if catalog_at_rest.base_name(path) not in after]
            self.remove(table, gone)
            return len(gone)
        return 0

    def _needed(self, java: Any) -> frozenset[str]:
        reachable = self._tables.java_class("org.apache.iceberg.ReachableFileUtil")
        listed = chain(reachable.manifestListLocations(java), reachable.statisticsFilesLocations(java))
        manifests = self._tables.java_class("java.util.LinkedHashSet")()
        for snapshot in java.snapshots():
            manifests.addAll(snapshot.allManifests(java.io()))
        with ThreadPoolExecutor(_READERS) as pool:
            return frozenset(map(str, listed)).union(*pool.map(partial(self._named_in, java), manifests))

    def _named_in(self, java: Any, manifest: Any) -> Iterable[str]:
        files = self._tables.java_class("org.apache.iceberg.ManifestFiles")
        if manifest.content().name() == "DATA":
            with closing(files.readPaths(manifest, java.io(), java.specs())) as paths:
                joined = self._tables.java_class("java.lang.String").join("\n", paths)
        else:
            with closing(files.readDeleteManifest(manifest, java.io(), java.specs())) as deletes:
                joined = "\n".join(str(delete.location()) for delete in each(deletes))
        return str(manifest.path()), *filter(None, str(joined).split("\n"))

    def remove(self, table: Table, paths: Sequence[str]) -> None:
        """Delete exactly these files; one that is gone already is no error."""
        io = self._tables.load(table).io()
        for start in range(0, len(paths), _FILES_PER_CALL):
            io.deleteFiles(self._tables.java_list(paths[start : start + _FILES_PER_CALL]))

    def below(self, table: Table) -> Below:
        """List the files below the table's location, and compare them with the table's metadata."""
        location = str(self._tables.load(table).location())
        objects = LakeObjects(location)
        listed = [file for file in objects.list() if not catalog_at_rest.is_hidden(file.name)]
        # Load the table after the listing; otherwise files committed in between would look unknown.
        java = self._tables.load(table)
        log = frozenset(map(catalog_at_rest.base_name, self._tables.metadata_files(java)))
        reachable = self._tables.java_class("org.apache.iceberg.ReachableFileUtil").metadataFileLocations(java, True)
        history = log.union(catalog_at_rest.base_name(str(path)) for path in reachable)
        of_metadata = (file for file in listed if catalog_at_rest.is_metadata(file.name))
        unknown = [file for file in of_metadata if catalog_at_rest.base_name(file.name) not in history]
        return Below(
            location,
            str(java.uuid()),
            tuple(listed),
            log,
            tuple(catalog_at_rest.read_metadata_files(objects, unknown)),
            frozenset(map(catalog_at_rest.base_name, self._needed(java))),
        )

    def keep_properties(self, table: Table) -> None:
        """Reset the table's properties, so that commits keep earlier metadata files."""
        keep_properties(self._tables.load(table))
