"""Scratch deployments: temporary tables and a ledger with names of their own, beside the real deployment.

Contains: their settings, the removal of their tables, the scratch deployment of a replay.
Add here: another need of all scratch deployments.
Does not contain: the work done in them (verify.py, drill/).
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.machine import is_on_this_machine
from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.lakehouse import Lakehouse
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNBOUNDED_ROWS = 1 << 60


def scratch_settings(settings: Settings, catalog_name: str, warehouse_url: str, **changes: Any) -> Settings:
    """The deployment's settings for other tables, without change bounds because every slice is new there.

    `changes`: further settings, which must include a catalog or a ledger other than the deployment's.
    """
    names = {
        "catalog_name": catalog_name,
        "warehouse_url": warehouse_url,
        "change_min_rows": _UNBOUNDED_ROWS,
        "snapshot_min_rows": _UNBOUNDED_ROWS,
    }
    return settings.model_copy(update=names | changes)


def replay_settings(settings: Settings, folder: str, warehouse_url: str) -> Settings:
    """Settings of a replay: catalog and ledger in a local folder; Spark's workers must be able to reach the warehouse."""
    name, catalog_url = f"scratch_{uuid.uuid4().hex[:8]}", f"sqlite:///{folder}/scratch.db"
    return scratch_settings(settings, name, warehouse_url, catalog_url=catalog_url, ledger_url=None)


def replay_warehouse(settings: Settings, folder: str) -> str:
    """The URL of a replay's warehouse: in the folder if Spark's workers can see it, else under a unique name in the real one."""
    if local_path(settings.warehouse_url) is not None and is_on_this_machine(settings.spark_master):
        return f"{folder}/warehouse"
    return f"{settings.warehouse_url.rstrip('/')}/_proof_{uuid.uuid4().hex[:8]}"


@contextmanager
def replay_runtime(runtime: Runtime) -> Iterator[Runtime]:
    """A runtime for a replay, with its tables where Spark's workers can reach them; removes them at the end."""
    with tempfile.TemporaryDirectory(prefix="tidemark-proof-") as folder:
        warehouse = replay_warehouse(runtime.settings, folder)
        settings = replay_settings(runtime.settings, folder, warehouse)
        configure_catalog(runtime.spark, settings)
        lakehouse = Lakehouse(runtime.spark, settings.catalog_name)
        with closing(Ledger(settings.ledger_database_url)) as ledger:
            try:
                yield replace(runtime, lakehouse=lakehouse, ledger=ledger, settings=settings)
            finally:
                if not warehouse.startswith(f"{folder}/"):
                    remove_scratch(runtime.spark, settings)


def remove_scratch(spark: SparkSession, settings: Settings) -> None:
    """Remove the tables of a scratch deployment and everything in its warehouse, which no other deployment uses.

    Later steps need the earlier ones to be done. Each step runs even if another one fails, so that a failure leaves nothing
    that a later call would not find.
    """
    objects = LakeObjects(settings.warehouse_url)
    with ExitStack() as removals:
        removals.callback(_remove_empty_folders, local_path(settings.warehouse_url))
        # An ExitStack runs its callbacks in reverse order.
        removals.callback(_drop_namespaces, spark, settings)
        # The warehouse's marker, orphaned metadata, and the files of a table that was not dropped.
        removals.callback(_delete_all, objects)
        removals.callback(_drop_tables, spark, settings, " PURGE")


def drop_tables(spark: SparkSession, settings: Settings) -> None:
    """Drop the tables of a scratch catalog, then their namespaces; files stay. A failed drop does not stop the others."""
    with ExitStack() as removals:
        removals.callback(_drop_namespaces, spark, settings)
        removals.callback(_drop_tables, spark, settings, "")


def _drop_tables(spark: SparkSession, settings: Settings, purge: str) -> None:
    with ExitStack() as removals:
        for table in reversed(EVERY_TABLE):
            name = f"{settings.catalog_name}.{table.identifier}"
            removals.callback(spark.sql, f"DROP TABLE IF EXISTS {name}{purge}")


def _drop_namespaces(spark: SparkSession, settings: Settings) -> None:
    with ExitStack() as removals:
        for namespace in {table.identifier.split(".")[0] for table in EVERY_TABLE}:
            removals.callback(spark.sql, f"DROP NAMESPACE IF EXISTS {settings.catalog_name}.{namespace}")


def _remove_empty_folders(root: Path | None) -> None:
    """Remove the empty folders that deleted files leave on a disk; a bucket has none."""
    if root is not None:
        for parent, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):
                Path(parent).rmdir()


def _delete_all(objects: LakeObjects) -> None:
    with ExitStack() as removals:
        for lake_object in objects.list():
            removals.callback(objects.delete, lake_object.name)
