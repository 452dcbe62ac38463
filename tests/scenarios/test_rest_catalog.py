"""A lake whose catalog is asked over HTTP: table by table, with the ledger in a database of its own."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.drill.sandbox import scratch
from resources.publishing.promise import Promise, promise_of
from tests.support.builders import events_on
from tests.support.rest_catalog import a_rest_catalog

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)


def test_a_lake_in_a_rest_catalog(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a catalog that knows the REST protocol alone; a day is loaded, loaded again, corrected and rolled back.

    Outcome: as in a database, table by table; PyIceberg reads what was published over the same protocol; a drill, whose tables
    would be the lake's own, is refused.
    """
    with a_rest_catalog(tmp_path / "rest") as (url, asked):
        p = pipeline(catalog_url=url, ledger_url=f"sqlite:///{tmp_path}/ledger.db")
        assert promise_of(p.settings) is Promise.TABLE_BY_TABLE
        p.deliver(DAY, events_on(DAY, 10))
        run = p.load(DAY)
        assert run.success, run.failure()
        assert p.count("refined/events", DAY) == 10
        assert any(request == "POST /v1/namespaces/refined/tables/events" for request in asked)
        snapshots = p.snapshots()
        assert p.load(DAY).success
        assert p.snapshots() == snapshots
        assert p.verdict("refined/events", DAY) == "unchanged"
        p.deliver(DAY, events_on(DAY, 5, prefix="late"), shard=2)
        assert p.load(DAY).success
        reader = RestCatalog("lake", uri=url)
        assert reader.load_table("refined.events").scan().count() == 15
        with (
            pytest.raises(UsageError, match="a drill's tables would be those of the deployment"),
            scratch(p.spark, p.settings, "10001", DAY),
        ):
            pass
        p.ledger.close()
