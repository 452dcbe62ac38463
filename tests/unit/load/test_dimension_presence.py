"""A lake has the dimensions that are or were delivered to it; the others block nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Digest, Slice, Verdict
from pipeline_assets.inspection.status import dimension_statuses
from pipeline_assets.load.dimensions import list_dimensions, optional_tables
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.tables.dimension import ITEM
from pipeline_assets.tables.registry import OPTIONAL_TABLES
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.dimensions import deliver_items

DAY, NOW = date(2026, 2, 4), datetime(2026, 2, 20, tzinfo=UTC)
NO_LAKEHOUSE: Any = None
"""The needed tables are decided before any is asked for."""


@dataclass
class Deployment:
    landing: Path
    ledger: Ledger
    said: list[str] = field(default_factory=list)

    def tables(self) -> list[str]:
        """Dimension tables that a load of all tables needs."""
        self.said.clear()
        settings = Settings(landing_url=str(self.landing), projects=("10001",), calendar_start=date(2026, 2, 1))
        landing = LandingStore.from_settings(settings)
        runtime = Runtime(NO_LAKEHOUSE, self.ledger, landing, settings, self.said.append)
        every = frozenset(table.key for table in OPTIONAL_TABLES)
        request = LoadRequest((DAY,), ("10001",), every, "run", NOW)
        return [table.key for table in optional_tables(runtime, request, list_dimensions(runtime, request))]

    def has(self, verdict: Verdict, digest: Digest) -> None:
        record = SliceRecord(ITEM.snapshot.key, Slice(DAY, ALL_PROJECTS), verdict, digest=digest)
        self.ledger.record(Changes(slices=[record]), "run")


@pytest.fixture
def p(tmp_path: Path, ledger: Ledger) -> Deployment:
    (tmp_path / "landing").mkdir()
    return Deployment(tmp_path / "landing", ledger)


def test_a_dimension_that_nobody_delivers_gets_no_tables_and_one_that_vanished_keeps_them(p: Deployment) -> None:
    every = [table.key for table in OPTIONAL_TABLES]
    assert p.tables() == []
    nothing = "dimensions/item_snapshot: landing holds no snapshot of the dimension at all, so there is nothing to load"
    assert p.said == [nothing]
    deliver_items(p, date(2062, 2, 4), {"1": "ACTIVE"})
    assert p.tables() == [], "a misnamed object makes no dimension"
    assert p.said[1:] == [nothing]
    assert p.said[0].startswith("dimensions/item_snapshot: dimensions/item/2062-02-04.csv lies outside of the calendar")
    p.has(Verdict.PUBLISHED, Digest(3, 1, 1))
    assert p.tables() == every
    p.has(Verdict.HELD, Digest())
    assert p.tables() == every, "rolled back to nothing, and still in use"


def test_a_dimension_that_is_delivered_gets_its_tables(p: Deployment) -> None:
    deliver_items(p, DAY, {"1": "ACTIVE"})
    assert p.tables() == [table.key for table in OPTIONAL_TABLES]
    assert p.said == ["dimensions/item_snapshot: landing holds snapshots of 1 days"]


def test_a_load_tells_of_dimensions_in_use_of_refused_ones_and_of_all_where_there_is_none(p: Deployment) -> None:
    told = [(one.table, one.verdict) for one in dimension_statuses(p.ledger, [DAY], is_all_wanted=True)]
    assert told == [(ITEM.snapshot.key, None), (ITEM.validity.key, None)], "nothing does not pass for good"
    p.has(Verdict.REFUSED, Digest())
    (told_first, _) = dimension_statuses(p.ledger, [DAY], is_all_wanted=True)
    assert (told_first.verdict, dimension_statuses(p.ledger, [DAY])) == (Verdict.REFUSED, [])
