"""Jobs: which assets are loaded together, and schedules."""

from __future__ import annotations

import dagster as dg

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration.specs import asset_key
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, DIMENSION_TABLES, DIMENSIONS

HEAL_JOB = "heal_load"
HEAL_PRIORITY = 5
JOB_OF_SOURCE = {Source.REGULAR: "daily_load", Source.BACKFILL: "backfill_load"}
DIMENSION_JOB = "dimension_load"
PRIORITIES = {Source.REGULAR: 10, Source.BACKFILL: 0}
"""A daily load runs before queued recoveries and range backfills."""
PRIORITY_OF_DIMENSIONS = PRIORITIES[Source.REGULAR]
_DESCRIPTIONS = {
    Source.REGULAR: "Load the regular exports that arrived on the chosen days, and everything downstream.",
    Source.BACKFILL: "Load the recovery exports of the chosen days, and everything downstream.",
}


def load_jobs() -> list[dg.UnresolvedAssetJobDefinition]:
    """Return the jobs that load. `daily_load`, `backfill_load`: one source each, then the same derived tables (law 3).

    `heal_load`: only the derived tables. `dimension_load`: snapshots of dimensions and the tables joined with them.
    """
    joined = [asset_key(table) for table in AS_OF_TABLES]
    derived = [*(asset_key(table) for table in DERIVED), *joined]
    loads = [
        dg.define_asset_job(
            name,
            selection=dg.AssetSelection.assets(asset_key(RAW_TABLES[source]), *derived),
            description=_DESCRIPTIONS[source],
            tags={"tidemark/source": source.value, "dagster/priority": str(PRIORITIES[source])},
        )
        for source, name in JOB_OF_SOURCE.items()
    ]
    heal = dg.define_asset_job(
        HEAL_JOB,
        selection=dg.AssetSelection.assets(*derived, *(asset_key(dimension.validity) for dimension in DIMENSIONS)),
        description="Build the stale slices of refined and aggregates from raw; does not read landing.",
    )
    dimensions = dg.define_asset_job(
        DIMENSION_JOB,
        selection=dg.AssetSelection.assets(*(asset_key(table) for table in DIMENSION_TABLES), *joined),
        description="Load the snapshots of dimensions of the chosen days, and everything that is joined with them.",
        tags={"tidemark/source": "dimensions", "dagster/priority": str(PRIORITY_OF_DIMENSIONS)},
    )
    return [*loads, heal, dimensions]


_SCHEDULES = {
    "maintenance_nightly": ("maintenance", "30 3 * * *"),
    # After the nightly maintenance and before working hours.
    "health_report_daily": ("health_report", "0 6 * * *"),
    # For totals that arrive after a load.
    "reconcile_daily": ("reconcile", "30 6 * * *"),
}
"""Schedule -> its job and times (UTC)."""


def schedules(settings: Settings) -> list[dg.ScheduleDefinition]:
    """Return the schedules; on by default if `sensors_running` is set, else off until enabled."""
    status = dg.DefaultScheduleStatus.RUNNING if settings.sensors_running else dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(name, cron_schedule=cron, job_name=job, default_status=status)
        for name, (job, cron) in _SCHEDULES.items()
    ]
