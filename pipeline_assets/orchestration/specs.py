"""Asset specs: description, columns, lineage, owners, location and recovery of each table, as its page shows them."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.masking import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.golden import GOLDEN_TABLES
from pipeline_assets.orchestration.landing_assets import landing_key, source_of
from pipeline_assets.tables.registry import OPTIONAL_TABLES, SOURCE_OF_TABLE, table_by_key
from pipeline_assets.tables.table import Table

UNCOUNTED = (
    "Where a range is launched on assets, Dagster counts a day that gets no materialization as failed, and shows the backfill as "
    "failed, also where all its runs succeeded (dagster-io/dagster#34219). Where it is launched on the page of a job "
    "(`daily_load`), it ends as its runs do. Days that wait are loaded once they are delivered."
)
"""What an operator has to know of ranges with days that wait."""


def asset_key(table: Table) -> dg.AssetKey:
    """Return the asset key of a table."""
    return _key(table.key)


def table_spec(table: Table, days: dg.PartitionsDefinition[str], settings: Settings) -> dg.AssetSpec:
    """Return the asset spec of a table; `days` is the calendar."""
    layer = table.key.split("/")[0]
    columns = [dg.TableColumn(column.name, column.type, column.description) for column in table.columns]
    return dg.AssetSpec(
        asset_key(table),
        deps=_deps(table, settings),
        partitions_def=days,
        skippable=True,
        group_name="dimensions" if table in OPTIONAL_TABLES else "events",
        owners=settings.owners,
        description=_description(table, settings),
        kinds={"iceberg", "spark", layer},
        tags={"layer": layer},
        metadata={
            "dagster/column_schema": dg.TableSchema(columns),
            "dagster/column_lineage": column_lineage(table),
            "dagster/table_name": f"{settings.catalog_name}.{table.identifier}",
            "dagster/uri": f"{shown(settings.warehouse_url)}/{table.key}",
        },
        code_version=table.code_version(settings),
    )


def _deps(table: Table, settings: Settings) -> list[dg.AssetKey]:
    if table.key in SOURCE_OF_TABLE:
        return [landing_key(SOURCE_OF_TABLE[table.key])]
    of_landing = source_of(table, settings)
    return [of_landing] if of_landing is not None else [_key(name) for name in table.upstream]


def check_specs(tables: Sequence[Table], days: dg.PartitionsDefinition[str]) -> list[dg.AssetCheckSpec]:
    """Return all checks of the tables, and for tables that may have golden totals the comparison with these."""
    return [
        dg.AssetCheckSpec(
            check.name,
            asset=asset_key(table),
            description=check.description,
            blocking=check.is_blocking,
            partitions_def=days,
        )
        for table in tables
        for check in (*table.checks, *([Check.RECONCILES_WITH_GOLDEN] if table in GOLDEN_TABLES else []))
    ]


def column_lineage(table: Table) -> dg.TableColumnLineage:
    """Return column -> columns of the upstream tables: the declared ones, else those of the same name."""
    lineage: dict[str, list[dg.TableColumnDep]] = {}
    for column in table.columns:
        wanted = column.sources or (column.name,)
        deps = [
            dg.TableColumnDep(_key(name), source)
            for name in table.upstream
            for source in wanted
            if any(column.name == source for column in table_by_key(name).columns)
        ]
        if deps:
            lineage[column.name] = deps
    return dg.TableColumnLineage(lineage)


def _key(name: str) -> dg.AssetKey:
    return dg.AssetKey(name.split("/"))


def _description(table: Table, settings: Settings) -> str:
    name = f"{settings.catalog_name}.{table.identifier}"
    source = SOURCE_OF_TABLE.get(table.key)
    if source is not None:
        day = "the UTC day on which objects arrived (its checks) and on which events happened (its rows)"
        again = "*Materialize…* lists landing and loads what is new or changed there."
        command = f"tidemark load --source {source.value} --from DAY --to DAY"
    elif table.kind.is_shared:
        day = "the UTC day that a snapshot is of; intervals of a month are filed under its first day"
        again = "*Materialize…* lists landing and loads the snapshots that are new or changed there."
        command = "tidemark load --source dimensions --from DAY --to DAY"
    else:
        day = "the UTC day on which events happened, all projects together"
        again = (
            "*Materialize…* builds it from the tables before it; *Materialize all…* of the group loads landing first."
        )
        command = "tidemark load --source regular --from DAY --to DAY"
    return "\n\n".join(
        [
            table.description,
            f"**A partition** is {day}. The Iceberg table `{name}` is partitioned by `{table.day_column}` and `project_id`.",
            f"**When a day is red:** {table.recovery} The red check of that day gives the reason.",
            f"**To load a day again:** {again} On the shell: `{command}`. Nothing is ever counted twice.",
            f"**A range with days that are not delivered yet:** {UNCOUNTED}",
        ]
    )
