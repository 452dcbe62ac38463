"""A load on a Spark cluster whose workers have neither Tidemark nor a disk in common, and which loses parts of itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.settings import Settings, ShippedCode
from pipeline_assets.drill.sandbox import as_environment
from resources.failpoints import SIGNAL_FILE_VARIABLE, VARIABLE, Failpoint
from resources.landing.store import LandingStore
from tests.support.builders import a_body, events_on
from tests.support.canaries import Canary, Find, canaries, found_below, watched_command_lines
from tests.support.canary_deployment import SECRETS, databases
from tests.support.postgres import a_postgres
from tests.support.s3 import BUCKET
from tests.support.small_spark import FIRST_COMPILER, small_config
from tests.support.spark_cluster import Cluster, a_cluster, a_python

pytestmark = pytest.mark.slow
FIRST = date(2026, 2, 2)
EVENTS = 10
SHARDS = 5
SHOWN_NOWHERE = ("TIDEMARK_CATALOG_URL", "AWS_SECRET_ACCESS_KEY")
ON_DEMAND = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
}
"""Executors come and go with the work; a standalone cluster needs no other service for that."""


@dataclass
class _Deployment:
    """A driver beside a cluster: settings, the environment of its process, and what it leaves behind."""

    settings: Settings
    cluster: Cluster
    folder: Path
    python: Path
    """That workers have."""
    aws: dict[str, str]
    page: int
    """Port of the driver's own pages."""

    @property
    def paused(self) -> Path:
        """There while a worker waits in the middle of reading an object."""
        return self.folder / "paused"

    @contextmanager
    def load(
        self, day: date, name: str, python: Path, shipped: ShippedCode = ShippedCode.ARCHIVE, **config: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """`tidemark load` of a day; what it says goes to a file of this name."""
        home = self.folder / "dagster_home"
        home.mkdir(exist_ok=True)
        changes = {
            "spark_master": self.cluster.url,
            "spark_ship_code": shipped,
            "spark_driver_memory": "1g",
            "spark_config": {**self._config(), **config},
        }
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("TIDEMARK_", "AWS_"))}
        environment = {
            **inherited,
            **self.aws,
            **as_environment(self.settings.model_copy(update=changes)),
            "DAGSTER_HOME": str(home),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        command = [str(Path(sys.executable).parent / "tidemark"), "load", "--source", "regular", "--json"]
        with (
            (self.folder / f"{name}.out").open("wb") as out,
            (self.folder / f"{name}.err").open("wb") as err,
            subprocess.Popen(
                [*command, "--from", str(day), "--to", str(day)], env=environment, stdout=out, stderr=err
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def _config(self) -> dict[str, str]:
        """A small engine that tells of itself all that it may, with one executor at a time."""
        (self.folder / "events").mkdir(exist_ok=True)
        return {
            **small_config(FIRST_COMPILER),
            "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": f"-XX:+UseSerialGC {FIRST_COMPILER}",
            "spark.cores.max": "1",
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self.page),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{self.folder}/events",
        }

    def said(self, name: str) -> str:
        """What a load wrote for people."""
        return (self.folder / f"{name}.err").read_text("utf-8", "replace")

    def load_while(self, day: date, name: str, happens: Callable[[], None], **config: str) -> list[dict[str, Any]]:
        """Its lines; in the middle of reading the last object `happens`. Who reads it again is let go on."""
        point = f"{Failpoint.MID_PARSE}:10001/10001_{day}_10#{SHARDS}.json.gz"
        armed = {
            f"spark.executorEnv.{VARIABLE}": point,
            f"spark.executorEnv.{SIGNAL_FILE_VARIABLE}": str(self.paused),
        }
        with self.load(day, name, self.python, **armed, **config) as process:
            while not self.paused.exists():
                assert process.poll() is None, self.said(name)
                time.sleep(0.05)
            happens()
            while process.poll() is None:
                self.paused.unlink(missing_ok=True)
                time.sleep(0.05)
        assert process.returncode == 0, self.said(name)
        lines: list[dict[str, Any]] = json.loads((self.folder / f"{name}.out").read_text())
        return lines

    def keep_pages(self) -> None:
        """What master, workers and driver show while an executor works."""
        written = self.folder / "pages"
        written.mkdir(exist_ok=True)
        base = f"http://127.0.0.1:{self.page}"
        others = [f"{base}/{page}/" for page in ("environment", "executors", "jobs", "stages", "SQL")]
        assert self.cluster.keep_pages(written, *others) == len(self.cluster.pages) + len(others)

    def wait_for_more_executors(self) -> None:
        """While one waits, the tasks behind it are reason enough to ask for another one."""
        while len(self.cluster.executors()) < 2:
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _deliver(bucket: Any, day: date) -> None:
    for shard in range(1, SHARDS + 1):
        key = f"exports/10001/10001_{day}_10#{shard}.json.gz"
        bucket.put_object(Key=key, Body=a_body(events_on(day, EVENTS, prefix=f"s{shard}")))


def test_a_cluster_is_sent_the_code_loses_parts_and_tells_no_secret(
    pipeline: Any, bucket: Any, tmp_path: Path, is_full: bool
) -> None:
    """Scenario: two workers with the packages and without Tidemark; landing and warehouse in a bucket, the catalog in PostgreSQL,
    each secret a canary. While a day is read the worker that reads is lost with its executor; in full, before that, workers that
    cannot run tasks, an executor lost by itself, and executors that come when there is work for them. Outcome: each unfit worker
    is named before anything is read; each day is published by the code of this driver, every row once; a load on one machine
    finds nothing to change. No canary is in a log, a command line, a page, the log of events or a folder of the workers."""
    secrets = {name: one for name, one in canaries(SECRETS).items() if name in SHOWN_NOWHERE}
    keys = {"AWS_ACCESS_KEY_ID": "AKIAOFTHETEST", "AWS_SECRET_ACCESS_KEY": secrets["AWS_SECRET_ACCESS_KEY"].value}
    # Workers have credentials of their own; where the store is, the driver tells them.
    place = {"AWS_ENDPOINT_URL_S3": os.environ["AWS_ENDPOINT_URL_S3"], "AWS_REGION": "us-east-1"}
    written = tmp_path / "written"
    written.mkdir()
    with a_postgres("superuser") as server:
        url = databases(server, canaries(SECRETS))["tidemark"]
        p = pipeline(landing_url=f"s3://{BUCKET}/exports", warehouse_url=f"s3://{BUCKET}/warehouse", catalog_url=url)
        days = [FIRST + timedelta(days=number) for number in range(3 if is_full else 1)]
        with (
            watched_command_lines(secrets) as watched,
            a_cluster(written / "cluster", 1, 1, **keys) as cluster,
        ):
            d = _Deployment(p.settings, cluster, written, a_python(tmp_path / "bare"), keys | place, _free_port())
            _deliver(bucket, days[0])
            if is_full:
                _unfit_workers(d, a_python(tmp_path / "other", msgspec="0.1.0"))
                assert not list(bucket.objects.filter(Prefix="warehouse/raw"))
                _require_published(d.load_while(days[0], "executor", cluster.lose_executor), days[0])
                _deliver(bucket, days[1])
                _require_published(d.load_while(days[1], "dynamic", d.wait_for_more_executors, **ON_DEMAND), days[1])
                _deliver(bucket, days[2])

            def lose_worker() -> None:
                d.keep_pages()
                cluster.lose_worker()

            _require_published(d.load_while(days[-1], "worker", lose_worker), days[-1])
        _require_no_secret(written, secrets, watched.finds)
        _require_replacements(written / "cluster" / "work", len(days))
        # This session's workers started before the server did.
        p.resources["landing"] = LandingStore.from_settings(p.settings, S3Resource())
        assert p.load(days[0], days[-1]).success
        for day in days:
            assert p.count("refined/events", day) == EVENTS * SHARDS
            assert p.verdict("refined/events", day) == "unchanged"
        p.ledger.close()


def _unfit_workers(d: _Deployment, other: Path) -> None:
    """Each is named, with what differs, and the load ends before it read anything."""
    nowhere = Path("/nowhere/bin/python")
    ours = version("msgspec")
    for name, python, shipped, said in (
        ("other", other, ShippedCode.ARCHIVE, f"worker {socket.gethostname()}: msgspec is 0.1.0 there and {ours} here"),
        ("nowhere", nowhere, ShippedCode.ARCHIVE, f"worker 127.0.0.1: has no program {nowhere}"),
        ("bare", d.python, ShippedCode.INSTALLED, "worker 127.0.0.1: its Python finds no module resources"),
    ):
        with d.load(FIRST, name, python, shipped) as refused:
            assert refused.wait(180) == 1, d.said(name)
        assert said in d.said(name)


def _require_published(lines: list[dict[str, Any]], day: date) -> None:
    of_day = [line for line in lines if line["day"] == str(day)]
    assert {line["verdict"] for line in of_day} == {"published"}
    assert {line["rows"] for line in of_day if line["table"] == "refined/events"} == {EVENTS * SHARDS}


def _require_replacements(work: Path, loads: int) -> None:
    """Every load had more than one executor, and each of these was sent jars and code."""
    executors = Counter(place.parent.parent.name for place in work.glob("*/app-*/*/tidemark-*.zip"))
    assert sum(count >= 2 for count in executors.values()) == loads
    for place in work.glob("*/app-*/*/tidemark-*.zip"):
        assert list(place.parent.glob("iceberg-spark-runtime-*.jar"))


def _require_no_secret(written: Path, secrets: dict[str, Canary], seen: set[Find]) -> None:
    finds, count = found_below(written, secrets)
    assert [str(find) for find in (*finds, *seen)] == []
    kinds = ("cluster/*.log", "cluster/work/*/app-*/*/stderr", "events/*/events_*", "pages/page-*", "*.err")
    assert all(list(written.glob(kind)) for kind in kinds)
    # The page of a worker shows all that its executor is started with.
    assert any(b"CoarseGrainedExecutorBackend" in page.read_bytes() for page in written.glob("pages/page-*"))
    assert count > 20
