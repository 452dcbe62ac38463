"""Dagster's column lineage is exactly the columns that builds read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.build.folds import slice_fold
from pipeline_assets.orchestration.specs import column_lineage
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.registry import AGGREGATES
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms.fold import columns_of
from tests.scenarios.city_events import CITY_EVENTS

SETTINGS = Settings()


def _named(table: AggregateTable) -> set[str]:
    return {
        dep.column_name
        for deps in column_lineage(table).deps_by_column.values()
        for dep in deps
        if dep.asset_key.to_user_string() == REFINED_EVENTS.key
    }


@pytest.mark.parametrize("table", AGGREGATES, ids=lambda table: table.name)
def test_a_fold_reads_the_columns_its_lineage_names(table: AggregateTable) -> None:
    read = columns_of(slice_fold([table], SETTINGS).facts)
    assert {*REFINED_EVENTS.partition_columns, *read} == _named(table)


@pytest.mark.slow
def test_a_table_of_a_user_reads_the_columns_its_lineage_names(spark: Any, tmp_path: Path) -> None:
    """Outcome: exactly these columns of refined.events are scanned, and those of its slice."""
    schema = ", ".join(f"{column.name} {column.type}" for column in REFINED_EVENTS.columns)
    spark.createDataFrame([], schema).write.parquet(str(tmp_path / "refined"))
    assert CITY_EVENTS.build is not None
    built = CITY_EVENTS.build(spark.read.parquet(str(tmp_path / "refined")), SETTINGS)
    leaves = built._jdf.queryExecution().sparkPlan().collectLeaves()
    assert leaves.size() == 1
    output = leaves.head().output()
    assert {output.apply(at).name() for at in range(output.size())} == _named(CITY_EVENTS)


def test_a_refined_column_comes_from_both_raw_tables() -> None:
    lineage = column_lineage(REFINED_EVENTS).deps_by_column
    assert set(lineage) == {column.name for column in REFINED_EVENTS.columns} - {"_source"}
    raw = {table.key for table in RAW_TABLES.values()}
    for column, deps in lineage.items():
        assert {(dep.asset_key.to_user_string(), dep.column_name) for dep in deps} == {(key, column) for key in raw}
