"""Scheduled jobs, on by default where a deployment lets its sensors run."""

from __future__ import annotations

import dagster as dg

from pipeline_assets.domain.settings import Settings


def schedule(
    name: str, job: dg.JobDefinition | dg.UnresolvedAssetJobDefinition, cron: str, settings: Settings
) -> dg.ScheduleDefinition:
    """Return a schedule at `cron` (UTC); on by default if `sensors_running` is set, else off until enabled."""
    is_running = settings.sensors_running
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING if is_running else dg.DefaultScheduleStatus.STOPPED,
    )
