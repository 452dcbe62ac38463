"""Files below a table, and Iceberg's procedures for old snapshots and orphans; no other module removes table files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipeline_assets.domain.retention import SnapshotAge
from resources.iceberg.creation import keep_properties
from resources.iceberg.errors import FAILURES
from resources.iceberg.lake_objects import LakeObject, LakeObjects
from resources.iceberg.metadata import JavaTables
from resources.iceberg.metadata_files import MetadataFile, is_hidden, is_metadata, read_metadata_files

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from pipeline_assets.tables.table import Table

_FILES_PER_CALL = 1000
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_SLICE = r"data/\w+=\d{4}-\d\d-\d\d/project_id=[^/]+/"
_OF_ICEBERG = re.compile(
    rf"{_SLICE}\d{{5,}}-\d+-{_UUID}(-\d+)?-\d{{5,}}(-deletes)?\.(parquet|puffin)|metadata/({_UUID}-m\d+\.avro"
    rf"|optimized-m-{_UUID}\.avro|snap-\d+-\d+-{_UUID}\.avro|\d{{5,}}-{_UUID}(\.gz)?\.metadata\.json"
    rf"|\d+-{_UUID}\.stats|partition-stats-\d+-{_UUID}\.parquet)"
)
"""Names that Iceberg gives to files below a table's location: OutputFileFactory, SnapshotProducer, table metadata, statistics."""

_NAMED = "Still referenced by refs"
"""Iceberg's message for a snapshot that a branch or tag points at."""


@dataclass(frozen=True)
class Below:
    """All files below one table's location, known to the table or not."""

    location: str
    table_uuid: str
    """The uuid of the table itself."""
    files: tuple[LakeObject, ...]
    """All files, with names relative to the location."""
    log: frozenset[str]
    """Base names of the current metadata file and of those that it lists."""
    unknown: tuple[MetadataFile, ...]
    """Metadata files that cannot be reached by going back from the current one."""


def is_written(name: str, table_uuid: str) -> bool:
    """Whether a table's file has a name and place that Iceberg gives, or Tidemark to a file of exactly this table.

    No other file is ever removed: that nobody refers to it does not tell who needs it.
    """
    return bool(_OF_ICEBERG.fullmatch(name) or re.fullmatch(rf"{_SLICE}{table_uuid}-[0-9a-f]{{32}}\.parquet", name))


class Upkeep:
    """Procedures on the tables of one catalog."""

    def __init__(self, spark: SparkSession, catalog_name: str) -> None:
        """Wrap a session whose catalog `catalog_name` is configured (spark/session.py)."""
        self.spark = spark
        self._tables = JavaTables(spark, catalog_name)

    def snapshots(self, table: Table) -> tuple[list[SnapshotAge], set[int]]:
        """Return all snapshots, and the ids of those that a branch or tag points at."""
        java = self._tables.load(table)
        # A snapshot that main showed before it was set back may hold the only copy of rows that landing lost.
        main = {int(entry.snapshotId()) for entry in java.history()}
        snapshot = java.currentSnapshot()
        while snapshot is not None:
            main.add(int(snapshot.snapshotId()))
            parent = snapshot.parentId()
            snapshot = java.snapshot(parent) if parent is not None else None
        snapshots = [
            SnapshotAge(
                int(snapshot.snapshotId()),
                datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC),
                int(snapshot.snapshotId()) in main,
            )
            for snapshot in java.snapshots()
        ]
        return snapshots, {int(ref.snapshotId()) for ref in java.refs().values()}

    def expire(self, table: Table, snapshot_ids: Sequence[int]) -> int:
        """Expire these snapshots and delete the files that only they needed; returns the number of deleted files.

        Uses the procedure, which compares the reachable files before and after. The clean-up of the Java API deletes live files
        after a rollback (`test_maintenance.py::test_a_rollback_behind_our_back_loses_no_live_file`).
        """
        wanted = list(snapshot_ids)
        while wanted:
            listed = ", ".join(map(str, wanted))
            # Disable expiry by age: by default the procedure also expires snapshots older than five days.
            by_name = f"snapshot_ids => array({listed}), older_than => TIMESTAMP '1970-01-01 00:00:00'"
            try:
                row = self._call(table, "expire_snapshots", by_name)[0]
            except FAILURES as error:
                # A rollback has put a branch at one of them since they were chosen; that snapshot stays.
                named = self.snapshots(table)[1]
                if _NAMED not in str(error) or not named.intersection(wanted):
                    raise
                wanted = [path for path in wanted if path not in named]
            else:
                return sum(int(row[name]) for name in row.asDict() if name.startswith("deleted_"))
        return 0

    def orphans(self, table: Table, before: datetime) -> list[str]:
        """Return the files below the table's location that the table does not reference and that are older than `before`."""
        at = before.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        options = f"older_than => TIMESTAMP '{at}', dry_run => true"
        if self._tables.load(table).location().startswith("s3"):
            options += ", prefix_listing => true"
        return [str(row["orphan_file_location"]) for row in self._call(table, "remove_orphan_files", options)]

    def remove(self, table: Table, paths: Sequence[str]) -> None:
        """Delete exactly these files; a file that is gone already is no error."""
        io = self._tables.load(table).io()
        for start in range(0, len(paths), _FILES_PER_CALL):
            listed = self._tables.java_class("java.util.ArrayList")()
            for path in paths[start : start + _FILES_PER_CALL]:
                listed.add(path)
            io.deleteFiles(listed)

    def below(self, table: Table) -> Below:
        """List the files below the table's location, and compare them with the table's own metadata."""
        location = self._tables.location(table)
        objects = LakeObjects(location)
        listed = [file for file in objects.list() if not is_hidden(file.name)]
        # Load the table after the listing; otherwise files that a load commits in between would look unknown.
        java = self._tables.load(table)
        metadata = java.operations().current()
        log = {str(entry.file()) for entry in metadata.previousFiles()} | {str(metadata.metadataFileLocation())}
        reachable = self._tables.java_class("org.apache.iceberg.ReachableFileUtil").metadataFileLocations(java, True)
        history = {_name(str(path)) for path in reachable} | set(map(_name, log))
        unknown = [file for file in listed if is_metadata(file.name) and _name(file.name) not in history]
        return Below(
            location,
            str(metadata.uuid()),
            tuple(listed),
            frozenset(map(_name, log)),
            tuple(read_metadata_files(objects, unknown)),
        )

    def keep_properties(self, table: Table) -> None:
        """Set the table's properties so that commits keep earlier metadata files; tables of 0.1.0 removed them."""
        keep_properties(self._tables.load(table))

    def _call(self, table: Table, procedure: str, arguments: str) -> list[Row]:
        # Loading the table makes the session active in this thread, which the procedures need as well.
        self._tables.load(table)
        catalog = self._tables.catalog_name
        return self.spark.sql(
            f"CALL {catalog}.system.{procedure}(table => '{table.identifier}', {arguments})"
        ).collect()


def _name(path: str) -> str:
    return path.rpartition("/")[2]
