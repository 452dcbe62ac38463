"""`drill`: killed and overtaken loads of sample data on a deployment's own catalog and storage leave nothing there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rich.console import Console

from pipeline_assets.cli.prove import drilled
from pipeline_assets.cli.terminal import show
from pipeline_assets.domain.slices import Source
from pipeline_assets.drill import drill
from pipeline_assets.drill.sandbox import VictimError, scratch
from pipeline_assets.drill.scenarios import AGGREGATE, Disturbance, Trial
from pipeline_assets.tables.events import RAW_TABLES
from resources.failpoints import Failpoint
from resources.iceberg.lakehouse import Lakehouse
from resources.ledger.store import Ledger
from tests.support.builders import events_on
from tests.support.small_spark import SMALL
from tests.support.victim import drills_in_copies

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
TRIALS = (
    Trial(Disturbance.FRESH, Failpoint.AFTER_PUBLISH),
    Trial(Disturbance.RETRIED, Failpoint.AFTER_PUBLISH),
    Trial(Disturbance.MET, Failpoint.AFTER_APPLY, AGGREGATE),
    Trial(Disturbance.RECOVERED, Failpoint.AFTER_OBJECT),
    Trial(Disturbance.REBUILT, Failpoint.IN_TRANSACTION),
)


def _deployment(pipeline: Any) -> Any:
    return pipeline(spark_config=SMALL, spark_master="local[2]", spark_driver_memory="1g")


def _left(p: Any) -> tuple[set[str], list[str]]:
    """Names in the catalog's database and in the folders beside it."""
    with closing(sqlite3.connect(p.settings.catalog_url.removeprefix("sqlite:///"))) as catalog:
        names = set(catalog.execute("SELECT catalog_name FROM iceberg_tables").fetchall())
        names |= set(catalog.execute("SELECT catalog_name FROM iceberg_namespace_properties").fetchall())
    folder = p.landing.parent
    beside = [str(path) for place in (folder, Path(p.settings.warehouse_url)) for path in place.glob("*drill_*")]
    return {name for (name,) in names}, beside


def test_a_drill_is_survived_and_leaves_nothing(pipeline: Any) -> None:
    """Scenario: loads are killed after their publish and overtaken, a recovery is killed, a rebuild dies in its swap.
    Outcome: all survive; catalog, storage, ledger and published days are as before."""
    assert {trial.event for trial in TRIALS} == set(Disturbance)
    p = _deployment(pipeline)
    p.deliver(DAY, events_on(DAY, 5))
    assert p.run(DAY).success
    before = p.digests(), p.history(), len(p.ledger.publications()), _left(p)

    with drills_in_copies():
        results = list(drill.carry_out(p.spark, p.settings, (*TRIALS, TRIALS[0]), print))

    show(Console(width=160), *drilled(results))
    assert [one.faults for one in results] == [()] * 6
    assert all(one.conflicts for one in results if one.trial.event is Disturbance.MET)
    assert (p.digests(), p.history(), len(p.ledger.publications()), _left(p)) == before


def test_what_is_not_loaded_again_is_told(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: nobody restarts a killed load. Outcome: the drill names the wrong slices and the day that Dagster lacks."""

    @contextmanager
    def dead_at_once(*_: Any) -> Iterator[Any]:
        raise VictimError("the process did not pause")
        yield

    p = _deployment(pipeline)
    monkeypatch.setattr(drill, "a_victim", dead_at_once)
    again = drill._Drill._load
    monkeypatch.setattr(drill._Drill, "_load", lambda one, days, **tags: again(one, days) if len(days) == 2 else [])

    (result,) = drill.carry_out(p.spark, p.settings, TRIALS[:1], print)

    told = "\n".join(result.faults)
    assert "the process did not pause" in told
    assert "refined/events" in told
    assert "instead of" in told
    assert "Dagster shows no materialization" in told


def test_a_drill_on_servers_leaves_nothing_there(pipeline: Any, bucket: Any, postgres: str) -> None:
    """Scenario: PostgreSQL with a password, and a bucket. Outcome: the drill's schemas, entries and objects are gone."""
    url = postgres
    changes = {"catalog_url": url, "ledger_url": url, "warehouse_url": f"s3://{bucket.name}/warehouse"}
    p = pipeline()
    settings = p.settings.model_copy(update=changes)
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg2://"))
    with closing(Ledger(url)) as own, scratch(p.spark, settings, "10001", DAY) as place:
        for one in (place.settings, place.calm):
            with closing(Ledger(one.ledger_database_url)) as ledger:
                assert ledger.publications() == []
            Lakehouse(p.spark, one.catalog_name).ensure(RAW_TABLES[Source.REGULAR])
        place.deliver("10001/10001_2026-02-02_1#1.json.gz", b"bytes")
        assert own.publications() == []
        assert {place.settings.catalog_name, place.calm.catalog_name} <= set(sa.inspect(engine).get_schema_names())
        tables = sa.inspect(engine).get_table_names(schema=place.settings.catalog_name)
        assert "tidemark_publications" in tables
        assert _keys(bucket, "/landing/")
        assert _keys(bucket, ".metadata.json")
        assert _catalog_entries(engine, place.settings.catalog_name)
    assert not [name for name in sa.inspect(engine).get_schema_names() if name.startswith("drill_")]
    assert not _keys(bucket, "")
    assert not sa.inspect(engine).has_table("iceberg_tables")
    engine.dispose()


def _keys(bucket: Any, part: str) -> list[str]:
    return [item.key for item in bucket.objects.all() if "drill_" in item.key and part in item.key]


def _catalog_entries(engine: sa.Engine, schema: str) -> list[Any]:
    with engine.connect() as connection:
        return [
            row
            for table in ("iceberg_tables", "iceberg_namespace_properties")
            for row in connection.execute(sa.text(f"SELECT * FROM {schema}.{table} WHERE catalog_name LIKE 'drill%'"))
        ]
