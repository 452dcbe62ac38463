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
from resources.iceberg.catalog_at_rest import (
    MetadataFile,
    base_name,
    first_use,
    is_hidden,
    is_metadata,
    read_metadata_files,
)
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


def create_table(tables: JavaTables, table: Table) -> None:
    """Create the table where it is missing; raises LakehouseError where its location is in use."""
    name = tables.identifier(table)
    for is_last in tries(_TRIES, _FIRST_PAUSE_SECONDS):
        if tables.exists(table):
            break
        objects = LakeObjects(tables.place(table))
        used = first_use(objects)
        if used is None:
            _create(tables, table)
            break
        # Another process may be creating it: its files come before the catalog's entry.
        if is_last:
            raise LakehouseError(
                name,
                f"is not known to the catalog, while its place holds files ({objects.url}/{used}), and nothing was touched",
                "Check TIDEMARK_CATALOG_URL and TIDEMARK_CATALOG_NAME, or register what lies there: tidemark attach",
            )
    keep_properties(tables.load(table))


def add_columns(tables: JavaTables, table: Table) -> None:
    """Add missing columns, null in existing rows; not beside undeclared columns, nor where rows carry hashes of their columns."""
    missing, may_be_added = _missing(tables, table)
    if not missing or not may_be_added:
        return
    listed = ", ".join(f"`{column.name}` {column.type}" for column in missing)
    try:
        tables.spark.sql(f"ALTER TABLE {tables.identifier(table)} ADD COLUMNS ({listed})")
    except FAILURES:
        if _missing(tables, table)[0]:
            raise


def require_columns(tables: JavaTables, table: Table) -> None:
    """Raise LakehouseError where the table lacks a declared column."""
    missing, may_be_added = _missing(tables, table)
    if not missing:
        return
    name = tables.identifier(table)
    first = min(column.name for column in missing)
    if may_be_added:
        hint = "The next load adds it, null in the rows that are there; `tidemark rebuild` fills it"
        raise LakehouseError(name, f"has no column {first} yet", hint)
    raise LakehouseError(name, f"has no column {first}", "Point Tidemark at a warehouse of its own")


def _missing(tables: JavaTables, table: Table) -> tuple[list[TableColumn], bool]:
    present = tables.column_names(tables.load(table)).keys()
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


def begin_history(tables: JavaTables, table: Table) -> None:
    """Commit an empty snapshot to a table without snapshots, to read and to branch from."""
    java = tables.load(table)
    # Several creators may each commit one, which does no harm. Spark would run a job for it; Iceberg's API does not.
    if java.currentSnapshot() is None:
        java.newFastAppend().commit()


def _create(tables: JavaTables, table: Table) -> None:
    """By Iceberg's API: SQL analyses each statement as a query and commits the write order on its own."""
    catalog, name = tables.catalog(), tables.name(table)
    columns = ", ".join(f"`{c.name}` {c.type}{' NOT NULL' if c.is_required else ''}" for c in table.columns)
    of_spark = tables.java_class("org.apache.spark.sql.types.StructType").fromDDL(columns)
    schema = tables.java_class("org.apache.iceberg.spark.SparkSchemaUtil").convert(of_spark)
    spec = tables.java_class("org.apache.iceberg.PartitionSpec").builderFor(schema)
    order = tables.java_class("org.apache.iceberg.SortOrder").builderFor(schema)
    for column in table.write_order:
        order = order.asc(column)
    building = (
        catalog.buildTable(name, schema)
        .withPartitionSpec(spec.identity(table.day_column).identity("project_id").build())
        .withSortOrder(order.build())
        .withLocation(tables.place(table))
    )
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
    unknown: tuple[MetadataFile, ...]
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
            else:
                after = set(map(base_name, self._needed(self._tables.load(table))))
                gone = [path for path in before if base_name(path) not in after]
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
        listed = [file for file in objects.list() if not is_hidden(file.name)]
        # Load the table after the listing; otherwise files committed in between would look unknown.
        java = self._tables.load(table)
        metadata = java.operations().current()
        logged = [str(entry.file()) for entry in metadata.previousFiles()]
        log = frozenset(map(base_name, [*logged, str(metadata.metadataFileLocation())]))
        reachable = self._tables.java_class("org.apache.iceberg.ReachableFileUtil").metadataFileLocations(java, True)
        history = log.union(base_name(str(path)) for path in reachable)
        unknown = [file for file in listed if is_metadata(file.name) and base_name(file.name) not in history]
        return Below(
            location,
            str(metadata.uuid()),
            tuple(listed),
            log,
            tuple(read_metadata_files(objects, unknown)),
            frozenset(map(base_name, self._needed(java))),
        )

    def keep_properties(self, table: Table) -> None:
        """Reset the table's properties, so that commits keep earlier metadata files."""
        keep_properties(self._tables.load(table))
