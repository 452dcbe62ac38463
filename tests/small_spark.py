"""The product's Spark session, made small for tests.

Lives here: its settings. Put here: a setting that spares every test time. Keep out: what is done with the session.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView
from pyspark.sql import SparkSession

from pipeline_assets.domain.settings import Settings
from resources.jars import DEFAULT_JARS_DIR, verified
from resources.spark import engine_config
from tests.class_archive import ARCHIVE, QUIET

CLASS_PATH = "spark.driver.extraClassPath"


def small_config(jvm_options: str) -> dict[str, str]:
    """Spark's configuration, with options of the JVM."""
    return {
        "spark.sql.shuffle.partitions": "2",
        # A third of the time of such small queries goes into planning them anew and into compiling them.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # On the class path, and not added to the session: an archive holds no classes of a session's own loader.
        CLASS_PATH: ":".join(str(path) for path in verified(DEFAULT_JARS_DIR)),
        "spark.jars": "",
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:+ErrorFileToStderr {jvm_options}",
    }


FIRST_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a process of a few loads: the second compiler pays for itself from about the tenth on. Without it the JVM reserves
only 48 MB for code, which many rounds of writers would fill."""
_PREPARED = f"-XX:SharedArchiveFile={ARCHIVE} {QUIET}" if ARCHIVE.exists() else ""
SMALL = small_config(f"{FIRST_COMPILER} {_PREPARED}")


def small_session(master: str, memory: str, **config: str) -> SparkSession:
    """A session with the lakehouse's jars, for as many loads as there are."""
    settings = Settings(spark_master=master, spark_driver_memory=memory, spark_config=small_config(_PREPARED) | config)
    builder = SparkSession.builder
    for key, value in engine_config(settings).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    _remember_names()
    return session


def _remember_names() -> None:
    """Ask the JVM once for each class and static method that PySpark names: an eighth of a small load goes into asking again."""

    def remembering(kind: type, lasting: tuple[type, ...]) -> None:
        ask = kind.__getattr__  # type: ignore[attr-defined]

        def answer(owner: Any, name: str) -> Any:
            found = ask(owner, name)
            if isinstance(found, lasting):
                owner.__dict__[name] = found
            return found

        kind.__getattr__ = answer  # type: ignore[attr-defined]

    remembering(JVMView, (JavaClass,))
    remembering(JavaClass, (JavaMember,))
