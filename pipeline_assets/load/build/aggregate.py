"""Build an aggregate from refined.events, and audit it against totals computed another way.

Contains: how any aggregate is built and measured.
Add here: what all aggregates share.
Does not contain: any one of them (tables/) and judging (verdicts.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame
from resources.iceberg.metadata import slices_condition

from pipeline_assets.domain.checks import number, Totals
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.load.build.audit import Audit, Build
from pipeline_assets.load.build.shared_events import input_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms.digests import (digest_aggregates, digest_of, with_row_hashes)

_CONTROL = "_control_"


def build_aggregate(runtime: Runtime, table: AggregateTable, pin: int, todo: Sequence[Slice]) -> Build:
    """The build of an aggregate for these slices, from refined.events as of the pinned snapshot."""
    events = input_of(runtime, table, pin, todo)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, todo))
        by = ["event_date", "project_id"]
        measured = (
            with_row_hashes(staged, table.content_columns)
            .groupBy(*by)
            .agg(*digest_aggregates(), *[measure.total().alias(name) for name, measure in table.measures.items()])
        )
        found: dict[Slice, Mapping[str, object]] = {}
        control: dict[Slice, Mapping[str, object]] = {}
        for row in _beside(measured, table.controls(events, runtime.settings)).collect():
            told = row.asDict()
            of_control = {
                name.removeprefix(_CONTROL): value for name, value in told.items() if name.startswith(_CONTROL)
            }
            side, values = (control, of_control) if told["_is_control"] else (found, told)
            side[Slice(row["event_date"], row["project_id"])] = values
        return {key: _aggregate_audit(table, found.get(key, {}), control.get(key, {}), runtime.settings) for key in todo}

    return Build(table.build(events, runtime.settings), audit)


def _beside(measured: DataFrame, control: DataFrame) -> DataFrame:
    """Both in one query: columns of the second with a name of their own, so that no type of one changes that of the other."""
    by = ("event_date", "project_id")
    renamed = control.select(
        *by, *[F.col(name).alias(f"{_CONTROL}{name}") for name in control.columns if name not in by]
    )
    sides = (measured.withColumn("_is_control", F.lit(False)), renamed.withColumn("_is_control", F.lit(True)))
    return sides[0].unionByName(sides[1], allowMissingColumns=True)


def _aggregate_audit(
    table: AggregateTable, found: Mapping[str, Any], control: Mapping[str, Any], settings: Settings
) -> Audit:
    digest = digest_of(found) if found else EMPTY
    totals = {name: found.get(name) or 0 for name in table.measures}
    controls = {name: value or 0 for name, value in control.items() if name not in ("event_date", "project_id")}
    measured = Totals(totals, controls, settings)
    evaluations = tuple(rule.evaluate(measured) for rule in table.checks if rule.evaluate is not None)
    measures = {
        name: int(totals[name]) if measure.is_count else float(totals[name]) for name, measure in table.measures.items()
    }
    extra = {name: number(value) for name, value in controls.items() if name not in measures}
    return Audit(digest, measures, {"rows": digest.rows, **measures, **extra}, evaluations)
