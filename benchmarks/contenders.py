"""The compared ways of loading: each loads the same files into a table with the same columns."""

from __future__ import annotations

import importlib
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession, Window

from benchmarks.jars import DELTA_JARS, fetched
from benchmarks.workload import FIRST_DAY, PROJECT
from pipeline_assets.domain.settings import Settings
from pipeline_assets.formats.amplitude.columns import DELIVERED_KEYS, VENDOR_COLUMNS
from pipeline_assets.formats.base import ColumnType
from pipeline_assets.tables.registry import ALL_TABLES
from resources.iceberg.lake_identity import Purpose
from resources.iceberg.lakehouse import Lakehouse
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog, engine_config

CORES = 2
DRIVER_MEMORY = "2g"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
_DELIVERED_SCHEMA = ", ".join(
    # Read times as text, because a timestamp format makes Spark's reader twice as slow.
    f"`{key}` {'string' if VENDOR_COLUMNS[name] is ColumnType.TIMESTAMP else VENDOR_COLUMNS[name].spark_type}"
    for key, name in DELIVERED_KEYS.items()
)


def settings_in(folder: Path, landing: Path, catalog: str, **changes: Any) -> Settings:
    """Return the settings of a separate deployment below `folder`."""
    known: dict[str, Any] = {
        "landing_url": str(landing),
        "warehouse_url": f"file://{folder}/warehouse",
        "catalog_name": catalog,
        "catalog_url": f"sqlite:///{folder}/catalog.db",
        "projects": (PROJECT,),
        "calendar_start": FIRST_DAY,
        "spark_master": f"local[{CORES}]",
        "spark_driver_memory": DRIVER_MEMORY,
    }
    return Settings(**(known | changes))


def a_session(settings: Settings, **changes: str) -> SparkSession:
    """Return the product's session; every Spark contender uses the same configuration."""
    builder = SparkSession.builder
    for key, value in (engine_config(settings) | changes).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    configure_catalog(session, settings)
    return session


class Contender(ABC):
    """One way of loading."""

    def __init__(self, folder: Path, landing: Path, catalog: str = "lake") -> None:
        """Write only below `folder`. A session remembers a catalog's location by name, so use a new name per location."""
        self.folder = folder
        self.landing = landing
        self.catalog = catalog
        folder.mkdir(parents=True)

    @abstractmethod
    def start(self) -> None:
        """Start the engine and create the tables."""

    @abstractmethod
    def load(self, objects: Sequence[Path], days: Sequence[date]) -> dict[str, float]:
        """Load the delivered objects; returns the seconds of named parts, where known."""

    @abstractmethod
    def rows(self) -> int:
        """Return the row count of the table that a user would read."""


class _SparkContender(Contender):
    @property
    def table(self) -> str:
        """Its name in SQL."""
        return f"{self.catalog}.bench.events"

    def start(self) -> None:
        self.settings = settings_in(self.folder, self.landing, self.catalog)
        self.spark = a_session(self.settings)

    def rows(self) -> int:
        return self.spark.table(self.table).count()

    def delivered(self, objects: Sequence[Path]) -> DataFrame:
        """Return the 55 typed columns and the two partition columns."""
        if not objects:
            frame = self.spark.createDataFrame([], _DELIVERED_SCHEMA)
        else:
            frame = self.spark.read.schema(_DELIVERED_SCHEMA).json([str(path) for path in objects])
        columns = [
            (column.try_cast("timestamp") if VENDOR_COLUMNS[name] is ColumnType.TIMESTAMP else column).alias(name)
            for name, column in ((name, F.col(f"`{key}`")) for key, name in DELIVERED_KEYS.items())
        ]
        frame = frame.select(*columns)
        return frame.select(F.to_date("event_time").alias("event_date"), F.lit(PROJECT).alias("project_id"), "*")


