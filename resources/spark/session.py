"""The Spark session: one per process, local or on a cluster, with the lakehouse's jars, without downloads at run time."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from py4j.java_gateway import JavaClass, JavaMember, JVMView
from pyspark.errors import PySparkRuntimeError
from sqlalchemy.engine import make_url

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.machine import is_on_this_machine
from pipeline_assets.domain.masking import MASK, NAMES_OF_SECRETS, is_secret_name
from pipeline_assets.domain.places import is_rest_catalog, local_path
from pipeline_assets.domain.settings import Settings, require_cluster_settings
from resources.iceberg.metadata import WAREHOUSE_OF
from resources.spark.jars import available, jars_folder, jvm_options, require_java, require_pinned
from resources.spark.workers import require_same_workers, shipped, waiting_for_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ZONE = "-Duser.timezone=UTC"
LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
"""Hadoop's own class forks `chmod` twice per file, which takes 9 ms of CPU; a first small load creates a hundred files."""
_ONLY_HERE = "127.0.0.1"
_BOUNDS = {"socketTimeout": "300", "tcpKeepAlive": "true"}
_JVM_ADDRESS = "SPARK_LOCAL_IP"


def engine_config(settings: Settings) -> dict[str, str]:
    """Return Spark's configuration, which is fixed once the session has started."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # A cluster's workers must reach the driver under the host name that Spark finds.
    is_local = is_on_this_machine(settings.spark_master)
    nowhere_else = {"spark.driver.bindAddress": _ONLY_HERE, "spark.driver.host": _ONLY_HERE}
    jars = [str(path) for path in available(settings)]
    config = {
        "spark.app.name": "tidemark",
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Otherwise each expression reports its source line to the JVM: a third of a small load's calls.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.redaction.regex": NAMES_OF_SECRETS,
        **(nowhere_else if is_local else {}),
        "spark.sql.shuffle.partitions": "8",
        "spark.python.daemon.module": "resources.spark.worker_daemon",
        **waiting_for_workers(settings.spark_master, settings.spark_config),
        **settings.spark_config,
    }
    if settings.spark_master == "local" or settings.spark_master.startswith("local["):
        config = {"spark.hadoop.fs.file.impl": LOCAL_FILES} | config
        config |= _in_one_process(config, jars, settings)
    return config | _in_utc(config)


def _in_one_process(config: Mapping[str, str], jars: Sequence[str], settings: Settings) -> dict[str, str]:
    """Put the jars on the class path: nothing copies them, and the class archive may contain their classes."""
    added = [jar for jar in config["spark.jars"].split(",") if jar not in jars]
    path = ":".join([*jars, *filter(None, [config.get("spark.driver.extraClassPath")])])
    options = f"{config.get('spark.driver.defaultJavaOptions', '')} {jvm_options(jars_folder(settings))}".strip()
    return {
        "spark.jars": ",".join(added),
        "spark.driver.extraClassPath": path,
        "spark.driver.defaultJavaOptions": options,
    }


def _in_utc(config: Mapping[str, str]) -> dict[str, str]:
    """Dates pass into the JVM in its time zone, where a day may start late or be skipped; the last of two options wins."""
    pinned = {"spark.sql.session.timeZone": "UTC", "spark.executorEnv.TZ": "UTC"}
    for process in ("driver", "executor"):
        default, own = f"spark.{process}.defaultJavaOptions", f"spark.{process}.extraJavaOptions"
        for key in (default, own) if own in config else (default,):
            pinned[key] = f"{config.get(key, '')} {_ZONE}".strip()
    return pinned


def catalog_config(settings: Settings) -> dict[str, str]:
    """Return the Iceberg catalog's configuration; the operator's settings win for a REST catalog, and add to ours otherwise."""
    prefix = f"spark.sql.catalog.{settings.catalog_name}"
    theirs = {key: value for key, value in settings.spark_config.items() if f"{key}.".startswith(f"{prefix}.")}
    folder = local_path(settings.warehouse_url)
    place = settings.warehouse_url.rstrip("/") if folder is None else f"file:{folder}"
    ours = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.warehouse": place,
        f"{prefix}.cache-enabled": "false",
        # With Iceberg's default of 4, four writers on one table failed 5 of 80 commits.
        f"{prefix}.table-default.commit.retry.num-retries": "20",
    }
    ours |= _connection(prefix, settings.catalog_url)
    if folder is None:
        ours[f"{prefix}.io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
        if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
            ours |= {f"{prefix}.s3.endpoint": endpoint, f"{prefix}.s3.path-style-access": "true"}
        if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
            ours[f"{prefix}.client.region"] = region
    both = ours | theirs if is_rest_catalog(settings.catalog_url) else theirs | ours
    return both | {f"{WAREHOUSE_OF}.{settings.catalog_name}": place}


def _connection(prefix: str, catalog_url: str) -> dict[str, str]:
    if is_rest_catalog(catalog_url):
        return {f"{prefix}.type": "rest", f"{prefix}.uri": catalog_url}
    kind = {f"{prefix}.type": "jdbc", f"{prefix}.jdbc.schema-version": "V1"}
    url = make_url(catalog_url)
    if url.get_backend_name() == "sqlite":
        return kind | {f"{prefix}.uri": f"jdbc:sqlite:{url.database}?journal_mode=WAL&busy_timeout=30000"}
    # Address and login are separate settings, because errors of the JVM repeat the address. pgjdbc shares the names `sslmode`,
    # `sslrootcert` and `options` with libpq, and ignores others.
    login = {name: value for name, value in url.query.items() if name == "user" or is_secret_name(name)}
    options = {name: value for name, value in url.query.items() if name not in login}
    login |= {"user": url.username} if url.username else {}
    login |= {"password": str(url.password)} if url.password else {}
    # A vanished server would hang an unbounded session; catalog statements take less than a second.
    login |= {name: value for name, value in _BOUNDS.items() if name not in options}
    query = f"?{urlencode(options, doseq=True)}" if options else ""
    place = f"{url.host or 'localhost'}:{url.port or 5432}/{url.database}"
    kind[f"{prefix}.uri"] = f"jdbc:postgresql://{place}{query}"
    return kind | {f"{prefix}.jdbc.{name}": str(value) for name, value in login.items()}


def configure_catalog(spark: SparkSession, settings: Settings) -> None:
    """Configure the catalog on a running session and create local folders; raises SettingsError for a bad time zone."""
    remember_names()
    # The JVM decides: the session may be older than these settings, or Spark's defaults file may override the zone.
    zone = getattr(spark._jvm, "java.util.TimeZone").getDefault()
    if zone.getRawOffset() or not zone.toZoneId().getRules().isFixedOffset():
        hint = "Remove -Duser.timezone from spark-defaults.conf, or start the session with -Duser.timezone=UTC"
        raise SettingsError("Spark's JVM", f"counts days in {zone.getID()}, where dates shift", hint)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    warehouse = local_path(settings.warehouse_url)
    if warehouse is not None:
        warehouse.mkdir(parents=True, exist_ok=True)
    url = make_url(settings.catalog_url)
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    known = spark.sparkContext._jsc.sc().conf()
    for key, value in catalog_config(settings).items():
        if is_secret_name(key) and not known.contains(key):
            # Spark's event log repeats the session's settings for each job, and redacts only the names known at the start.
            known.set(key, MASK)
        spark.conf.set(key, value)


def started(config: Mapping[str, str], secret: Mapping[str, str]) -> SparkSession:
    """Start a session. Secrets are set once the JVM runs, because every user of a machine can read its command line."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - Dagster's processes that start no Spark import none

    # Limit the JVM to this machine, unless a cluster's workers must reach it.
    is_limited = config.get("spark.driver.bindAddress") == _ONLY_HERE and _JVM_ADDRESS not in os.environ
    os.environ |= {_JVM_ADDRESS: _ONLY_HERE} if is_limited else {}
    try:
        # PySpark puts all settings known here on the JVM's command line.
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(config.items())))
    finally:
        if is_limited:
            del os.environ[_JVM_ADDRESS]
    session: SparkSession = spark_session_from_config({**config, **secret})  # type: ignore[no-untyped-call]  # of Dagster
    return session


