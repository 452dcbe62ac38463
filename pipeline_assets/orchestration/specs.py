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
from pipeline_assets.tables import registry
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.table import Table

UNCOUNTED = (
    "Where a range is launched on assets, Dagster counts a day that gets no materialization as failed, and shows the backfill as "
    "failed, also where all its runs succeeded (dagster-io/dagster#34219). Where it is launched on the page of a job "
    "(`daily_load`), it ends as its runs do. Days that wait are loaded once they are delivered."
)


def asset_key(table: Table) -> dg.AssetKey:
    """The asset key of a table."""
    return dg.AssetKey(table.key.split("/"))


def table_spec(table: Table, days: dg.PartitionsDefinition[str], settings: Settings) -> dg.AssetSpec:
    """Return the asset spec of a table; `days` is the calendar."""
    layer = table.key.split("/")[0]
    columns = [dg.TableColumn(column.name, column.type, column.description) for column in table.columns]
    source, of_landing = registry.SOURCE_OF_TABLE.get(table.key), source_of(table, settings)
    deps = [dg.AssetKey(name.split("/")) for name in table.upstream]
    if source is not None or of_landing is not None:
        deps = [of_landing or landing_key(f"{source}_exports")]
    return dg.AssetSpec(
        asset_key(table),
        deps=deps,
        partitions_def=days,
        skippable=True,
        group_name="dimensions" if table in registry.OPTIONAL_TABLES else "events",
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


def check_specs(tables: Sequence[Table], days: dg.PartitionsDefinition[str]) -> list[dg.AssetCheckSpec]:
    """Return all checks of the tables, and the comparison with golden totals for tables that may have some."""
    specs = []
    for table in tables:
        key = asset_key(table)
        for check in (*table.checks, *([Check.RECONCILES_WITH_GOLDEN] if table in GOLDEN_TABLES else [])):
            name, text, blocks = check.name, check.description, check.is_blocking
            specs.append(dg.AssetCheckSpec(name, asset=key, description=text, blocking=blocks, partitions_def=days))
    return specs


def column_lineage(table: Table) -> dg.TableColumnLineage:
    """Return column -> columns of the upstream tables: the declared ones, else those of the same name."""
    lineage: dict[str, list[dg.TableColumnDep]] = {}
    for column in table.columns:
        wanted = column.sources or (column.name,)
        deps = [
            dg.TableColumnDep(dg.AssetKey(name.split("/")), source)
            for name in table.upstream
            for source in wanted
            if any(column.name == source for column in registry.table_by_key(name).columns)
        ]
        if deps:
            lineage[column.name] = deps
    return dg.TableColumnLineage(lineage)


def _description(table: Table, settings: Settings) -> str:
    name, source = f"{settings.catalog_name}.{table.identifier}", registry.SOURCE_OF_TABLE.get(table.key)
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
    return f"""{table.description}

**A partition** is {day}. The Iceberg table `{name}` is partitioned by `{table.day_column}` and `project_id`.

**When a day is red:** {table.recovery} The red check of that day gives the reason.

**To load a day again:** {again} On the shell: `tidemark load --source {option} --from DAY --to DAY`. Nothing is counted twice.

**A range with days that are not delivered yet:** {UNCOUNTED}"""


_OF_EXPORTS = """{what}

**An object** is a gzip file of JSON lines, one event a line, named `{{project}}_2026-01-25_17#1.json.gz`: project, UTC date and
hour of arrival, shard. **A partition** is an arrival day: objects, bytes and complete hours, reported by the sensor whenever they
change. Nothing here is written by Tidemark.

{recovery}"""
_EXPORTS = {
    Source.REGULAR: _OF_EXPORTS.format(
        what="The vendor's hourly exports, below `{project}/`.",
        recovery="**When hours are missing or broken:** have the vendor export them again onto the same names, or recover them "
        "below `{project}-backfill/`; either is loaded without counting anything twice.",
    ),
    Source.BACKFILL: _OF_EXPORTS.format(
        what="Manual recovery exports, below `{project}-backfill/`; the daily load never reads them.",
        recovery="**To recover a day:** put an export of its arrival day here; `backfill_exports_arrived` loads it when it "
        "rests, or `tidemark load --source backfill --from DAY --to DAY` at once.",
    ),
}


def landing_key(name: str) -> dg.AssetKey:
    """Return the key of a source asset, for example `landing/regular_exports` or `landing/item_snapshots`."""
    return dg.AssetKey(["landing", name])


def source_of(table: Table, settings: Settings) -> dg.AssetKey | None:
    """Return the source asset of a dimension's table; None for a table that is built from other tables."""
    if not table.reads_landing(settings):
        return None
    (name,) = (one.name for one in registry.DIMENSIONS if table in one.tables)
    return landing_key(f"{name}_{'intervals' if table.reads_history(settings) else 'snapshots'}")


def landing_assets(settings: Settings, days: dg.PartitionsDefinition[str]) -> list[dg.AssetSpec]:
    """Return the source assets of exports and of dimensions; no run materializes them, because others write them."""
    place, kind = shown(settings.landing_url), "s3" if settings.landing_url.startswith("s3://") else "file"
    sources = {f"{source.value}_exports": ("landing", place, _EXPORTS[source]) for source in Source}
    for one in registry.DIMENSIONS:
        kinds = [("snapshots", one.name, _OF_SNAPSHOTS)]
        if one.intervals_are_delivered(settings):
            kinds.append(("intervals", folder_of_intervals(one.name), _OF_INTERVALS))
        for what, name, text in kinds:
            folder = folder_of(name)
            sources[f"{one.name}_{what}"] = "dimensions", f"{place}/{folder}", text.format(folder=folder)
    return [
        dg.AssetSpec(
            landing_key(name),
            description=description,
            owners=settings.owners,
            metadata={"dagster/uri": uri},
            partitions_def=days,
            group_name=group,
            kinds={kind},
            tags={"layer": "landing"},
        )
        for name, (group, uri, description) in sources.items()
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
    derived = (*registry.DERIVED, *registry.AS_OF_TABLES)
    regular, backfill = JOB_OF_SOURCE[Source.REGULAR], JOB_OF_SOURCE[Source.BACKFILL]
    sources = {regular: Source.REGULAR.value, backfill: Source.BACKFILL.value, DIMENSION_JOB: "dimensions"}
    tables = {
        regular: (RAW_TABLES[Source.REGULAR], *derived),
        backfill: (RAW_TABLES[Source.BACKFILL], *derived),
        HEAL_JOB: (*derived, *(dimension.validity for dimension in registry.DIMENSIONS)),
        DIMENSION_JOB: (*registry.DIMENSION_TABLES, *registry.AS_OF_TABLES),
    }
    descriptions = {
        regular: "Load the regular exports that arrived on the chosen days, and everything downstream.",
        backfill: "Load the recovery exports of the chosen days, and everything downstream.",
        HEAL_JOB: "Build the stale slices of refined and aggregates from raw; does not read landing.",
        DIMENSION_JOB: "Load the snapshots of dimensions of the chosen days, and everything that is joined with them.",
    }
    jobs = []
    for name, of_job in tables.items():
        tags = (
            {"tidemark/source": sources[name], "dagster/priority": str(PRIORITIES[name])} if name in sources else None
        )
        selection = dg.AssetSelection.assets(*map(asset_key, of_job))
        jobs.append(dg.define_asset_job(name, selection=selection, description=descriptions[name], tags=tags))
    return jobs


def schedules(settings: Settings) -> list[dg.ScheduleDefinition]:
    """Return the schedules; on by default if `sensors_running` is set, else off until enabled."""
    status = dg.DefaultScheduleStatus.RUNNING if settings.sensors_running else dg.DefaultScheduleStatus.STOPPED
    crons = {"maintenance_nightly": "30 3 * * *", "health_report_daily": "0 6 * * *", "reconcile_daily": "30 6 * * *"}
    jobs = [(name, name.rpartition("_")[0], cron) for name, cron in crons.items()]
    return [
        dg.ScheduleDefinition(name, job_name=job, cron_schedule=cron, default_status=status) for name, job, cron in jobs
    ]


def calendar(settings: Settings) -> dg.DailyPartitionsDefinition:
    """Return daily event-time partitions in UTC, including today, whose hours arrive one by one."""
    return dg.DailyPartitionsDefinition(start_date=settings.calendar_start.isoformat(), timezone="UTC", end_offset=1)
