"""A load on a Spark cluster whose workers have no Tidemark and no shared disk, and which loses parts of itself."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.settings import Settings, ShippedCode
from pipeline_assets.drill.sandbox import as_environment
from resources.failpoints import SIGNAL_FILE_VARIABLE, VARIABLE, Failpoint
from resources.landing.store import LandingStore
from resources.spark.session import configure_catalog
from tests.support.builders import a_body, events_on
from tests.support.canaries import Canary, Watched, canaries, found_below, watched_command_lines
from tests.support.canary_deployment import SECRETS, databases
from tests.support.ports import a_free_port
from tests.support.postgres import a_postgres
from tests.support.s3 import BUCKET
from tests.support.small_spark import FIRST_COMPILER, small_config
from tests.support.spark_cluster import Cluster, a_cluster, a_python

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
EVENTS = 10
SHARDS = 5
_NOISE_BYTES = 20_000
"""Random bytes of an event: together the objects exceed one Spark task."""
_PATIENCE_SECONDS = 240
_MARK = b"tidemark-worker "
SHOWN_NOWHERE = ("TIDEMARK_CATALOG_URL", "TIDEMARK_SPARK_CONFIG", "AWS_SECRET_ACCESS_KEY")
ON_DEMAND = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
}
"""Executors come and go with the work; a standalone cluster needs no other service for it."""


@dataclass
class _Deployment:
    """A driver beside a cluster: settings, environment and output."""

    settings: Settings
    cluster: Cluster
    folder: Path
    python: Path
    """The workers' Python."""
    aws: dict[str, str]
    header: Canary
    """Sent to the catalog; a database does not ask for it."""
    page: int = field(default_factory=a_free_port)
    """Port of the driver's own pages."""

    @property
    def paused(self) -> Path:
        """Exists while a worker waits in the middle of reading an object."""
        return self.folder / "paused"

    @contextmanager
    def load(
        self, name: str, python: Path, shipped: ShippedCode = ShippedCode.ARCHIVE, **config: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """`tidemark load` of the day; its output goes to a file of this name."""
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
                [*command, "--from", str(DAY), "--to", str(DAY)], env=environment, stdout=out, stderr=err
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def _config(self) -> dict[str, str]:
        """A small engine with full logging and one executor at a time."""
        (self.folder / "events").mkdir(exist_ok=True)
        return {
            **small_config(FIRST_COMPILER),
            "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": f"-XX:+UseSerialGC {FIRST_COMPILER}",
            "spark.cores.max": "1",
            f"spark.sql.catalog.{self.settings.catalog_name}.header.Authorization": f"Bearer {self.header.value}",
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self.page),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{self.folder}/events",
        }

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text("utf-8", "replace")

    @property
    def armed(self) -> dict[str, str]:
        """Lets a worker wait in the middle of reading the last object."""
        point = f"{Failpoint.MID_PARSE}:10001/10001_{DAY}_10#{SHARDS}.json.gz"
        return {f"spark.executorEnv.{VARIABLE}": point, f"spark.executorEnv.{SIGNAL_FILE_VARIABLE}": str(self.paused)}

    def load_while(
        self, name: str, happens: Callable[[], None], python: Path | None = None, **config: str
    ) -> list[dict[str, Any]]:
        """The load's lines; `happens` runs in the middle of reading the last object. A second reader of it goes on."""
        with self.load(name, python or self.python, **self.armed, **config) as process:
            _until(lambda: self.paused.exists() or process.poll() is not None, "a worker waits")
            assert process.poll() is None, self.said(name)
            happens()

            def is_ended() -> bool:
                self.paused.unlink(missing_ok=True)
                return process.poll() is not None

            _until(is_ended, "the load ends")
        assert process.returncode == 0, self.said(name)
        lines: list[dict[str, Any]] = json.loads((self.folder / f"{name}.out").read_text())
        return lines

    def keep_pages(self) -> None:
        written = self.folder / "pages"
        written.mkdir(exist_ok=True)
        base = f"http://127.0.0.1:{self.page}"
        others = [f"{base}/{page}/" for page in ("environment", "executors", "jobs", "stages", "SQL")]
        assert self.cluster.keep_pages(written, *others) == len(self.cluster.pages) + len(others)

    def wait_for_a_refusal(self) -> None:
        """Until the Python of a second executor has compared itself."""
        logs = self.cluster.folder.glob
        _until(lambda: any(_MARK in log.read_bytes() for log in logs("work/*/app-*/1/stderr")), "a refusal")

    def wait_for_another_executor(self) -> None:
        """Tasks queued behind the waiting one make Spark ask for another executor."""
        _until(lambda: len(self.cluster.executors()) > 1, "another executor")


