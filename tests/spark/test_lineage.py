"""The column lineage that Dagster shows is what the builds read: no column less, no column more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.settings import Settings
from pipeline_assets.orchestration.specs import column_lineage
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import AGGREGATES
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms.narrow_events import narrow_events

pytestmark = pytest.mark.slow
SETTINGS = Settings()


@pytest.mark.parametrize("table", AGGREGATES, ids=lambda table: table.name)
def test_an_aggregate_reads_the_columns_its_lineage_names(spark: Any, table: AggregateTable, tmp_path: Path) -> None:
    """Outcome: of a file with all columns of refined.events, these and no others are scanned, through the facts or without."""
    named = {
        dep.column_name
        for deps in column_lineage(table).deps_by_column.values()
        for dep in deps
        if dep.asset_key.to_user_string() == REFINED_EVENTS.key
    }
    schema = ", ".join(f"{column.name} {column.type}" for column in REFINED_EVENTS.columns)
    spark.createDataFrame([], schema).write.parquet(str(tmp_path / "refined"))
    refined = spark.read.parquet(str(tmp_path / "refined"))
    assert table.build is not None
    built = table.build(narrow_events(refined, SETTINGS) if table.reads_narrow_events else refined, SETTINGS)
    leaves = built._jdf.queryExecution().sparkPlan().collectLeaves()
    assert leaves.size() == 1
    output = leaves.head().output()
    assert {output.apply(at).name() for at in range(output.size())} == named


def test_a_refined_column_comes_from_both_raw_tables() -> None:
    lineage = column_lineage(REFINED_EVENTS).deps_by_column
    assert set(lineage) == {column.name for column in REFINED_EVENTS.columns} - {"_source"}
    raw = {table.key for table in RAW_TABLES.values()}
    for column, deps in lineage.items():
        assert {(dep.asset_key.to_user_string(), dep.column_name) for dep in deps} == {(key, column) for key in raw}
