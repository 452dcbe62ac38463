"""A Spark cluster on this machine: a standalone master and a worker, each a process of its own.

Contains: starting and stopping it.
Add here: another kind of cluster.
Does not contain: what runs on it.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

_PATIENCE_SECONDS = 60


@contextmanager
def a_cluster(folder: Path, cores: int = 2, memory: str = "1g") -> Iterator[str]:
    """URL of the master; its worker offers so many cores and so much memory, and starts Python wherever the driver says."""
    with (
        _daemon("master.Master", ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"], folder) as log,
        _daemon(
            "worker.Worker",
            [
                "--host",
                "127.0.0.1",
                "--cores",
                str(cores),
                "--memory",
                memory,
                "--webui-port",
                "0",
                "--work-dir",
                str(folder / "work"),
                (url := _said(log, r"spark://[\w.]+:\d+")),
            ],
            folder,
        ) as worker_log,
    ):
        _said(worker_log, "Successfully registered with master")
        yield url


@contextmanager
def _daemon(name: str, words: list[str], folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    log = folder / f"{name}.log"
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    # Spark's launcher ends with `exec`, so the process that is stopped is the JVM.
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(spark_class), f"org.apache.spark.deploy.{name}", *words], stdout=out, stderr=out, env=_environment()
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE_SECONDS)


def _environment() -> dict[str, str]:
    """Nothing of the session that this process may have: its JVM's options are the driver's."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "TIDEMARK_"))
    }
    return {**inherited, "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


def _said(log: Path, wanted: str) -> str:
    """What a process writes to its log, once it has."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        if found := re.search(wanted, log.read_text(encoding="utf-8", errors="replace")):
            return found.group()
        time.sleep(0.2)
    raise RuntimeError(
        f"{log.stem} never said {wanted!r}:\n{log.read_text(encoding='utf-8', errors='replace')[-2000:]}"
    )