def _until(is_so: Callable[[], bool], hoped: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not within {_PATIENCE_SECONDS} s: {hoped}"
        time.sleep(0.1)


@dataclass(frozen=True)
class _World:
    d: _Deployment
    pipeline: Any
    secrets: Mapping[str, Canary]
    watched: Watched


@contextmanager
def _a_world(pipeline: Any, bucket: Any, tmp_path: Path) -> Iterator[_World]:
    """Two workers of a core with the packages and without Tidemark; one day has arrived."""
    secrets = {name: one for name, one in canaries(SECRETS).items() if name in SHOWN_NOWHERE}
    keys = {"AWS_ACCESS_KEY_ID": "AKIAOFTHETEST", "AWS_SECRET_ACCESS_KEY": secrets["AWS_SECRET_ACCESS_KEY"].value}
    # Workers have their own credentials; the driver sends them the store's address.
    place = {"AWS_ENDPOINT_URL_S3": os.environ["AWS_ENDPOINT_URL_S3"], "AWS_REGION": "us-east-1"}
    for shard in range(1, SHARDS + 1):
        key = f"exports/10001/10001_{DAY}_10#{shard}.json.gz"
        events = events_on(DAY, EVENTS, prefix=f"s{shard}")
        for event in events:
            event["event_properties"] = event["event_properties"] | {"noise": os.urandom(_NOISE_BYTES).hex()}
        bucket.put_object(Key=key, Body=a_body(events))
    written = tmp_path / "written"
    written.mkdir()
    with a_postgres("superuser") as server:
        url = databases(server, canaries(SECRETS))["tidemark"]
        p = pipeline(landing_url=f"s3://{BUCKET}/exports", warehouse_url=f"s3://{BUCKET}/warehouse", catalog_url=url)
        with watched_command_lines(secrets) as watched, a_cluster(written / "cluster", 1, 1, **keys) as cluster:
            python = a_python(tmp_path / "bare")
            header = secrets["TIDEMARK_SPARK_CONFIG"]
            yield _World(_Deployment(p.settings, cluster, written, python, keys | place, header), p, secrets, watched)


@pytest.mark.parametrize("lost", ["worker", "executor"])
def test_a_cluster_is_sent_the_code_loses_a_part_and_tells_no_secret(
    pipeline: Any, bucket: Any, tmp_path: Path, is_full: bool, lost: str
) -> None:
    """Scenario: bucket, PostgreSQL, each secret a canary; the reading worker (or, in full, its executor) is lost.
    Outcome: every row is published once by this driver's code. No log, command line, page or folder holds a canary."""
    if lost != "worker" and not is_full:
        pytest.skip("in full: make lost-workers")
    with _a_world(pipeline, bucket, tmp_path) as world:

        def happens() -> None:
            world.d.keep_pages()
            world.d.cluster.lose(is_machine=lost == "worker")

        _require_published(world.d.load_while("load", happens))
        _require_replacement(world)
        _require_no_secret(world)
        _require_nothing_to_change(world)


def test_executors_come_when_there_is_work_for_them(pipeline: Any, bucket: Any, tmp_path: Path, is_full: bool) -> None:
    """Scenario: the only executor waits while reading. Outcome: another comes, gets the code, the day is published."""
    if not is_full:
        pytest.skip("in full: make lost-workers")
    with _a_world(pipeline, bucket, tmp_path) as world:
        _require_published(world.d.load_while("load", world.d.wait_for_another_executor, **ON_DEMAND))
        _require_replacement(world)
        _require_nothing_to_change(world)


def test_workers_that_cannot_run_tasks_are_named_first(
    pipeline: Any, bucket: Any, tmp_path: Path, is_full: bool
) -> None:
    """Outcome: workers with another msgspec, without Python or without Tidemark are named before anything is read."""
    if not is_full:
        pytest.skip("in full: make lost-workers")
    other, nowhere = a_python(tmp_path / "other", msgspec="0.1.0"), Path("/nowhere/bin/python")
    here = f"{version('msgspec')} here"
    with _a_world(pipeline, bucket, tmp_path) as world:
        for name, python, shipped, said in (
            ("other", other, ShippedCode.ARCHIVE, f"worker {socket.gethostname()}: msgspec is 0.1.0 there and {here}"),
            (
                "nowhere",
                nowhere,
                ShippedCode.ARCHIVE,
                f'worker 127.0.0.1: its Python does not start: Cannot run program "{nowhere}"',
            ),
            (
                "bare",
                world.d.python,
                ShippedCode.INSTALLED,
                "worker 127.0.0.1: its Python does not start: No module named 'resources'",
            ),
        ):
            with world.d.load(name, python, shipped) as refused:
                assert refused.wait(180) == 1, world.d.said(name)
            assert said in world.d.said(name)
        assert not list(bucket.objects.filter(Prefix="warehouse/raw"))


def test_an_unfit_worker_beside_a_fit_one_runs_no_task(
    pipeline: Any, bucket: Any, tmp_path: Path, is_full: bool
) -> None:
    """Scenario: one of two workers has another msgspec: from the start, in mid-load, and with exclusion of failing
    executors. Outcome: it is named before reading; it ends the load; the fit one publishes the day alone."""
    if not is_full:
        pytest.skip("in full: make lost-workers")
    other, mixed = a_python(tmp_path / "other", msgspec="0.1.0"), tmp_path / "mixed"
    said = f"worker {socket.gethostname()}: msgspec is 0.1.0 there and {version('msgspec')} here"
    with _a_world(pipeline, bucket, tmp_path) as world:
        # An executor's folder is named by its number.
        mixed.write_text(f'#!/bin/sh\ncase "$PWD" in */0) exec {world.d.python} "$@";; esac\nexec {other} "$@"\n')
        mixed.chmod(0o755)
        patient = {"spark.cores.max": "2", "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s"}
        with world.d.load("beside", mixed, **patient) as refused:
            assert refused.wait(180) == 1, world.d.said("beside")
        assert said in world.d.said("beside")
        assert "nothing was read or written" in world.d.said("beside")
        assert not list(bucket.objects.filter(Prefix="warehouse/raw"))
        with world.d.load("later", mixed, **world.d.armed, **ON_DEMAND) as ended:
            assert ended.wait(180) == 1, world.d.said("later")
        assert world.d.paused.exists()
        assert said in world.d.said("later")
        assert "nothing was" not in world.d.said("later")
        for ended_before in world.d.cluster.folder.glob("work/*/app-*"):
            shutil.rmtree(ended_before, ignore_errors=True)
        world.d.paused.unlink()
        excluding = ON_DEMAND | {"spark.excludeOnFailure.enabled": "true"}
        _require_published(world.d.load_while("excluded", world.d.wait_for_a_refusal, mixed, **excluding))


def _require_published(lines: list[dict[str, Any]]) -> None:
    assert {line["verdict"] for line in lines} == {"published"}
    assert {line["rows"] for line in lines if line["table"] == "refined/events"} == {EVENTS * SHARDS}


def _require_replacement(world: _World) -> None:
    """Several executors ran, and each was sent jars and code."""
    sent = list(world.d.cluster.folder.glob("work/*/app-*/*/tidemark-*.zip"))
    assert len(sent) >= 2
    assert len({archive.name for archive in sent}) == 1
    for archive in sent:
        assert list(archive.parent.glob("iceberg-spark-runtime-*.jar"))


def _require_no_secret(world: _World) -> None:
    written = world.d.folder
    finds, count = found_below(written, world.secrets)
    assert [str(find) for find in (*finds, *world.watched.finds)] == []
    kinds = ("cluster/*.log", "cluster/*/*/app-*/*/stderr", "events/*/events_*", "pages/page-*", "*.err")
    assert all(list(written.glob(kind)) for kind in kinds)
    assert any(b"CoarseGrainedExecutorBackend" in page.read_bytes() for page in written.glob("pages/page-*"))
    assert count > 20


def _require_nothing_to_change(world: _World) -> None:
    p = world.pipeline
    p.resources["landing"] = LandingStore.from_settings(p.settings, S3Resource())
    assert p.run(DAY).success
    assert p.verdict("refined/events", DAY) == "unchanged"
    # A load that changes nothing starts no engine.
    configure_catalog(p.spark, p.settings)
    assert p.count("refined/events", DAY) == EVENTS * SHARDS
