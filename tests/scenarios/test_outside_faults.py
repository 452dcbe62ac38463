"""Landing, disk and databases fail: a load succeeds by bounded retries, or says so, changes nothing and converges later."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster_aws.s3 import S3Resource

from resources import failpoints
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from tests.support.builders import Pipeline, a_body, events_on
from tests.support.faulty_proxy import Fault, Faults, a_faulty_proxy
from tests.support.faulty_wire import Cut, Moment, a_faulty_wire
from tests.support.postgres import a_postgres

pytestmark = pytest.mark.slow
DAY, NEXT = date(2026, 2, 2), date(2026, 2, 3)
REFINED = "refined/events"
OBJECTS = 4


@pytest.fixture(autouse=True)
def _nobody_watches() -> Iterator[None]:
    yield
    failpoints.watch()


def _in_bucket(pipeline: Callable[..., Pipeline], bucket: Any, url: str) -> Pipeline:
    p = pipeline(landing_url="s3://tidemark-test/exports")
    _put(bucket, DAY)
    p.resources["landing"] = LandingStore.from_settings(p.settings, S3Resource(endpoint_url=url))
    return p


def _put(bucket: Any, day: date) -> None:
    for shard in range(OBJECTS):
        key = f"exports/10001/10001_{day}_10#{shard}.json.gz"
        bucket.put_object(Key=key, Body=a_body(events_on(day, 10, prefix=f"s{shard}")))


FAULTS: dict[str, Callable[[str, str, int], Fault | None]] = {
    "every first answer is an error": lambda method, path, turn: Fault.SERVER_ERROR if turn == 0 else None,
    "throttled twice": lambda method, path, turn: Fault.THROTTLED if turn < 2 else None,
    "slow": lambda method, path, turn: Fault.SLOW if turn == 0 else None,
    "cut in the middle": lambda method, path, turn: Fault.RESET if turn == 0 and ".json.gz" in path else None,
}


def test_landing_that_fails_for_a_while(pipeline: Any, bucket: Any) -> None:
    """Scenario: requests fail, are throttled, late or cut, then succeed. Outcome: retries load every row once."""
    faults = Faults(lambda *_: None)
    with a_faulty_proxy(os.environ["AWS_ENDPOINT_URL_S3"], faults) as url:
        p = _in_bucket(pipeline, bucket, url)
        for shift, (what, choose) in enumerate(FAULTS.items()):
            day, met = DAY + timedelta(days=shift), faults.met.total()
            _put(bucket, day)
            faults.choose = choose
            run = p.run(day)
            assert run.success, (what, run.failure())
            assert faults.met.total() > met, what
            assert p.count("raw/regular_events", day) == p.count(REFINED, day) == OBJECTS * 10
    assert p.rows("raw/quarantine") == []


def test_landing_that_fails_beyond_the_retries(pipeline: Any, bucket: Any) -> None:
    """Outcome: the load names the object and the cure, publishes nothing; the next load takes everything."""
    faults = Faults(lambda _, path, __: Fault.SERVER_ERROR if "%232.json.gz" in path or "#2.json.gz" in path else None)
    with a_faulty_proxy(os.environ["AWS_ENDPOINT_URL_S3"], faults) as url:
        p = _in_bucket(pipeline, bucket, url)
        run = p.run(DAY)
        assert not run.success
        assert "10001_2026-02-02_10#2.json.gz: landing is out of reach" in run.failure()
        assert run.failure().endswith("The next run tries again")
        assert p.count("raw/regular_events") == p.count(REFINED) == 0
        assert p.rows("raw/quarantine") == []
        faults.choose = lambda *_: None
        healed = p.run(DAY)
    assert healed.success, healed.failure()
    assert p.count(REFINED) == OBJECTS * 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("needs the right to mount a small file system: run the tests as root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk(pipeline: Any, small_disk: Path) -> None:
    """Scenario: the disk is full in mid-staging. Outcome: the old state stays visible; the next load publishes."""
    p = pipeline(warehouse_url=str(small_disk / "warehouse"))
    p.deliver(DAY, events_on(DAY, 20))
    assert p.load(DAY).success
    before, history = p.digests(), p.history()
    p.deliver(NEXT, [{**event, "user_properties": {"n": os.urandom(2000).hex()}} for event in events_on(NEXT, 1500)])

    run = p.load(DAY, NEXT)

    assert not run.success
    assert "No space left on device" in run.failure()
    assert "Make room for the warehouse" in run.failure()
    assert (p.digests(), p.history()) == (before, history)
    assert p.count(REFINED) == 20
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    healed = p.load(DAY, NEXT)
    assert healed.success, healed.failure()
    assert p.count(REFINED) == 1520


def _once_at(point: Failpoint, table: str, do: Callable[[], None]) -> None:
    passed: list[str] = []

    def watcher(met: Failpoint, qualifier: str) -> None:
        if met is point and qualifier in (table, "") and not passed:
            passed.append(qualifier)
            do()

    failpoints.watch(watcher)


def test_a_locked_database_is_waited_for(pipeline: Any) -> None:
    """Scenario: another process holds SQLite's lock at a commit and at a record. Outcome: each load waits and succeeds."""
    p = pipeline()
    held: list[Failpoint] = []
    for shift, point in enumerate((Failpoint.BEFORE_PUBLISH, Failpoint.AFTER_APPLY)):
        day, is_held = DAY + timedelta(days=shift), threading.Event()
        p.deliver(day, events_on(day, 20))

        def hold(point: Failpoint = point, is_held: threading.Event = is_held) -> None:
            path = p.settings.catalog_url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                is_held.set()
                time.sleep(4)
                connection.execute("ROLLBACK")
            held.append(point)

        thread = threading.Thread(target=hold)

        def lock(thread: threading.Thread = thread, is_held: threading.Event = is_held) -> None:
            thread.start()
            is_held.wait()

        _once_at(point, REFINED, lock)
        run = p.load(day)
        thread.join()
        assert held[-1] is point
        assert run.success, run.failure()
        assert p.count(REFINED, day) == 20


