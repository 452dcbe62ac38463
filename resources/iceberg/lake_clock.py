"""Check that this machine's clock agrees with the store's: files carry the store's time, and their age is measured by ours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from pipeline_assets.domain.errors import LakehouseError
from resources.iceberg.lake_objects import LakeObjects

_APART = timedelta(hours=1)


def _now() -> datetime:
    return datetime.now(UTC)


def require_true_clock(objects: LakeObjects, now: Callable[[], datetime] = _now) -> None:
    """Raise LakehouseError where this machine's clock differs from the store's by over an hour; a folder shares our clock."""
    before = now()
    theirs = objects.clock()
    after = now()
    if theirs is not None and not before - _APART <= theirs <= after + _APART:
        raise LakehouseError(
            objects.url,
            f"has the time {theirs:%Y-%m-%d %H:%M:%S} UTC, while this machine has {after:%Y-%m-%d %H:%M:%S}, so "
            "the age of files is unknown, and nothing was touched",
            "Correct this machine's clock, then run maintenance again",
        )
