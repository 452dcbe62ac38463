"""Wire everything together: the one `build_defs` that production, tests and scripts call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_aws.s3 import S3Resource

from pipeline_assets.config import load_settings
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration.assets import Clock, health_asset, health_job, load_assets
from pipeline_assets.orchestration.jobs import JOB_OF_SOURCE, calendar, load_jobs, schedules
from pipeline_assets.orchestration.operation_job import maintenance_job, reconcile_job, release_job, rollback_job
from pipeline_assets.orchestration.rebuild_job import rebuild_job
from pipeline_assets.orchestration.recover_job import recover_job
from pipeline_assets.orchestration.run_config import CONSOLE, closed, guarded_executor
from pipeline_assets.orchestration.sensors import all_sensors
from pipeline_assets.orchestration.specs import landing_assets
from pipeline_assets.tables.registry import require_known_bounds, require_known_dimensions
from resources.landing.store import LandingStore
from resources.spark.session import spark_resource


def build_defs(
    settings: Settings | None = None, *, loggers: Mapping[str, dg.LoggerDefinition] | None = None, **resources: Any
) -> dg.Definitions:
    """The definitions for these settings (default: from file and environment); `resources` replace ours by name."""
    settings = settings or load_settings()
    require_known_bounds(settings)
    require_known_dimensions(settings)
    days = calendar(settings)
    definitions = dg.Definitions(
        assets=[
            *landing_assets(settings, days),
            load_assets(settings, days),
            health_asset(settings),
        ],
        jobs=[
            *load_jobs(),
            maintenance_job(settings),
            rollback_job(settings),
            release_job(settings),
            rebuild_job(settings),
            recover_job(settings, lambda: definitions.resolve_job_def(JOB_OF_SOURCE[Source.BACKFILL])),
            health_job(),
            reconcile_job(settings),
        ],
        schedules=schedules(settings),
        sensors=all_sensors(settings),
        resources={
            name: closed(resource)
            for name, resource in {
                "spark": resources.pop("spark", None) or spark_resource(settings),
                "landing": LandingStore.from_settings(settings, S3Resource()),
                "clock": Clock(),
                "io_manager": dg.FilesystemIOManager(),
                **resources,
            }.items()
        },
        loggers=loggers or {"console": CONSOLE},
        executor=guarded_executor,
    )
    return definitions


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions that Dagster loads; reads settings only when called."""
    return build_defs()