def test_postgresql_restarts_during_a_publish(pipeline: Any) -> None:
    """Scenario: the database restarts at one point of a load after the other.
    Outcome: each load succeeds, or fails with nothing half done; a later one converges, and publishes nothing twice."""
    with a_postgres() as server:
        p = pipeline(catalog_url=server.url)

        def restart() -> None:
            server.stop()
            threading.Timer(2.0, server.start).start()

        for shift, point in enumerate((Failpoint.AFTER_STAGE, Failpoint.AFTER_APPLY, Failpoint.IN_TRANSACTION)):
            day = DAY + timedelta(days=shift)
            p.deliver(day, events_on(day, 20))
            _once_at(point, REFINED, restart)
            run = p.load(day)
            failpoints.watch()
            if not run.success:
                assert "out of reach" in run.failure(), point
            later = p.load(day)
            assert later.success, (point, later.failure())
            assert p.count(REFINED, day) == 20
        published = [(record.table, record.key) for record in p.ledger.publications()]
        assert len(published) == len(set(published))
        p.ledger.close()


def test_the_answer_to_a_commit_is_lost(pipeline: Any) -> None:
    """Outcome: the load looks up the commit's fate and succeeds. (`make faults` has the other faults.)"""
    with a_postgres() as server, a_faulty_wire(server.port) as wire:
        p = pipeline(catalog_url=server.url.replace(f":{server.port}/", f":{wire.port}/"))
        p.deliver(DAY, events_on(DAY, 20))
        wire.cut = Cut(b"COMMIT", Moment.BEFORE_ANSWER, after=b"UPDATE iceberg_tables")
        run = p.load(DAY)
        assert run.success, run.failure()
        assert wire.end() == 1
        assert p.count(REFINED) == 20
        published = [(record.table, record.key) for record in p.ledger.publications()]
        assert len(published) == len(set(published)) > 0
        p.ledger.close()


_ENGINE_DIES = """
import os, signal, sys
from pipeline_assets.cli.run import open_runtime
from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.events import REGULAR_EVENTS
from tests.support.small_spark import SMALL
folder = sys.argv[1]
settings = Settings(landing_url=folder, warehouse_url=folder + "/w", catalog_url=f"sqlite:///{folder}/c.db", projects=("10001",),
                    spark_master="local[1]", spark_driver_memory="1g", spark_config=SMALL)
try:
    with open_runtime(settings, lambda text: None) as runtime:
        runtime.log("raw/regular_events: staging 3 objects of 1 batches")
        os.kill(runtime.spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        runtime.lakehouse.head(REGULAR_EVENTS)
except TidemarkError as error:
    print(type(error).__name__, error)
"""


def test_an_engine_that_dies_is_named_as_that(tmp_path: Path) -> None:
    """Scenario: the JVM is killed. Outcome: one sentence names that, its last words, and the setting to raise."""
    done = subprocess.run(
        [sys.executable, "-c", _ENGINE_DIES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == (
        "EngineError Spark: its JVM died (exit code -9), probably out of memory; the last line it logged: "
        "raw/regular_events: staging 3 objects of 1 batches. Raise TIDEMARK_SPARK_DRIVER_MEMORY (now 1g), then load again; "
        "what was not published yet is not lost"
    ), done.stderr
