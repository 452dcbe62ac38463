"""The workbench of a command that works without Dagster.

Lives here: opening and closing it. Put here: what such commands share. Keep out: what they do with it (load_path/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.settings import Settings
from pipeline_assets.load_path.request import Workbench
from pipeline_assets.tables.registry import ALL_TABLES
from resources.engine_life import LastWords, naming_a_dead_engine
from resources.lake_identity import Purpose
from resources.lakehouse import Lakehouse
from resources.lakehouse_errors import lakehouse_failures
from resources.landing_store import LandingStore
from resources.ledger import Ledger
from resources.spark import configure_catalog, spark_resource


@contextmanager
def workbench(settings: Settings, say: Callable[[str], None]) -> Iterator[Workbench]:
    """What the load path works with, for a process without Dagster; starts Spark."""
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        landing = LandingStore.from_settings(settings, S3Resource())
        lakehouse = Lakehouse(session, settings.catalog_name)
        words = LastWords(say)
        with naming_a_dead_engine(lambda: session, words, settings.spark_driver_memory):
            with lakehouse_failures("tables"):
                lakehouse.require_own(settings, ALL_TABLES, Purpose.LOOK)
                ledger.lake.require(lakehouse.lake(settings), may_take=False)
            yield Workbench(lakehouse, ledger, landing, settings, words)
