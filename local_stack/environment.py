"""The environment of the local stack: settings of Tidemark and Dagster and keys of the store, as values and as a file."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from local_stack.folder import StackFolder, write_for_owner
from local_stack.options import Options
from local_stack.server import StackError
from pipeline_assets.config import CONFIG_VARIABLE
from sample_export.demo_place import OF_A_DEPLOYMENT, SETTINGS, of_this_machine

HOST = "127.0.0.1"
"""All servers listen on this machine only."""
LANDING, WAREHOUSE = "landing", "warehouse"
"""Names of the buckets."""
REGION, S3_USER = "us-east-1", "tidemark"
_DECIDED = (*OF_A_DEPLOYMENT, "SPARK_", "PYSPARK_", "_SPARK_", "STACK_", "MAKE")
"""Prefixes of variables that no process of the stack inherits from the user."""
_CLIENTS = ("AWS_", "PG")
"""Prefixes of variables that clients of stores and databases read by themselves."""
_NO_PROFILES = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
"""Hides the user's AWS files, which may set another endpoint or other options."""
_EXPORT = "export "
_UNSET = (
    "# The deployment that `make up` started. What names another one is unset first.\n"
    rf"for _name in $(env | sed -nE 's/^(({'|'.join(OF_A_DEPLOYMENT)})[A-Za-z0-9_]*)=.*/\1/p')"
    '; do unset "$_name"; done; unset _name\n'
)
_NO_PROXY = ("NO_PROXY", "no_proxy")


def inherited(folder: StackFolder) -> dict[str, str]:
    """Return the environment that every process of the stack inherits, with the stack's own temporary folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DECIDED)}
    here = {name: ",".join(filter(None, (kept.get(name), HOST, "localhost"))) for name in _NO_PROXY}
    return {**kept, **here, "TMPDIR": str(folder.tmp)}


def deployment(folder: StackFolder, options: Options) -> dict[str, str]:
    """Return the variables with which a load, a command or a Dagster process uses the stack.

    They set every location, so that nothing leads elsewhere. Raises SettingsError where the user's own settings are wrong.
    """
    secrets = folder.secrets()
    database = f"{HOST}:{options.port('STACK_PORT_POSTGRES')}"
    memory = f"{options.worker_memory_mib}m"
    lake = f"postgresql://tidemark:{secrets['tidemark']}@{database}/tidemark"
    store = f"http://{HOST}:{options.port('STACK_PORT_S3')}"
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
        CONFIG_VARIABLE: str(folder.settings),
        "TIDEMARK_CATALOG_URL": lake,
        "TIDEMARK_LEDGER_URL": lake,
        "TIDEMARK_CATALOG_NAME": "lake",
        "TIDEMARK_LANDING_URL": f"s3://{LANDING}",
        "TIDEMARK_WAREHOUSE_URL": f"s3://{WAREHOUSE}/tidemark",
        "TIDEMARK_HEALTH_REPORT": str(folder.root / "health_report.html"),
        "TIDEMARK_SPARK_MASTER": f"spark://{HOST}:{options.port('STACK_PORT_SPARK')}",
        "TIDEMARK_SPARK_CONFIG": json.dumps(spark),
        **of_this_machine(),
        "AWS_ENDPOINT_URL": store,
        "AWS_ENDPOINT_URL_S3": store,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": S3_USER,
        "AWS_SECRET_ACCESS_KEY": secrets["s3"],
        **_NO_PROFILES,
        **dict.fromkeys(_NO_PROXY, f"{HOST},localhost"),
    }


def keep_settings(folder: StackFolder) -> None:
    """Create the file of the remaining settings unless it exists; the user may have changed it."""
    if not folder.settings.exists():
        write_for_owner(folder.settings, SETTINGS.read_text("utf-8"))


@contextmanager
def without_other_stores() -> Iterator[None]:
    """Hide the user's variables during a command, so that clients in this process reach only the stores that they are given."""
    taken = {name: value for name, value in os.environ.items() if name.startswith(_CLIENTS)}
    for name in taken:
        del os.environ[name]
    os.environ.update(_NO_PROFILES)
    try:
        yield
    finally:
        for name in _NO_PROFILES:
            os.environ.pop(name, None)
        os.environ.update(taken)


def write_environment(folder: StackFolder, variables: Mapping[str, str]) -> None:
    """Write the file that shells source: `. data/stack/environment`."""
    lines = [f"{_EXPORT}{name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())]
    write_for_owner(folder.environment, "".join((_UNSET, *lines)))


def read_environment(folder: StackFolder) -> dict[str, str]:
    """Return the variables of a running stack; raises StackError where none is running."""
    try:
        lines = folder.environment.read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise StackError("the set", "is not up", "Start it: make up") from None
    words = (shlex.split(line)[1] for line in lines if line.startswith(_EXPORT))
    return dict(word.split("=", 1) for word in words)
