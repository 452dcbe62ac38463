"""Tables as loads create them: as declared, by whoever comes first, and current after others' changes."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.registry import AGGREGATES, ALL_TABLES
from pipeline_assets.tables.table import Table
from resources.iceberg.lakehouse import Lakehouse
from resources.iceberg.metadata import JavaTables
from resources.iceberg.upkeep import KEPT_PROPERTIES
from resources.spark.session import configure_catalog

pytestmark = pytest.mark.slow
TABLE = ALL_TABLES[0]


@pytest.fixture
def catalog(spark: Any, tmp_path: Path) -> str:
    name = f"made_{uuid.uuid4().hex[:8]}"
    places = {"warehouse_url": f"{tmp_path}/warehouse", "catalog_url": f"sqlite:///{tmp_path}/catalog.db"}
    configure_catalog(spark, Settings(catalog_name=name, **places))
    return name


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.key)
def test_a_new_table_is_as_declared(spark: Any, catalog: str, table: Table) -> None:
    Lakehouse(spark, catalog).ensure(table)

    java = JavaTables(spark, catalog).load(table)
    columns = {str(column.name()): bool(column.isRequired()) for column in java.schema().columns()}
    assert columns == {column.name: column.is_required for column in table.columns}
    names = {int(column.fieldId()): str(column.name()) for column in java.schema().columns()}
    assert [names[field.sourceId()] for field in java.spec().fields()] == [table.day_column, "project_id"]
    sorting = [(names[field.sourceId()], str(field.direction().name())) for field in java.sortOrder().fields()]
    assert sorting == [(column, "ASC") for column in table.write_order]
    properties = dict(java.properties())
    assert properties.items() >= KEPT_PROPERTIES.items()
    assert properties["write.distribution-mode"] == "hash"
    assert java.currentSnapshot() is not None


def test_many_create_the_same_tables_at_the_same_moment(spark: Any, catalog: str) -> None:
    """Scenario: four loads create the same namespace and tables. Outcome: none fails, one made each."""
    start = Barrier(4)

    def create(_: int) -> list[int]:
        lakehouse = Lakehouse(spark, catalog)
        start.wait(60)
        for table in AGGREGATES:
            lakehouse.ensure(table)
        return [lakehouse.head(table) for table in AGGREGATES]

    with ThreadPoolExecutor(4) as pool:
        heads = list(pool.map(create, range(4)))
    assert all(
        one in Lakehouse(spark, catalog).snapshot_ids(table)
        for of in heads
        for table, one in zip(AGGREGATES, of, strict=True)
    )


def test_a_table_that_was_loaded_before_hides_nothing_new(spark: Any, catalog: str) -> None:
    """Scenario: another process commits to a loaded table. Outcome: a new snapshot and the head are those of now."""
    here, elsewhere = JavaTables(spark, catalog), JavaTables(spark, catalog)
    lakehouse = Lakehouse(spark, catalog)
    lakehouse.ensure(TABLE)
    before = lakehouse.head(TABLE)
    loaded = here.load(TABLE)

    elsewhere.load(TABLE).newFastAppend().commit()

    after = lakehouse.head(TABLE)
    assert after != before
    assert here.knowing(TABLE, before) is loaded
    assert here.knowing(TABLE) is loaded
    assert here.knowing(TABLE, after).snapshot(after) is not None
    assert lakehouse.slice_files(TABLE, after) == {}
