"""Run tags that several modules write or read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

from pipeline_assets.domain.days import days_between

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_PARTITION = "dagster/partition"
REASON_TAG = "tidemark/reason"
SKEW_TAG = "tidemark/skew"
"""The heavy steps that a run has begun, with the forecast ratio of the largest task to the median one."""


def range_tags(first: date, last: date) -> dict[str, str]:
    """Return the tags of a run that loads all days in this range."""
    return {RANGE_START: first.isoformat(), RANGE_END: last.isoformat()}


def days_of(tags: Mapping[str, str]) -> Sequence[date]:
    """Return the days that a run loads, from its tags; empty for a run without partitions."""
    if RANGE_START in tags and RANGE_END in tags:
        first, last = (date.fromisoformat(tags[name][:10]) for name in (RANGE_START, RANGE_END))
        return days_between(first, last)
    return [date.fromisoformat(tags[_PARTITION][:10])] if _PARTITION in tags else []
