"""Spark's standalone cluster: a master and two workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark

from local_stack.asking import ask_json
from local_stack.environment import HOST, inherited
from local_stack.folder import StackFolder
from local_stack.java import java, jvm_words
from local_stack.options import Options
from local_stack.server import Server

_PORT, _PAGE = "STACK_PORT_SPARK", "STACK_PORT_SPARK_PAGE"
_WORKER_PAGES = {"spark-worker-1": "STACK_PORT_WORKER_1_PAGE", "spark-worker-2": "STACK_PORT_WORKER_2_PAGE"}
_ROOM = "-Dspark.worker.cleanup.enabled=true -Dspark.worker.cleanup.interval=300 -Dspark.worker.cleanup.appDataTtl=900"
"""Clean up after applications: each copies its jars to the workers, which would keep them forever."""


def master(folder: StackFolder, options: Options, secret: str) -> Server:
    """Return the master; submitting an application requires the secret."""
    port, page = options.port(_PORT), options.port(_PAGE)
    words = ("--host", HOST, "--port", str(port), "--webui-port", str(page))
    return Server(
        name="spark-master",
        command=(_spark_class(), "org.apache.spark.deploy.master.Master", *words),
        environment=_environment(folder, secret),
        folder=folder.root,
        ports={_PORT: port, _PAGE: page},
        is_well=lambda: (ask_json(page, "/json/") or {}).get("status") == "ALIVE",
    )


def workers(folder: StackFolder, options: Options, secret: str, deployment: dict[str, str]) -> list[Server]:
    """Return both workers; their executors use the deployment's keys for landing and warehouse."""
    return [_worker(name, folder, options, {**deployment, **_environment(folder, secret)}) for name in _WORKER_PAGES]


def _worker(name: str, folder: StackFolder, options: Options, environment: dict[str, str]) -> Server:
    setting = _WORKER_PAGES[name]
    page = options.port(setting)
    url = f"spark://{HOST}:{options.port(_PORT)}"
    offer = ("--cores", str(options.worker_cores), "--memory", f"{options.worker_memory_mib}m")
    words = ("--host", HOST, "--webui-port", str(page), "--work-dir", str(folder.spark / name), *offer, url)
    return Server(
        name=name,
        command=(_spark_class(), "org.apache.spark.deploy.worker.Worker", *words),
        environment={**environment, "SPARK_WORKER_OPTS": _ROOM},
        folder=folder.root,
        ports={setting: page},
        # A worker knows its master's page once it is registered.
        is_well=lambda: bool((ask_json(page, "/json/") or {}).get("masterwebuiurl")),
    )


def _spark_class() -> str:
    java()
    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def _environment(folder: StackFolder, secret: str) -> dict[str, str]:
    quoted = " ".join(f'"{word}"' for word in jvm_words(folder))
    settings = "-Dspark.authenticate=true -Dspark.master.rest.enabled=false -Dspark.ui.killEnabled=false"
    return {
        **inherited(folder),
        # The variable that Spark itself uses for the secret.
        "_SPARK_AUTH_SECRET": secret,
        # Spark's web pages listen on this address.
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(folder.tmp),
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": f"{quoted} -XX:TieredStopAtLevel=1 {settings}",
        "PYSPARK_PYTHON": sys.executable,
    }
