"""Assets, checks and jobs as Dagster shows them, their schedules and calendar; tags of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import dagster as dg

from pipeline_assets.domain.checks import Check
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.masking import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.snapshot_lines import folder_of, folder_of_intervals
from pipeline_assets.load.golden import GOLDEN_TABLES
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import (
    AS_OF_TABLES,
    DERIVED,
    DIMENSION_TABLES,
    DIMENSIONS,
    OPTIONAL_TABLES,
    SOURCE_OF_TABLE,
    table_by_key,
)
from pipeline_assets.tables.table import Table

UNCOUNTED = (
    "Where a range is launched on assets, Dagster counts a day that gets no materialization as failed, and shows the backfill as "
    "failed, also where all its runs succeeded (dagster-io/dagster#34219). Where it is launched on the page of a job "
    "(`daily_load`), it ends as its runs do. Days that wait are loaded once they are delivered."
)


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
        return [landing_key(f"{SOURCE_OF_TABLE[table.key].value}_exports")]
    of_landing = source_of(table, settings)
    return [of_landing] if of_landing is not None else [_key(name) for name in table.upstream]


def check_specs(tables: Sequence[Table], days: dg.PartitionsDefinition[str]) -> list[dg.AssetCheckSpec]:
    """Return all checks of the tables, and the comparison with golden totals for tables that may have some."""
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
    again = "*Materialize…* lists landing and loads what is new or changed there."
    if source is not None:
        day = "the UTC day on which objects arrived (its checks) and on which events happened (its rows)"
    elif table.kind.is_shared:
        day = "the UTC day that a snapshot is of; intervals of a month are filed under its first day"
    else:
        day = "the UTC day on which events happened, all projects together"
        again = (
            "*Materialize…* builds it from the tables before it; *Materialize all…* of the group loads landing first."
        )
    option = "dimensions" if table.kind.is_shared else (source or Source.REGULAR).value
    return "\n\n".join(
        [
            table.description,
            f"**A partition** is {day}. The Iceberg table `{name}` is partitioned by `{table.day_column}` and `project_id`.",
            f"**When a day is red:** {table.recovery} The red check of that day gives the reason.",
            f"**To load a day again:** {again} On the shell: `tidemark load --source {option} --from DAY --to DAY`. Nothing is "
            "ever counted twice.",
            f"**A range with days that are not delivered yet:** {UNCOUNTED}",
        ]
    )


_DESCRIPTIONS = {
    Source.REGULAR: "The vendor's hourly exports, below `{project}/`.",
    Source.BACKFILL: "Manual recovery exports, below `{project}-backfill/`; the daily load never reads them.",
}
_CONTENT = """

**An object** is a gzip file of JSON lines, one event a line, named `{project}_2026-01-25_17#1.json.gz`: project, UTC date and
hour of arrival, shard. **A partition** is an arrival day: objects, bytes and complete hours, reported by the sensor whenever they
change. Nothing here is written by Tidemark."""
_RECOVERY = {
    Source.REGULAR: (
        "**When hours are missing or broken:** have the vendor export them again onto the same names, or recover them below "
        "`{project}-backfill/`; either is loaded without counting anything twice."
    ),
    Source.BACKFILL: (
        "**To recover a day:** put an export of its arrival day here; `backfill_exports_arrived` loads it when it rests, or "
        "`tidemark load --source backfill --from DAY --to DAY` at once."
    ),
}


def landing_key(name: str) -> dg.AssetKey:
    """Return the key of a source asset, for example `landing/regular_exports` or `landing/item_snapshots`."""
    return dg.AssetKey(["landing", name])


def source_of(table: Table, settings: Settings) -> dg.AssetKey | None:
    """Return the source asset of a dimension's table; None for a table that is built from other tables."""
    if not table.reads_landing(settings):
        return None
    (name,) = (one.name for one in DIMENSIONS if table in one.tables)
    return landing_key(f"{name}_{'intervals' if table.reads_history(settings) else 'snapshots'}")


def landing_assets(settings: Settings, days: dg.PartitionsDefinition[str]) -> list[dg.AssetSpec]:
    """Return the source assets of exports and of dimensions; no run materializes them, because others write them."""
    place = shown(settings.landing_url)
    sources = [
        (f"{source.value}_exports", "landing", place, f"{_DESCRIPTIONS[source]}{_CONTENT}\n\n{_RECOVERY[source]}")
        for source in Source
    ]
    of_dimensions = [(f"{one.name}_snapshots", folder_of(one.name), _OF_SNAPSHOTS) for one in DIMENSIONS]
    of_dimensions += [
        (f"{one.name}_intervals", folder_of(folder_of_intervals(one.name)), _OF_INTERVALS)
        for one in DIMENSIONS
        if one.intervals_are_delivered(settings)
    ]
    sources += [
        (name, "dimensions", f"{place}/{folder}", text.format(folder=folder)) for name, folder, text in of_dimensions
    ]
    return [
        dg.AssetSpec(
            landing_key(name),
            description=description,
            owners=settings.owners,
            metadata={"dagster/uri": uri},
            partitions_def=days,
            group_name=group,
            kinds={"s3" if settings.landing_url.startswith("s3://") else "file"},
            tags={"layer": "landing"},
        )
        for name, group, uri, description in sources
    ]


