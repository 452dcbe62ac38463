"""Reads slices of a table whose present states are spread over several snapshots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce

from pyspark.sql import DataFrame

from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table
from resources.iceberg.metadata import slices_condition


def read_states(
    runtime: Runtime,
    table: Table,
    states: Mapping[int, Collection[Slice]],
    select: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """The rows of these slices, each from its snapshot; `select` gives rows of every snapshot the same columns."""
    parts = [
        select(runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, slices)))
        for snapshot_id, slices in states.items()
    ]
    return reduce(DataFrame.unionByName, parts)
