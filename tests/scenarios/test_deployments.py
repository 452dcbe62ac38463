"""The same code on S3 and PostgreSQL: only values change."""

from __future__ import annotations

import json
import os
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