def _opened(settings: Settings, config: Mapping[str, str], secret: Mapping[str, str]) -> SparkSession:
    require_pinned(settings)
    if is_on_this_machine(settings.spark_master):
        return started(config, secret)
    require_cluster_settings(settings)
    code = shipped(settings, {**config, **secret})
    session = started({**config, **code.config}, secret)
    try:
        code.send(session)
        require_same_workers(session)
    except BaseException:
        session.stop()
        raise
    return session


def spark_resource(settings: Settings) -> LazyPySparkResource:
    """Return Dagster's Spark resource; it starts a JVM only when a run uses it."""
    config = engine_config(settings)
    secret = {name: value for name, value in config.items() if is_secret_name(name) and name != "spark.redaction.regex"}

    class Engine(LazyPySparkResource):
        """Dagster shows a resource's configuration on its page."""

        def _init_session(self) -> None:
            if self._spark_session is None:
                try:
                    self._spark_session = _opened(settings, self.spark_config, secret)
                except PySparkRuntimeError:
                    require_java()
                    raise

    return Engine(spark_config={name: value for name, value in config.items() if name not in secret})


@cache
def remember_names() -> None:
    """Patch py4j to keep classes and static methods on the view that looked them up."""
    _remembering(JVMView, (JavaClass,))
    _remembering(JavaClass, (JavaMember,))


def _remembering(kind: type, lasting: tuple[type, ...]) -> None:
    ask = kind.__getattr__  # type: ignore[attr-defined]  # Py4J has no types

    def answer(owner: Any, name: str) -> Any:
        member = ask(owner, name)
        if isinstance(member, lasting):
            owner.__dict__[name] = member
        return member

    kind.__getattr__ = answer  # type: ignore[attr-defined]  # Py4J has no types
