"""The calendar: the days that have a partition in Dagster."""

from __future__ import annotations

import dagster as dg

from pipeline_assets.domain.settings import Settings


def calendar(settings: Settings) -> dg.DailyPartitionsDefinition:
    """Return daily event-time partitions in UTC, including today, whose hours arrive one by one."""
    return dg.DailyPartitionsDefinition(start_date=settings.calendar_start.isoformat(), timezone="UTC", end_offset=1)
