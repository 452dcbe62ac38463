"""The same code on S3 and PostgreSQL: only values change."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.settings import PROJECT_ROOT
from resources.landing_store import LandingStore
from tests.builders import a_body, events_on

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


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a private PostgreSQL cluster, run by an ordinary user because initdb refuses root."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed: on Debian, apt-get install postgresql")
    tools = found[-1].parent
    folder = Path("/tmp") / f"tidemark-pg-{os.getpid()}"
    folder.mkdir()
    as_user = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def run(*words: str) -> None:
        subprocess.run([*as_user, *words], check=True, capture_output=True, cwd="/")

    run(str(tools / "initdb"), "-D", f"{folder}/db", "-U", "tidemark", "-A", "trust", "-E", "UTF8")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    run(str(tools / "pg_ctl"), "-w", "-D", f"{folder}/db", "-o", options, "-l", f"{folder}/log", "start")
    try:
        yield f"postgresql://tidemark@127.0.0.1:{port}/postgres"
    finally:
        run(str(tools / "pg_ctl"), "-w", "-D", f"{folder}/db", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


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
