"""Create an Iceberg table as its declaration says.

Lives here: layout and properties of new tables. Put here: a property every table has. Keep out: columns and write orders of any
one (pipeline_assets/tables/), writing rows (lakehouse.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resources.iceberg import JavaTables

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

_PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "20",
    "write.delete.mode": "copy-on-write",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def create_table(tables: JavaTables, table: Table) -> None:
    """Create the table and its write order, each unless it is there."""
    spark, name = tables.spark, tables.identifier(table)
    if not spark.catalog.tableExists(name):
        _create_unordered(tables, table)
    if tables.load(table).sortOrder().isUnsorted():
        order = ", ".join(table.write_order)
        spark.sql(f"ALTER TABLE {name} WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY {order}")


def begin_history(tables: JavaTables, table: Table) -> None:
    """Commit an empty snapshot, so that there is one to read and to branch from, unless there is any."""
    java = tables.load(table)
    # Of several creators each may add one: that changes nothing. Not through Spark, for which no rows are a job as well.
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
        f"PARTITIONED BY ({table.day_column}, project_id) TBLPROPERTIES ({listed})"
    )
