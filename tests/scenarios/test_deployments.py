"""The same code on S3 and on PostgreSQL: only values change. On a Spark cluster: test_cluster.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster_aws.s3 import S3Resource
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.maintenance import maintain, require_done
from resources import failpoints
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from tests.scenarios.test_unchanged import NoSpark
from tests.support.builders import a_body, an_orphan_below, events_on
from tests.support.policies import database_of, policy, recorded_requests, refused, unneeded
from tests.support.postgres import a_postgres
from tests.support.reference import require_known
from tests.support.s3 import BUCKET

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)


def test_landing_and_warehouse_on_s3(pipeline: Any, bucket: Any, tmp_path: Path) -> None:
    """Scenario: exports and tables in a bucket are loaded, read and maintained.
    Outcome: as on a disk; the old unknown object goes. Each policy allows its own work alone."""
    p = pipeline(landing_url="s3://tidemark-test/exports", warehouse_url="s3://tidemark-test/warehouse")
    # Set on the resource, because this session's workers started before the server.
    s3 = S3Resource(endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
    p.resources["landing"] = LandingStore.from_settings(p.settings, s3)
    for shard in (1, 2):
        key = f"exports/10001/10001_{DAY}_10#{shard}.json.gz"
        bucket.put_object(Key=key, Body=a_body(events_on(DAY, 10, prefix=f"s{shard}")))
    with recorded_requests(tmp_path) as requests:
        run = p.run(DAY)
        assert run.success, run.failure()
        loaded = requests.rights()
        requests.forget()
        assert p.count("refined/events", DAY) == 20
        read = requests.rights()
    snapshots = p.snapshots()
    assert p.run(DAY).success
    assert p.snapshots() == snapshots
    assert any(item.key.startswith("warehouse/refined/events/data/") for item in bucket.objects.all())
    place = "warehouse/refined/events"
    old, young = (str(an_orphan_below(tmp_path / place).relative_to(tmp_path)) for _ in range(2))
    for key in (old, young, f"{place}/README.md"):
        bucket.put_object(Key=key, Body=b"x")
    _grow_old(lambda key: key != young)
    runtime = Runtime(p.lakehouse, p.ledger, p.resources["landing"], p.settings)
    later = datetime.now(UTC) + timedelta(days=40)
    with recorded_requests(tmp_path) as requests:
        requests.forget()
        reports = {
            report.table: report for report in maintain(runtime, "run", later, lambda _: False, is_dry_run=False)
        }
        maintained = requests.rights()
    require_done(list(reports.values()))
    assert reports["refined/events"].orphans == (f"s3://tidemark-test/{old}",)
    assert reports["refined/events"].others == (f"s3://tidemark-test/{place}/README.md",)
    left = {item.key for item in bucket.objects.all()}
    assert {young, f"{place}/README.md"} <= left
    assert old not in left
    assert p.count("refined/events") == 20

    load, inspect = policy("s3-load"), policy("s3-inspect")
    assert refused(load, loaded | maintained) == []
    assert unneeded(load, loaded | maintained) == []
    assert refused(inspect, read) == []
    assert any(one.action == "s3:DeleteObject" for one in maintained)
    # The policies to inspect and to recover do not allow a load.
    for other in ("s3-inspect", "s3-recover"):
        assert any("s3:PutObject" in one for one in refused(policy(other), loaded))


def _grow_old(is_old: Callable[[str], bool]) -> None:
    for key in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET].keys.values():
        if is_old(key.name):
            key.last_modified = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=40)


def test_catalog_and_ledger_on_postgresql(pipeline: Any) -> None:
    """Scenario: catalog and ledger in PostgreSQL, by the policy's role; a load hangs in its publish.
    Outcome: as on SQLite; the server ends the publish, another writer goes on, the load publishes all or nothing."""
    with a_postgres("superuser") as server:
        url = database_of(server, "tidemark", "tidemark")["tidemark"]
        p = pipeline(catalog_url=f"{url}?options=-cidle_in_transaction_session_timeout%3D1s")
        p.deliver(DAY, events_on(DAY, 10))
        run = p.run(DAY)
        assert run.success, run.failure()
        assert p.count("refined/events", DAY) == 10
        assert p.ledger.engine.dialect.name == "postgresql"
        snapshots = p.snapshots()
        p.resources = {"spark": NoSpark(spark_config={})}
        assert p.run(DAY).success
        p.resources = {}
        assert p.snapshots() == snapshots
        assert p.verdict("refined/events", DAY) == "unchanged"

        waited: list[int] = []

        def stand_still(point: Failpoint, _: str) -> None:
            if point is Failpoint.IN_TRANSACTION and not waited:
                with closing(Ledger(p.settings.ledger_database_url)) as other, other.transaction():
                    waited.append(p.count("refined/events", DAY))

        p.deliver(DAY, events_on(DAY, 5, prefix="late"), hour=3)
        failpoints.watch(stand_still)
        try:
            run = p.run(DAY)
        finally:
            failpoints.watch()
        assert waited == [10]
        assert run.success, run.failure()
        assert p.count("refined/events", DAY) == 15
        assert p.run(DAY).success
        require_known(p)
        p.ledger.close()
