"""The scratch deployment of a drill: the deployment's own catalog, storage and engine, under temporary names.

Contains: names, places and their removal.
Add here: another thing a drill must not share with the deployment.
Does not contain: the work done there (drill.py).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import sqlalchemy as sa
from dagster_aws.s3 import S3Resource
from sqlalchemy.engine import make_url

from pipeline_assets.domain.errors import LedgerError, UsageError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.places import is_rest_catalog, local_path
from pipeline_assets.domain.settings import ENV_PREFIX, Settings
from pipeline_assets.inspection.scratch import drop_tables, scratch_settings
from resources.iceberg.pointers import schema_of
from resources.landing.backends import Bucket
from resources.landing.folder import Folder
from resources.publishing.promise import Promise, promise_of
from resources.spark.session import configure_catalog

if TYPE_CHECKING:
    from obstore.store import LocalStore, S3Store
    from pyspark.sql import SparkSession

_FARTHEST_FACT = timedelta(days=120)
_DAGSTER = """
storage:
  sqlite:
    base_dir: {folder}
telemetry:
  enabled: false
"""

_CATALOG_TABLES = (
    "CREATE TABLE {schema}.iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, "
    "table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), "
    "iceberg_type VARCHAR(5), PRIMARY KEY (catalog_name, table_namespace, table_name))",
    "CREATE TABLE {schema}.iceberg_namespace_properties (catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, "
    "property_key VARCHAR(255), property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key))",
)
"""The tables as Iceberg's JdbcCatalog creates them (JdbcUtil, schema version V1)."""


@dataclass(frozen=True)
class Scratch:
    """The scratch deployment of a drill."""

    settings: Settings
    """Settings of the deployment whose loads are disturbed."""
    calm: Settings
    """Settings of the deployment that loads the same deliveries undisturbed."""
    home: Path
    """Dagster's home for the runs."""
    store: LocalStore | S3Store
    """Store of the folder that holds landing and both warehouses."""

    def deliver(self, key: str, body: bytes) -> None:
        """Put an object into the drill's landing."""
        obstore.put(self.store, f"landing/{key}", body)

    def environment(self, **changes: str) -> dict[str, str]:
        """The environment of a process of the drill; `changes` are further variables."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        return {**inherited, **as_environment(self.settings), "DAGSTER_HOME": str(self.home), **changes}


def as_environment(settings: Settings) -> dict[str, str]:
    """The environment variables that give a process these settings."""
    # Left out, because a process of this machine derives the same values; explicit ones would change the parser's version.
    derived = {name for name in Settings.model_fields if settings.is_of_machine(name)}
    values = settings.model_dump(mode="json", exclude_none=True, exclude=derived)
    return {f"{ENV_PREFIX}{name.upper()}": _as_variable(value) for name, value in values.items()}


def require_catalog_of_its_own(settings: Settings) -> None:
    """Raise UsageError for a REST catalog: it ignores catalog names, so the drill would use the deployment's tables."""
    if is_rest_catalog(settings.catalog_url):
        reason = "is a REST catalog, in which a drill's tables would be those of the deployment"
        raise UsageError(
            "catalog_url", reason, "Drill with another catalog: TIDEMARK_CATALOG_URL=sqlite:////tmp/drill.db"
        )


