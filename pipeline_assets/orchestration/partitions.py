"""The calendar: which days Dagster has a partition for.

Contains: the daily partitions.
Add here: another kind of partition.
Does not contain: day arithmetic (domain/days.py), and event days outside the calendar, which are
loaded all the same (law 7).
"""

from __future__ import annotations

import dagster as dg

from pipeline_assets.domain.settings import Settings


def calendar(settings: Settings) -> dg.DailyPartitionsDefinition:
    """Daily event-time partitions in UTC, today's included: its hours arrive one by one."""
    return dg.DailyPartitionsDefinition(start_date=settings.calendar_start.isoformat(), timezone="UTC", end_offset=1)
