"""Create an Iceberg table as declared, in an empty location, and add missing columns to a table of ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS
from resources.iceberg.errors import FAILURES
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata import JavaTables
from resources.iceberg.metadata_files import first_use

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline_assets.tables.table import Table, TableColumn

KEPT_PROPERTIES = {
    # A catalog restored from a backup needs the metadata files of that time. Maintenance removes them once the
    # snapshots of that age have expired.
    "write.metadata.delete-after-commit.enabled": "false",
    # Staged slices must consist of data files alone.
    "write.delete.mode": "copy-on-write",
}
"""Properties that every load resets where another program, or a Tidemark of before, set them otherwise."""
_PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "20",
    "write.parquet.compression-codec": "zstd",
    **KEPT_PROPERTIES,
    "write.metadata.previous-versions-max": "20",
}
_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Pauses in seconds between checks whether another process has just created the table."""


def create_table(tables: JavaTables, table: Table) -> None:
    """Create the table and its write order where they are missing; raises LakehouseError where its location is in use."""
    spark, name = tables.spark, tables.identifier(table)
    for pause in (*_PAUSES, None):
        if tables.exists(table):
            break
        objects = LakeObjects(tables.place(table))
        used = first_use(objects)
        if used is None:
            _create_unordered(tables, table)
            break
        if pause is None:
            raise LakehouseError(
                name,
                f"is not known to the catalog, while its place holds files ({objects.url}/{used}), and nothing was touched",
                "Check TIDEMARK_CATALOG_URL and TIDEMARK_CATALOG_NAME, or register what lies there: tidemark attach",
            )
        # Another process may be creating the table: its files exist before the catalog knows them.
        time.sleep(pause)
    java = tables.load(table)
    if java.sortOrder().isUnsorted():
        order = ", ".join(table.write_order)
        spark.sql(f"ALTER TABLE {name} WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY {order}")
    keep_properties(java)


def add_columns(tables: JavaTables, table: Table) -> None:
    """Add declared columns that the table lacks, null in existing rows; changes only metadata.

    Does nothing to a table that may be somebody else's, because it has a column that we do not declare. Does nothing either
    where rows carry hashes of their columns: a further column would change the hashes.
    """
    missing = _missing(tables, table)
    if not missing or not _may_be_added(tables, table, missing):
        return
    listed = ", ".join(f"`{column.name}` {column.type}" for column in missing)
    try:
        tables.spark.sql(f"ALTER TABLE {tables.identifier(table)} ADD COLUMNS ({listed})")
    except FAILURES:
        # Another process may have added them at the same moment.
        tables.spark.catalog.refreshTable(tables.identifier(table))
        if _missing(tables, table):
            raise


def require_columns(tables: JavaTables, table: Table) -> None:
    """Raise LakehouseError where the table lacks a declared column."""
    missing = _missing(tables, table)
    if not missing:
        return
    name = tables.identifier(table)
    if {column.name for column in missing} <= set(HASH_COLUMNS):
        reason = "was written by a Tidemark before rows carried their hashes, and nothing was touched"
        raise LakehouseError(name, reason, "Load the days into a new warehouse with a new catalog: docs/operations.md")
    first = min(column.name for column in missing)
    if _may_be_added(tables, table, missing):
        hint = "The next load adds it, null in the rows that are there; `tidemark rebuild` fills it"
        raise LakehouseError(name, f"has no column {first} yet", hint)
    raise LakehouseError(name, f"has no column {first}", "Point Tidemark at a warehouse of its own")


def _missing(tables: JavaTables, table: Table) -> list[TableColumn]:
    present = set(tables.spark.table(tables.identifier(table)).columns)
    return [column for column in table.columns if column.name not in present]


def _may_be_added(tables: JavaTables, table: Table, missing: Sequence[TableColumn]) -> bool:
    declared = {column.name for column in table.columns}
    is_ours = set(tables.spark.table(tables.identifier(table)).columns) <= declared
    return is_ours and not declared & set(HASH_COLUMNS) and not any(column.is_required for column in missing)


def keep_properties(java: Any) -> None:
    """Reset the table's properties where they are not those that Tidemark depends on."""
    properties = java.properties()
    differing = {name: value for name, value in KEPT_PROPERTIES.items() if properties.get(name) != value}
    if differing:
        update = java.updateProperties()
        for name, value in differing.items():
            update.set(name, value)
        update.commit()


def begin_history(tables: JavaTables, table: Table) -> None:
    """Commit an empty snapshot to a table without snapshots, so that there is one to read and to branch from."""
    java = tables.load(table)
    # Several creators may each commit one, which does no harm. Spark would run a job to write no rows; Iceberg's API does not.
    if java.currentSnapshot() is None:
        java.newFastAppend().commit()


def _create_unordered(tables: JavaTables, table: Table) -> None:
    name = tables.identifier(table)
    tables.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rsplit('.', 1)[0]}")
    columns = ", ".join(f"`{c.name}` {c.type}{' NOT NULL' if c.is_required else ''}" for c in table.columns)
    bounds = {f"write.metadata.metrics.column.{column}": "full" for column in table.exact_bounds}
    listed = ", ".join(f"'{key}'='{value}'" for key, value in (_PROPERTIES | bounds).items())
    tables.spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg "
        f"PARTITIONED BY ({table.day_column}, project_id) LOCATION '{_quoted(tables.place(table))}' "
        f"TBLPROPERTIES ({listed})"
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
