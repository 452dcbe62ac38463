"""The runtime of a command that works without Dagster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Purpose
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from resources.spark.engine_life import LastWords, naming_a_dead_engine
from resources.spark.session import configure_catalog, spark_resource


@contextmanager
def open_runtime(settings: Settings, log: Callable[[str], None], purpose: Purpose = Purpose.LOOK) -> Iterator[Runtime]:
    """Yield the runtime of the load path in a process without Dagster; starts Spark."""
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        landing = LandingStore.from_settings(settings, S3Resource())
        lakehouse = Lakehouse(session, settings.catalog_name)
        words = LastWords(log)
        with naming_a_dead_engine(lambda: session, words, settings.spark_driver_memory), lakehouse_failures("tables"):
            lakehouse.require_own(settings, EVERY_TABLE, purpose, ledger.lake)
            yield Runtime(lakehouse, ledger, landing, settings, words)
