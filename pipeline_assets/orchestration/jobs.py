"""Jobs: which assets are loaded together; their schedules, and the calendar of their partitions."""

from __future__ import annotations

import dagster as dg

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration.specs import asset_key
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, DIMENSION_TABLES, DIMENSIONS

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
