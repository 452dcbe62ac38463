"""A standalone Spark master and workers on this machine, each its own process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

_PATIENCE_SECONDS = 60
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass
class _Daemon:
    process: subprocess.Popen[bytes]
    log: Path

    def says(self, wanted: str) -> str:
        """Wait for this in its log."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until:
            if found := re.search(wanted, self.log.read_text(encoding="utf-8", errors="replace")):
                return found.group(found.lastindex or 0)
            time.sleep(0.2)
        raise RuntimeError(f"{self.log.stem} never said {wanted!r}:\n{self.log.read_text('utf-8', 'replace')[-2000:]}")


@dataclass(frozen=True)
class Cluster:
    url: str
    folder: Path
    """Logs; below `work`, for each worker, its executors' files and output."""
    workers: list[_Daemon] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    """Pages of the master and workers, as HTML and JSON."""

    def executors(self) -> dict[int, _Daemon]:
        """Process id of each executor's JVM -> its worker."""
        found = {}
        for worker in self.workers:
            with suppress(OSError):
                # Any thread of the worker may have started it.
                for children in Path(f"/proc/{worker.process.pid}/task").glob("*/children"):
                    for pid in map(int, children.read_text().split()):
                        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                            found[pid] = worker
        return found

    def lose(self, *, is_machine: bool) -> None:
        """SIGKILL to the only executor's JVM; as when a machine is gone, to its worker too."""
        ((pid, worker),) = self.executors().items()
        if is_machine:
            worker.process.kill()
        os.kill(pid, signal.SIGKILL)

    def keep_pages(self, folder: Path, *others: str) -> int:
        """Write its pages and others into files of a folder; return their number."""
        count = 0
        for url in (*self.pages, *others):
            with suppress(ConnectionRefusedError):
                (folder / f"page-{re.sub('[^a-z0-9]+', '-', url)}").write_bytes(_open(url, timeout=30).read())
                count += 1
        return count


@contextmanager
def a_cluster(folder: Path, *cores: int, memory: str = "1g", **variables: str) -> Iterator[Cluster]:
    """A master, and a worker per number of cores. `memory`: for a worker's executors. `variables`: executors inherit."""
    with ExitStack() as stack:

        def daemon(name: str, number: int, *words: str) -> _Daemon:
            started = _daemon(f"{name}-{number}", f"{name}.{name.title()}", words, folder, variables)
            return stack.enter_context(started)

        master = daemon("master", 0, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        cluster = Cluster(master.says(r"spark://[\w.]+:\d+"), folder)
        for number, count in enumerate(cores):
            place = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(folder / "work" / str(number)))
            room = ("--cores", str(count), "--memory", memory)
            cluster.workers.append(daemon("worker", number, *place, *room, cluster.url))
        for worker in cluster.workers:
            worker.says("Successfully registered with master")
        for each in (master, *cluster.workers):
            port = each.says(r"Successfully started service '\w+UI' on port (\d+)")
            cluster.pages.extend(f"http://127.0.0.1:{port}/{page}" for page in ("", "json/"))
        yield cluster


def a_python(folder: Path, **versions: str) -> Path:
    """An interpreter with this one's packages but without Tidemark; it reports these packages as other versions."""
    venv.create(folder, symlinks=True)
    (own,) = folder.glob("lib/python*/site-packages")
    # Such a file's folders are added, but not their own .pth files, one of which would lead to Tidemark.
    (own / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for name, number in versions.items():
        (own / f"{name}-{number}.dist-info").mkdir()
        (own / f"{name}-{number}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {number}\n")
    return folder / "bin" / Path(sys.executable).name


@contextmanager
def _daemon(name: str, main: str, words: tuple[str, ...], folder: Path, variables: dict[str, str]) -> Iterator[_Daemon]:
    folder.mkdir(exist_ok=True)
    log = folder / f"{name}.log"
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    # Spark's launcher ends with `exec`, so the stopped process is the JVM.
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(spark_class), f"org.apache.spark.deploy.{main}", *words],
            stdout=out,
            stderr=out,
            env={**_environment(), **variables},
        )
    try:
        yield _Daemon(process, log)
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE_SECONDS)


def _environment() -> dict[str, str]:
    """Without this process's session: its JVM options and code folders are the driver's."""
    ours = ("SPARK_", "PYSPARK_", "TIDEMARK_", "AWS_", "PYTHONPATH")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
