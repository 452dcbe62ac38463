"""The product's Spark session, made small for tests."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pipeline_assets.domain.settings import Settings
from resources.spark.session import engine_config, remember_names


def small_config(jvm_options: str) -> dict[str, str]:
    return {
        "spark.sql.shuffle.partitions": "2",
        # A third of such small queries' time is planning and compiling.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:+ErrorFileToStderr {jvm_options}",
    }


FIRST_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""The second compiler took 40 % of the JVM's time without a faster story; without it 48 MB are enough for code."""
SMALL = small_config(FIRST_COMPILER)
BOTH_COMPILERS = small_config("")


def small_session(master: str, memory: str, **config: str) -> SparkSession:
    """A session with the lakehouse's jars, for any number of loads."""
    settings = Settings(spark_master=master, spark_driver_memory=memory, spark_config=SMALL | config)
    builder = SparkSession.builder
    for key, value in engine_config(settings).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    remember_names()
    return session
