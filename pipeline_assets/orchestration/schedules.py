"""Jobs that run by the clock, where a deployment lets sensors run by themselves.

Contains: the one way in which our schedules begin.
Add here: what all schedules share.
Does not contain: any job (each has a module of its own), when it runs (there as well).
"""

from __future__ import annotations

import dagster as dg

from pipeline_assets.domain.settings import Settings


def schedule(
    name: str, job: dg.JobDefinition | dg.UnresolvedAssetJobDefinition, cron: str, settings: Settings
) -> dg.ScheduleDefinition:
    """Runs the job at `cron` (UTC) once `sensors_running` is set; else it is off until somebody switches it on."""
    is_running = settings.sensors_running
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING if is_running else dg.DefaultScheduleStatus.STOPPED,
    )