_OF_SNAPSHOTS = """The snapshots of the dimension, below `{folder}/`.

**An object** is `DAY.csv` (header `id,name,status`; more columns are kept) or `DAY.jsonl`, and `DAY_complete` says that it is
whole. **A partition** is the day that a snapshot is of. Nothing here is written by Tidemark.

**To correct a day:** put the corrected snapshot on the same name; every load notices it."""
_OF_INTERVALS = """The intervals of the dimension as they are delivered, below `{folder}/`.

**An object** is `DAY.csv` (header `id,status,active_start_date,active_end_date`, an open interval has no end; more columns are
kept) or `DAY.jsonl`: the whole history as of the day. `DAY_complete` says that it is whole. **A partition** is that day. Nothing
here is written by Tidemark.

**To correct the past:** put the corrected history on the same name, or on that of a later day; the last complete one stands."""


RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_PARTITION = "dagster/partition"
REASON_TAG = "tidemark/reason"
SKEW_TAG = "tidemark/skew"
"""The begun heavy steps of a run, with the forecast ratio of the largest task to the median one."""


def range_tags(first: date, last: date) -> dict[str, str]:
    """Return the tags of a run that loads all days in this range."""
    return {RANGE_START: first.isoformat(), RANGE_END: last.isoformat()}


def days_of(tags: Mapping[str, str]) -> Sequence[date]:
    """Return the days that a run loads, from its tags; empty for a run without partitions."""
    if RANGE_START in tags and RANGE_END in tags:
        first, last = (date.fromisoformat(tags[name][:10]) for name in (RANGE_START, RANGE_END))
        return days_between(first, last)
    return [date.fromisoformat(tags[_PARTITION][:10])] if _PARTITION in tags else []


JOB_OF_SOURCE = {Source.REGULAR: "daily_load", Source.BACKFILL: "backfill_load"}
HEAL_JOB, DIMENSION_JOB = "heal_load", "dimension_load"
PRIORITIES = {JOB_OF_SOURCE[Source.REGULAR]: 10, DIMENSION_JOB: 10, HEAL_JOB: 5, JOB_OF_SOURCE[Source.BACKFILL]: 0}
"""A daily load runs before queued recoveries and range backfills."""


def load_jobs() -> list[dg.UnresolvedAssetJobDefinition]:
    """Return the jobs that load. `daily_load`, `backfill_load`: one source each, then the same derived tables (law 3).

    `heal_load`: only the derived tables. `dimension_load`: snapshots of dimensions and the tables joined with them.
    """
    derived = (*DERIVED, *AS_OF_TABLES)
    regular, backfill = JOB_OF_SOURCE[Source.REGULAR], JOB_OF_SOURCE[Source.BACKFILL]
    sources = {regular: Source.REGULAR.value, backfill: Source.BACKFILL.value, DIMENSION_JOB: "dimensions"}
    tables = {
        regular: (RAW_TABLES[Source.REGULAR], *derived),
        backfill: (RAW_TABLES[Source.BACKFILL], *derived),
        HEAL_JOB: (*derived, *(dimension.validity for dimension in DIMENSIONS)),
        DIMENSION_JOB: (*DIMENSION_TABLES, *AS_OF_TABLES),
    }
    descriptions = {
        regular: "Load the regular exports that arrived on the chosen days, and everything downstream.",
        backfill: "Load the recovery exports of the chosen days, and everything downstream.",
        HEAL_JOB: "Build the stale slices of refined and aggregates from raw; does not read landing.",
        DIMENSION_JOB: "Load the snapshots of dimensions of the chosen days, and everything that is joined with them.",
    }
    return [
        dg.define_asset_job(
            name,
            selection=dg.AssetSelection.assets(*(asset_key(table) for table in of_job)),
            description=descriptions[name],
            tags={"tidemark/source": sources[name], "dagster/priority": str(PRIORITIES[name])}
            if name in sources
            else None,
        )
        for name, of_job in tables.items()
    ]


_SCHEDULES = {
    "maintenance_nightly": ("maintenance", "30 3 * * *"),
    "health_report_daily": ("health_report", "0 6 * * *"),
    "reconcile_daily": ("reconcile", "30 6 * * *"),
}


def schedules(settings: Settings) -> list[dg.ScheduleDefinition]:
    """Return the schedules; on by default if `sensors_running` is set, else off until enabled."""
    status = dg.DefaultScheduleStatus.RUNNING if settings.sensors_running else dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(name, cron_schedule=cron, job_name=job, default_status=status)
        for name, (job, cron) in _SCHEDULES.items()
    ]


def calendar(settings: Settings) -> dg.DailyPartitionsDefinition:
    """Return daily event-time partitions in UTC, including today, whose hours arrive one by one."""
    return dg.DailyPartitionsDefinition(start_date=settings.calendar_start.isoformat(), timezone="UTC", end_offset=1)
