"""What lies below a table, Iceberg's procedures for old snapshots and orphans; nothing else removes files.

Contains: calls of procedures, and what they need to know.
Add here: another procedure.
Does not contain: which of it is due (domain/retention.py, operations/maintenance.py), joining files
(operations/rewrites.py), publishing (resources/publishing/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipeline_assets.domain.retention import SnapshotAge
from resources.iceberg.creation import keep_metadata
from resources.iceberg.errors import FAILURES
from resources.iceberg.lake_objects import LakeObject, LakeObjects
from resources.iceberg.metadata import JavaTables
from resources.iceberg.metadata_files import MetadataFile, is_hidden, is_metadata, read_metadata_files

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from pipeline_assets.tables.table import Table

_FILES_PER_CALL = 1000

_NAMED = "Still referenced by refs"
"""What Iceberg says of a snapshot that a branch or tag points at."""


@dataclass(frozen=True)
class Below:
    """The files of one table, whoever knows them."""

    location: str
    table_uuid: str
    """The table's own."""
    files: tuple[LakeObject, ...]
    """All of them, by their names below the location."""
    log: frozenset[str]
    """Metadata files that the table itself names, and its present one, by their last names."""
    unknown: tuple[MetadataFile, ...]
    """Metadata files that no step back from the present one leads to."""


class Upkeep:
    """Procedures on the tables of one catalog."""

    def __init__(self, spark: SparkSession, catalog_name: str) -> None:
        """Wrap a session whose catalog `catalog_name` is configured (spark/session.py)."""
        self.spark = spark
        self._tables = JavaTables(spark, catalog_name)

    def snapshots(self, table: Table) -> tuple[list[SnapshotAge], set[int]]:
        """All snapshots, and those that a branch or tag points at."""
        java = self._tables.load(table)
        # What main showed once and was set back over may be the only copy of rows that landing lost.
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
        """Expire these snapshots and delete the files that only they needed; returns how many files.

        By the procedure alone: it compares what is reachable before and after, where the Java API's own clean-up deletes live
        files after a rollback (`test_maintenance.py::test_a_rollback_behind_our_back_loses_no_live_file`).
        """
        wanted = list(snapshot_ids)
        while wanted:
            listed = ", ".join(map(str, wanted))
            # By age nothing goes: without a bound of its own the procedure would expire what is five days old as well.
            by_name = f"snapshot_ids => array({listed}), older_than => TIMESTAMP '1970-01-01 00:00:00'"
            try:
                row = self._call(table, "expire_snapshots", by_name)[0]
            except FAILURES as error:
                # A rollback has named one of them since it was found to be due: that one stays.
                named = self.snapshots(table)[1]
                if _NAMED not in str(error) or not named.intersection(wanted):
                    raise
                wanted = [path for path in wanted if path not in named]
            else:
                return sum(int(row[name]) for name in row.asDict() if name.startswith("deleted_"))
        return 0

    def orphans(self, table: Table, before: datetime) -> list[str]:
        """Files below the table's location that nothing of the table knows of and that are older than `before`; removes none."""
        at = before.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        options = f"older_than => TIMESTAMP '{at}', dry_run => true"
        if self._tables.load(table).location().startswith("s3"):
            options += ", prefix_listing => true"
        return [str(row["orphan_file_location"]) for row in self._call(table, "remove_orphan_files", options)]

    def remove(self, table: Table, paths: Sequence[str]) -> None:
        """Delete exactly these files; nothing happens for one that is gone."""
        io = self._tables.load(table).io()
        for start in range(0, len(paths), _FILES_PER_CALL):
            listed = self._tables.java_class("java.util.ArrayList")()
            for path in paths[start : start + _FILES_PER_CALL]:
                listed.add(path)
            io.deleteFiles(listed)

    def below(self, table: Table) -> Below:
        """What lies below the table's location, beside what the table says of itself."""
        location = self._tables.location(table)
        objects = LakeObjects(location)
        listed = [file for file in objects.list() if not is_hidden(file.name)]
        # After the listing: what a load commits meanwhile would else be unknown.
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

    def keep_metadata(self, table: Table) -> None:
        """Let commits remove no metadata, where the table is of a version that did."""
        keep_metadata(self._tables.load(table))

    def _call(self, table: Table, procedure: str, arguments: str) -> list[Row]:
        # The procedures look the table up in the session's thread, as table loading does.
        self._tables.load(table)
        catalog = self._tables.catalog_name
        return self.spark.sql(
            f"CALL {catalog}.system.{procedure}(table => '{table.identifier}', {arguments})"
        ).collect()


def _name(path: str) -> str:
    return path.rpartition("/")[2]