class NaiveAppend(_SparkContender):
    """a: read JSON and append, without checks; loading the same bytes again duplicates them."""

    def start(self) -> None:
        super().start()
        _create(self.spark, self.table, self.delivered(()), "iceberg")

    def load(self, objects: Sequence[Path], days: Sequence[date]) -> dict[str, float]:
        self.delivered(objects).writeTo(self.table).append()
        return {}


class IcebergMerge(_SparkContender):
    """e: read JSON, keep the latest row of each key, MERGE into one table, without checks."""

    using = "iceberg"

    def start(self) -> None:
        super().start()
        _create(self.spark, self.table, _with_key(self.delivered(())), self.using)

    def load(self, objects: Sequence[Path], days: Sequence[date]) -> dict[str, float]:
        latest = Window.partitionBy("_key").orderBy(F.col("server_upload_time").desc(), F.col("processed_time").desc())
        ranked = _with_key(self.delivered(objects)).withColumn("_place", F.row_number().over(latest))
        ranked.where("_place = 1").drop("_place").createOrReplaceTempView("delivered")
        # Prune by days as an informed user would; otherwise MERGE reads the whole table.
        bounds = self.spark.table("delivered").agg(F.min("event_date"), F.max("event_date")).first()
        assert bounds is not None
        self.spark.sql(
            f"MERGE INTO {self.table} t USING delivered s ON t._key = s._key "
            f"AND t.event_date BETWEEN DATE '{bounds[0]}' - 7 AND DATE '{bounds[1]}' + 7 "
            "WHEN MATCHED AND s.server_upload_time >= t.server_upload_time THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        return {}


class DeltaMerge(IcebergMerge):
    """d: as e, on Delta Lake."""

    using = "delta"

    @property
    def table(self) -> str:
        """Its name in SQL."""
        return f"{self.catalog}_events"

    def start(self) -> None:
        self.settings = settings_in(self.folder, self.landing, self.catalog)
        config = engine_config(self.settings)
        jars = [str(path) for path in fetched(DELTA_JARS)]
        self.spark = a_session(
            self.settings,
            **{
                "spark.jars": ",".join(filter(None, [config["spark.jars"], *jars])),
                "spark.sql.extensions": f"{config['spark.sql.extensions']},io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                "spark.sql.warehouse.dir": str(self.folder / "delta"),
            },
        )
        _create(self.spark, self.table, _with_key(self.delivered(())), self.using)


class OurLoad(Contender):
    """b and c: the product's own job, for raw only or every table; times the load path and Dagster's events separately."""

    def __init__(
        self,
        folder: Path,
        landing: Path,
        catalog: str = "lake",
        *,
        tables: frozenset[str] | None = None,
        **changes: Any,
    ) -> None:
        """Take `tables`, the keys of the tables to load (None for all), and `changes` of settings."""
        super().__init__(folder, landing, catalog)
        self.tables = tables
        self.changes = changes

    def start(self) -> None:
        import dagster as dg

        from pipeline_assets.definitions import build_defs
        from pipeline_assets.orchestration.assets import Clock

        self.settings = settings_in(self.folder, self.landing, self.catalog, **self.changes)
        self.spark = a_session(self.settings)
        (self.folder / "dagster").mkdir()
        self.instance = dg.DagsterInstance.local_temp(str(self.folder / "dagster"))
        self.defs = build_defs(self.settings, clock=Clock(NOW))
        lakehouse = Lakehouse(self.spark, self.catalog)
        # Tables of no lake would be a stranger's to the load.
        with closing(Ledger(self.settings.ledger_database_url)) as ledger:
            lakehouse.require_own(self.settings, ALL_TABLES, Purpose.BEGIN, ledger.lake)
        for table in ALL_TABLES:
            lakehouse.ensure(table)

    def load(self, objects: Sequence[Path], days: Sequence[date]) -> dict[str, float]:
        import dagster as dg

        from pipeline_assets.orchestration.runtime import kept_connections
        from pipeline_assets.orchestration.specs import range_tags

        op: Any = importlib.import_module("pipeline_assets.orchestration.assets")
        parts: dict[str, float] = {}
        run_load = op.run_load
        op.run_load = lambda *arguments: _timed(run_load(*arguments), parts)
        try:
            chosen = [dg.AssetKey(key.split("/")) for key in self.tables] if self.tables is not None else None
            # As `tidemark load` does.
            with kept_connections(self.instance):
                result = self.defs.resolve_job_def("daily_load").execute_in_process(
                    instance=self.instance,
                    asset_selection=chosen,
                    tags=range_tags(days[0], days[-1]),
                    run_id=str(uuid.uuid4()),
                )
        finally:
            op.run_load = run_load
        assert result.success
        return parts

    def rows(self) -> int:
        is_raw = self.tables is not None and "refined/events" not in self.tables
        return self.spark.table(f"{self.catalog}.{'raw.regular_events' if is_raw else 'refined.events'}").count()


class DuckCopy(Contender):
    """f: DuckDB reads the files and writes Parquet on one machine, without tables, transactions or checks."""

    def start(self) -> None:
        self.connection = duckdb.connect()
        self.connection.execute(f"SET threads = {CORES}")

    def load(self, objects: Sequence[Path], days: Sequence[date]) -> dict[str, float]:
        kinds = {ColumnType.TIMESTAMP: "TIMESTAMP", ColumnType.JSON: "JSON", ColumnType.STRING: "VARCHAR"}
        columns = ", ".join(
            f"'{key}': '{kinds.get(VENDOR_COLUMNS[name], VENDOR_COLUMNS[name].spark_type)}'"
            for key, name in DELIVERED_KEYS.items()
        )
        files = ", ".join(f"'{path}'" for path in objects)
        self.connection.execute(
            f"COPY (SELECT *, event_time::DATE AS event_date, '{PROJECT}' AS project_id FROM read_json([{files}], "
            f"format = 'newline_delimited', columns = {{{columns}}})) TO '{self.folder}/parquet' "
            f"(FORMAT parquet, COMPRESSION zstd, PARTITION_BY (event_date, project_id), APPEND)"
        )
        return {}

    def rows(self) -> int:
        row = self.connection.execute(f"SELECT count(*) FROM '{self.folder}/parquet/**/*.parquet'").fetchone()
        assert row is not None
        return int(row[0])


CONTENDERS: dict[str, tuple[str, Callable[..., Contender]]] = {
    "a": ("naive: spark.read.json + append", NaiveAppend),
    "b": ("our raw load", partial(OurLoad, tables=frozenset({"raw/regular_events"}))),
    "c": ("ours: raw, refined, three aggregates, all checks", OurLoad),
    "d": ("Delta MERGE, one table, no checks", DeltaMerge),
    "e": ("Iceberg MERGE, one table, no checks", IcebergMerge),
    "f": ("DuckDB: JSON to Parquet", DuckCopy),
}
"""Letter -> description and class."""


def _timed(reports: Iterator[Any], parts: dict[str, float]) -> Iterator[Any]:
    """Yield the reports unchanged; adds up the seconds spent in the load path, in total and per table."""
    parts["load"] = 0.0
    while True:
        started = time.perf_counter()
        report = next(reports, None)
        parts["load"] += time.perf_counter() - started
        if report is None:
            return
        parts[report.table] = report.seconds
        yield report


def _create(spark: SparkSession, table: str, frame: DataFrame, using: str) -> None:
    if using == "iceberg":
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}")
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema)
    spark.sql(f"CREATE TABLE {table} ({columns}) USING {using} PARTITIONED BY (event_date, project_id)")


def _with_key(frame: DataFrame) -> DataFrame:
    by_insert = F.concat_ws("|", "app", "device_id", "insert_id")
    return frame.withColumn("_key", F.when(F.col("insert_id").isNotNull(), by_insert).otherwise(F.col("uuid")))
