"""A lake with a catalog over HTTP and a ledger in its own database: table by table, or all tables at once."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.drill.sandbox import scratch
from resources.failpoints import Failpoint
from resources.publishing import Promise, promise_of
from tests.support.builders import events_on
from tests.support.points import die, once
from tests.support.reference import require_known
from tests.support.rest_catalog import TRANSACTIONS, a_rest_catalog

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)


def test_a_lake_in_a_rest_catalog(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a catalog with the REST protocol alone; a day is loaded twice.
    Outcome: as in a database, table by table. A drill is refused, because its tables would be the lake's; so is an
    empty catalog of the same warehouse: a catalog that lists no places is asked for a table's."""
    with a_rest_catalog(tmp_path / "rest") as (url, asked):
        p = pipeline(catalog_url=url, ledger_url=f"sqlite:///{tmp_path}/ledger.db")
        assert promise_of(p.settings) is Promise.TABLE_BY_TABLE
        p.deliver(DAY, events_on(DAY, 10))
        p.must_load(DAY)
        assert p.count("refined/events", DAY) == 10
        assert any(request == "POST /v1/namespaces/refined/tables/events" for request in asked)
        snapshots = p.snapshots()
        p.must_load(DAY)
        assert p.snapshots() == snapshots
        assert p.verdict("refined/events", DAY) == "unchanged"
        with (
            pytest.raises(UsageError, match="a drill's tables would be those of the deployment"),
            scratch(p.spark, p.settings, "10001", DAY),
        ):
            pass
        with a_rest_catalog(tmp_path / "other") as (other, _):
            urls = {name: getattr(p.settings, name) for name in ("warehouse_url", "ledger_url", "landing_url")}
            lost = pipeline(catalog_url=other, **urls).load(DAY)
            assert "does not know, and nothing was touched" in lost.failure()
        p.ledger.close()


def test_a_load_that_dies_between_catalog_and_ledger_is_found_by_the_next(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a server with transactions; a load ends between the server's commit and the ledger's. Outcome: each
    publish is one request; readers see tables that agree; the next load records them under the first run, once."""
    with a_rest_catalog(tmp_path / "rest") as (url, asked):
        p = pipeline(catalog_url=url, ledger_url=f"sqlite:///{tmp_path}/ledger.db", catalog_transactions=True)
        assert promise_of(p.settings) is Promise.TABLES_TOGETHER
        p.deliver(DAY, events_on(DAY, 10))
        p.must_run(DAY)
        assert asked.count(f"POST {TRANSACTIONS}") == 1
        require_known(p)

        p.deliver(DAY, events_on(DAY, 5, prefix="late"), shard=2)
        before = [record.number for record in p.ledger.publications()]
        with once(Failpoint.AFTER_COMMIT, die):
            died = p.run(DAY)
        assert "it dies here" in died.failure()
        reader = RestCatalog("lake", uri=url)
        assert reader.load_table("refined.events").scan().count() == 15
        counted = reader.load_table("aggregates.event_counts").scan().to_arrow()
        assert sum(counted["events"].to_pylist()) == 15
        assert [record.number for record in p.ledger.publications()] == before

        p.must_run(DAY)
        require_known(p)
        assert p.count("refined/events", DAY) == 15
        added = [record for record in p.ledger.publications() if record.number not in before]
        assert {record.run_id for record in added} == {died.run_id}
        assert {record.table for record in added} >= {"raw/regular_events", "refined/events", "aggregates/event_counts"}
        assert p.verdict("refined/events", DAY) == "unchanged"
        p.ledger.close()