@contextmanager
def scratch(spark: SparkSession, settings: Settings, project: str, first_day: date) -> Iterator[Scratch]:
    """The scratch deployment of a drill; all of it is removed at the end, and one failed removal does not stop the others.

    Raises LedgerError where the database does not allow it to create a schema, UsageError for a REST catalog.
    """
    require_catalog_of_its_own(settings)
    name = f"drill_{uuid.uuid4().hex[:8]}"
    url = f"{settings.warehouse_url.rstrip('/')}/_{name}"
    place = _place(url)
    disturbed, calm = (
        scratch_settings(
            settings,
            f"{name}_{kind}",
            f"{url}/{kind}",
            landing_url=f"{url}/landing",
            **_databases(settings, f"{name}_{kind}"),
            projects=(project,),
            calendar_start=first_day - _FARTHEST_FACT,
            # Sample data has bad lines on purpose.
            max_quarantined_share=1.0,
            # No notices, as nobody reads these tables.
            notify_urls=(),
        )
        for kind in ("disturbed", "calm")
    )
    with ExitStack() as removals:
        folder = Path(removals.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-drill-")))
        # A separate instance: the deployment's dagster.yaml may name a server that holds real runs.
        (folder / "dagster.yaml").write_text(_DAGSTER.format(folder=folder), "utf-8")
        removals.enter_context(_dagster_home(folder))
        store = place.open()
        removals.callback(_empty, place)
        for own in (disturbed, calm):
            _make_schema(own)
            removals.callback(_forget_ledger, own)
            _make_catalog(settings, own)
            configure_catalog(spark, own)
            # Only their rows in the catalog; the files are removed with the folder.
            removals.callback(drop_tables, spark, own)
        yield Scratch(disturbed, calm, folder, store)


@contextmanager
def _dagster_home(folder: Path) -> Iterator[None]:
    before = os.environ.get("DAGSTER_HOME")
    os.environ["DAGSTER_HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["DAGSTER_HOME"]
        else:
            os.environ["DAGSTER_HOME"] = before


def _databases(settings: Settings, name: str) -> dict[str, str]:
    """URLs for a ledger of its own, chosen so that the drill publishes with the same promise as the deployment's loads."""
    ledger = ledger_url(settings, name)
    is_one = promise_of(settings) is Promise.ONE_TRANSACTION
    return {"ledger_url": ledger, "catalog_url": ledger} if is_one else {"ledger_url": ledger}


def ledger_url(settings: Settings, name: str) -> str:
    """The URL of a ledger of its own: next to a SQLite ledger, or in a separate schema on a server."""
    parsed = make_url(settings.ledger_database_url)
    if parsed.get_backend_name() == "sqlite":
        return f"sqlite:///{Path(str(parsed.database)).with_name(f'{name}.db')}"
    return parsed.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)


def _as_variable(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _place(url: str) -> Folder | Bucket:
    folder = local_path(url)
    if folder is None:
        return Bucket.from_url(url, S3Resource())
    (folder / "landing").mkdir(parents=True)
    return Folder(folder)


def _make_schema(settings: Settings) -> None:
    url = make_url(settings.ledger_database_url)
    if url.get_backend_name() != "sqlite":
        try:
            _on_server(settings, f"CREATE SCHEMA {settings.catalog_name}")
        except sa.exc.SQLAlchemyError as error:
            reason = f"does not let the drill create a schema ({getattr(error, 'orig', error)})"
            raise LedgerError(
                masked(settings.ledger_database_url), reason, "GRANT CREATE ON DATABASE to this role"
            ) from error


def _make_catalog(settings: Settings, own: Settings) -> None:
    """Create empty catalog tables in the drill's schema: Iceberg creates none if another schema of the database has them."""
    url = make_url(own.catalog_url)
    if url.get_backend_name() != "sqlite" and own.catalog_url != settings.catalog_url:
        for statement in _CATALOG_TABLES:
            _on_server(own, statement.format(schema=schema_of(url)))


def _forget_ledger(settings: Settings) -> None:
    url = make_url(settings.ledger_database_url)
    if url.get_backend_name() != "sqlite":
        _on_server(settings, f"DROP SCHEMA IF EXISTS {settings.catalog_name} CASCADE")
        return
    for suffix in ("", "-wal", "-shm"):
        Path(f"{url.database}{suffix}").unlink(missing_ok=True)


def _on_server(settings: Settings, statement: str) -> None:
    url = make_url(settings.ledger_database_url).difference_update_query(["options"])
    engine = sa.create_engine(url.set(drivername="postgresql+psycopg2"))
    try:
        with engine.begin() as connection:
            connection.execute(sa.text(statement))
    finally:
        engine.dispose()


def _empty(place: Folder | Bucket) -> None:
    if isinstance(place, Folder):
        shutil.rmtree(place.root)
        return
    store = place.open()
    for page in obstore.list(store):
        obstore.delete(store, [item["path"] for item in page])
