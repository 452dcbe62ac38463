"""A pipeline's files, and maintenance long after its loads."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline_assets.operations.maintenance import TableUpkeep, maintain, require_done

LONG = timedelta(days=40)
"""Snapshots carry the time of their commit, so maintenance comes later."""


def data_files(p: Any) -> set[str]:
    return {str(path) for path in Path(p.settings.warehouse_url).rglob("*.parquet")}


def grow_old(p: Any) -> None:
    old = (datetime.now(UTC) - LONG).timestamp()
    for path in Path(p.settings.warehouse_url).rglob("*"):
        os.utime(path, (old, old))


def maintained(
    p: Any, now: datetime | None = None, *, is_live: Any = lambda _: False, is_dry_run: bool = False, own: str = ""
) -> dict[str, TableUpkeep]:
    """Maintenance, by default after `LONG` and as a run of its own; table -> report."""
    at = now or datetime.now(UTC) + LONG
    reports = list(maintain(p.runtime, own or str(uuid.uuid4()), at, is_live, is_dry_run=is_dry_run))
    require_done(reports)
    return {report.table: report for report in reports}
