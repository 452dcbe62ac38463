"""The same code on S3, on PostgreSQL and on a Spark cluster: only values change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.drill.sandbox import as_environment
from resources.landing.store import LandingStore
from tests.support.builders import a_body, events_on
from tests.support.small_spark import FIRST_COMPILER, small_config
from tests.support.spark_cluster import a_cluster

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file with every request to the S3 server, one JSON object a line."""
    from moto.moto_api import recorder

    monkeypatch.setattr(recorder, "_location", str(tmp_path / "requests"))
    recorder.start_recording()
    yield tmp_path / "requests"
    recorder.stop_recording()


def rights_used(file: Path, prefix: str) -> set[str]:
    """The rights that the recorded requests below a prefix of the bucket need (Amazon S3 API reference)."""
    found = set()
    for line in file.read_text().splitlines():
        request = json.loads(line)
        url = urllib.parse.urlsplit(request["url"])
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        key = url.path.removeprefix("/tidemark-test").lstrip("/")
        if key.startswith(prefix):
            of_method = {
                "GET": "GetObject",
                "HEAD": "GetObject",
                "PUT": "PutObject",
                "POST": "PutObject",
                "DELETE": "DeleteObject",
            }
            found.add(f"s3:{of_method.get(request['method'], 'GetObject')}")
        elif not key and "delete" in query:
            found.add("s3:DeleteObject")
        elif not key and query.get("prefix", [""])[0].startswith(prefix):
            found.add("s3:ListBucket")
    return found


def rights_of_the_policy() -> tuple[set[str], set[str]]:
    """What `docs/deployment.md` grants on landing and on the warehouse."""
    text = (PROJECT_ROOT / "docs" / "deployment.md").read_text()
    policy = json.loads(text.split("```json")[1].split("```")[0])
    granted = {one["Sid"]: set(one["Action"]) for one in policy["Statement"]}
    landing, warehouse = ("ListLanding", "ReadLanding"), ("ListWarehouse", "WriteWarehouse")
    return set.union(*(granted[name] for name in landing)), set.union(*(granted[name] for name in warehouse))


def test_landing_and_warehouse_on_s3(pipeline: Any, bucket: Any, requests: Path) -> None:
    """Scenario: exports lie in a bucket, tables go to the same bucket. Outcome: as on a disk, and again unchanged; the documented
    rights are those that were used."""
    p = pipeline(landing_url="s3://tidemark-test/exports", warehouse_url="s3://tidemark-test/warehouse")
    # Given to the resource, because the workers of this session started before the server did.
    s3 = S3Resource(endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
    p.resources["landing"] = LandingStore.from_settings(p.settings, s3)
    for shard in (1, 2):
        key = f"exports/10001/10001_{DAY}_10#{shard}.json.gz"
        bucket.put_object(Key=key, Body=a_body(events_on(DAY, 10, prefix=f"s{shard}")))
    requests.unlink()
    run = p.load(DAY)
    assert run.success, run.failure()
    assert p.count("refined/events", DAY) == 20
    landing, warehouse = rights_of_the_policy()
    assert rights_used(requests, "exports") == landing
    assert {"s3:GetObject", "s3:PutObject"} <= rights_used(requests, "warehouse") <= warehouse
    snapshots = p.snapshots()
    assert p.load(DAY).success
    assert p.snapshots() == snapshots
    assert any(item.key.startswith("warehouse/refined/events/data/") for item in bucket.objects.all())


def test_catalog_and_ledger_on_postgresql(pipeline: Any, postgres: str) -> None:
    """Scenario: catalog and ledger in PostgreSQL. Outcome: as on SQLite, and again unchanged."""
    p = pipeline(catalog_url=postgres)
    p.deliver(DAY, events_on(DAY, 10))
    run = p.load(DAY)
    assert run.success, run.failure()
    assert p.count("refined/events", DAY) == 10
    assert p.ledger.engine.dialect.name == "postgresql"
    snapshots = p.snapshots()
    assert p.load(DAY).success
    assert p.snapshots() == snapshots
    assert p.verdict("refined/events", DAY) == "unchanged"


def test_engine_on_a_cluster(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a standalone master with a worker; the settings name nothing but the master and memory. Outcome: executors
    there read, parse and write, with the jars brought by the session; a load on one machine finds nothing to change."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 10))
    p.deliver(DAY, events_on(DAY, 10, prefix="again"), shard=2)
    with a_cluster(tmp_path / "cluster") as master:
        loaded = _on_cluster(p.settings, master, tmp_path)
    assert {line["verdict"] for line in loaded} == {"published"}
    assert {line["rows"] for line in loaded if line["table"] == "refined/events"} == {20}
    # An executor fetches what it is to run with into a folder of its own, with its first task.
    assert list((tmp_path / "cluster" / "work").glob("app-*/*/iceberg-spark-runtime-*.jar"))
    assert p.load(DAY).success
    assert p.verdict("refined/events", DAY) == "unchanged"


def _on_cluster(settings: Settings, master: str, folder: Path) -> list[dict[str, Any]]:
    """`tidemark load` of the day, with the jars brought to the session as in production."""
    home = folder / "dagster_home"
    home.mkdir(exist_ok=True)
    small = small_config(FIRST_COMPILER)
    config = {
        **small,
        "spark.executor.memory": "768m",
        "spark.executor.extraJavaOptions": f"-XX:+UseSerialGC {FIRST_COMPILER}",
    }
    changes = {"spark_master": master, "spark_driver_memory": "1g", "spark_config": config}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    environment = {**inherited, **as_environment(settings.model_copy(update=changes)), "DAGSTER_HOME": str(home)}
    command = [str(Path(sys.executable).parent / "tidemark"), "load", "--source", "regular", "--json"]
    done = subprocess.run(
        [*command, "--from", str(DAY), "--to", str(DAY)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = json.loads(done.stdout)
    return lines
