"""Scratch deployments: temporary tables and a ledger with names of their own, beside the real deployment."""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.machine import is_on_this_machine
from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.processes import Life
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.iceberg.errors import FAILURES
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.lakehouse import Lakehouse
from resources.ledger.processes import heartbeat, sight
from resources.ledger.store import Ledger
from resources.publishing import Promise, promise_of
from resources.spark.session import configure_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS = ("proof", "drill")
_NAME = re.compile(rf"({'|'.join(_KINDS)})_[0-9a-f]{{8}}")
PARTS = ("disturbed", "calm")


def scratch_settings(settings: Settings, catalog_name: str, warehouse_url: str, **changes: Any) -> Settings:
    """Settings for other tables, without change bounds; `changes` must include a catalog or a ledger of their own."""
    bounds = dict.fromkeys(("change_min_rows", "snapshot_max_shrink", "snapshot_max_growth"), 1 << 60)
    names = {"catalog_name": catalog_name, "warehouse_url": warehouse_url}
    return settings.model_copy(update=bounds | names | changes)


def drill_settings(settings: Settings, name: str, part: str, **changes: Any) -> Settings:
    """Settings of one of the two deployments of the drill of this name."""
    url, own = f"{settings.warehouse_url.rstrip('/')}/_{name}", f"{name}_{part}"
    databases = {"landing_url": f"{url}/landing", "ledger_url": ledger_url(settings, own)}
    if promise_of(settings) is Promise.ONE_TRANSACTION:
        # The drill publishes with the same promise as the deployment's loads.
        databases["catalog_url"] = databases["ledger_url"]
    return scratch_settings(settings, own, f"{url}/{part}", **databases | changes)


def ledger_url(settings: Settings, name: str) -> str:
    """The URL of a ledger of its own: next to a SQLite ledger, or in a separate schema on a server."""
    parsed = make_url(settings.ledger_database_url)
    if parsed.get_backend_name() == "sqlite":
        return f"sqlite:///{Path(str(parsed.database)).with_name(f'{name}.db')}"
    return parsed.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)


def replay_settings(settings: Settings, folder: str, warehouse_url: str) -> Settings:
    """Settings of a replay: catalog and ledger in a local folder; Spark's workers must reach the warehouse."""
    name, catalog_url = f"scratch_{uuid.uuid4().hex[:8]}", f"sqlite:///{folder}/scratch.db"
    return scratch_settings(settings, name, warehouse_url, catalog_url=catalog_url, ledger_url=None)


def replay_warehouse(settings: Settings, folder: str, name: str) -> str:
    """The URL of a replay's warehouse: in the folder if Spark's workers can see it, else beside the deployment's tables."""
    if local_path(settings.warehouse_url) is not None and is_on_this_machine(settings.spark_master):
        return f"{folder}/warehouse"
    return f"{settings.warehouse_url.rstrip('/')}/_{name}"


@contextmanager
def replay_runtime(runtime: Runtime) -> Iterator[Runtime]:
    """A runtime for a replay, with its tables where Spark's workers can reach them; removes them at the end."""
    with (
        scratch_name(runtime.spark, runtime.settings, "proof", runtime.log) as name,
        tempfile.TemporaryDirectory(prefix=f"tidemark-{name}-") as folder,
    ):
        settings = replay_settings(runtime.settings, folder, replay_warehouse(runtime.settings, folder, name))
        configure_catalog(runtime.spark, settings)
        lakehouse = Lakehouse(runtime.spark, settings.catalog_name)
        with closing(Ledger(settings.ledger_database_url)) as ledger:
            yield replace(runtime, lakehouse=lakehouse, ledger=ledger, settings=settings)


@contextmanager
def scratch_name(spark: SparkSession, settings: Settings, kind: str, log: Callable[[str], None]) -> Iterator[str]:
    """A new name, on record in the ledger with this process; sweeps names of dead processes first, and its own at the end."""
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        sweep_scratch(spark, settings, ledger, log)
    name = f"{kind}_{uuid.uuid4().hex[:8]}"
    with heartbeat(settings.ledger_database_url, name, kind, 0):
        try:
            yield name
        finally:
            _remove(spark, settings, name)
            with closing(Ledger(settings.ledger_database_url)) as ledger:
                ledger.processes.forget(name)


def sweep_scratch(spark: SparkSession, settings: Settings, ledger: Ledger, log: Callable[[str], None]) -> None:
    """Remove and log the leftovers of dead processes and failed removals, only under names on record."""
    for name, process in ledger.processes.look(ledger.processes.unlost(_KINDS), {}).items():
        if not _NAME.fullmatch(name) or process.life(sight(process.identity)) is Life.RUNNING:
            continue
        try:
            _remove(spark, settings, name)
        except (TidemarkError, OSError, sa.exc.SQLAlchemyError, *FAILURES) as error:
            log(f"{name}, which a process left, cannot be removed: {error}")
        else:
            ledger.processes.lose([name])
            log(f"{name}, which a process left, is removed")


def _remove(spark: SparkSession, settings: Settings, name: str) -> None:
    with ExitStack() as removals:
        for folder in Path(tempfile.gettempdir()).glob(f"tidemark-{name}-*"):
            removals.callback(shutil.rmtree, folder)
        removals.callback(_empty, f"{settings.warehouse_url.rstrip('/')}/_{name}")
        for part in PARTS if name.startswith("drill_") else ():
            own = drill_settings(settings, name, part)
            removals.callback(_forget_ledger, own)
            if own.catalog_url == settings.catalog_url:
                configure_catalog(spark, own)
                removals.callback(drop_tables, spark, own)


def drop_tables(spark: SparkSession, settings: Settings) -> None:
    """Drop the tables of a scratch catalog, then their namespaces; files stay. A failed drop does not stop the others."""
    catalog = settings.catalog_name
    with ExitStack() as removals:
        # An ExitStack runs its callbacks in reverse order.
        for namespace in {table.identifier.split(".")[0] for table in EVERY_TABLE}:
            removals.callback(spark.sql, f"DROP NAMESPACE IF EXISTS {catalog}.{namespace}")
        for table in EVERY_TABLE:
            removals.callback(spark.sql, f"DROP TABLE IF EXISTS {catalog}.{table.identifier}")


def _forget_ledger(settings: Settings) -> None:
    url = make_url(settings.ledger_database_url)
    if url.get_backend_name() != "sqlite":
        on_server(settings, f"DROP SCHEMA IF EXISTS {settings.catalog_name} CASCADE")
        return
    for suffix in ("", "-wal", "-shm"):
        Path(f"{url.database}{suffix}").unlink(missing_ok=True)


def on_server(settings: Settings, statement: str) -> None:
    """Execute a statement in the ledger's database, outside of its schema."""
    url = make_url(settings.ledger_database_url).difference_update_query(["options"])
    engine = sa.create_engine(url.set(drivername="postgresql+psycopg2"))
    try:
        with engine.begin() as connection:
            connection.execute(sa.text(statement))
    finally:
        engine.dispose()


def _empty(url: str) -> None:
    folder, objects = local_path(url), LakeObjects(url)
    if folder is not None:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        return
    with ExitStack() as removals:
        for lake_object in objects.list():
            removals.callback(objects.delete, lake_object.name)
