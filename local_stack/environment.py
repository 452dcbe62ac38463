"""The environment of the deployment that the set is: Tidemark's settings, Dagster's, keys of the store; as values and as a file.

Contains: variables of loads and of Dagster's processes, what every process of the set inherits, the
file that shells read.
Add here: a setting that the set decides.
Does not contain: what only one server gets (postgres.py, spark.py).
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping

from local_stack.folder import StackFolder, write_for_owner
from local_stack.options import Options
from local_stack.server import StackError

HOST = "127.0.0.1"
"""Everything listens to this machine alone."""
LANDING, WAREHOUSE = "landing", "warehouse"
"""Buckets."""
REGION, S3_USER = "us-east-1", "tidemark"
_DECIDED = ("TIDEMARK_", "DAGSTER_", "AWS_", "SPARK_", "PYSPARK_", "_SPARK_", "PG", "STACK_", "MAKE")
"""Beginnings of variables that a person may have set for another deployment."""
_NO_PROXY = ("NO_PROXY", "no_proxy")


def inherited(folder: StackFolder) -> dict[str, str]:
    """What every process of the set has of this one's environment, and the set's own place for files that pass."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DECIDED)}
    here = {name: ",".join(filter(None, (kept.get(name), HOST, "localhost"))) for name in _NO_PROXY}
    return {**kept, **here, "TMPDIR": str(folder.tmp)}


def deployment(folder: StackFolder, options: Options) -> dict[str, str]:
    """The variables by which a load, a command or a process of Dagster works on the set."""
    secrets = folder.secrets()
    database = f"{HOST}:{options.port('STACK_PORT_POSTGRES')}"
    memory = f"{options.worker_memory_mib}m"
    spark = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets["spark"],
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.memory": memory,
        "spark.executor.defaultJavaOptions": f'-XX:-UsePerfData "-Djava.io.tmpdir={folder.tmp}"',
    }
    return {
        "DAGSTER_HOME": str(folder.dagster_home),
        "DAGSTER_POSTGRES_URL": f"postgresql+psycopg2://dagster:{secrets['dagster']}@{database}/dagster",
        "TIDEMARK_CATALOG_URL": f"postgresql://tidemark:{secrets['tidemark']}@{database}/tidemark",
        "TIDEMARK_LANDING_URL": f"s3://{LANDING}",
        "TIDEMARK_WAREHOUSE_URL": f"s3://{WAREHOUSE}/tidemark",
        "TIDEMARK_HEALTH_REPORT": str(folder.root / "health_report.html"),
        "TIDEMARK_SPARK_MASTER": f"spark://{HOST}:{options.port('STACK_PORT_SPARK')}",
        "TIDEMARK_SPARK_CONFIG": json.dumps(spark),
        "AWS_ENDPOINT_URL": f"http://{HOST}:{options.port('STACK_PORT_S3')}",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": S3_USER,
        "AWS_SECRET_ACCESS_KEY": secrets["s3"],
        **dict.fromkeys(_NO_PROXY, f"{HOST},localhost"),
    }


def write_environment(folder: StackFolder, variables: Mapping[str, str]) -> None:
    """For shells: `. data/stack/environment`."""
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())]
    write_for_owner(folder.environment, "".join(lines))


def read_environment(folder: StackFolder) -> dict[str, str]:
    """The variables of a set that is up; raises StackError where none is."""
    try:
        lines = folder.environment.read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise StackError("the set", "is not up", "Start it: make up") from None
    words = (shlex.split(line)[1] for line in lines)
    return dict(word.split("=", 1) for word in words)
