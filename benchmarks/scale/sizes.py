"""Sizes of the simulated deployment, and the settings and time of its looks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from pipeline_assets.domain.settings import Settings

FIRST_DAY = date(2016, 1, 1)
SHARDS = 4
HOURS = 24


@dataclass(frozen=True)
class Size:
    """A number of projects and days, each with 24 hours of 4 shards."""

    name: str
    projects: int
    days: int
    days_with_deliveries: int
    """Number of newest days with recorded objects; the objects of ten years would fill the disk."""

    @property
    def names(self) -> tuple[str, ...]:
        """Ids of the projects."""
        return tuple(str(10_001 + number) for number in range(self.projects))

    @property
    def all_days(self) -> list[date]:
        """All days, ascending."""
        return [FIRST_DAY + timedelta(days=number) for number in range(self.days)]

    @property
    def last_day(self) -> date:
        """The newest recorded day."""
        return FIRST_DAY + timedelta(days=self.days - 1)

    @property
    def now(self) -> datetime:
        """The time of the looks: the day after the last one, after its deadline."""
        return datetime.combine(self.last_day + timedelta(days=1), time(20), UTC)

    @property
    def objects(self) -> int:
        """Number of objects in landing over all days."""
        return self.projects * self.days * HOURS * SHARDS

    @property
    def years(self) -> float:
        """The simulated time span in years."""
        return self.days / 365

    def settings(self, folder: Path) -> Settings:
        """Return the settings of a deployment in a folder; its landing is simulated."""
        known: dict[str, Any] = {
            "landing_url": f"{folder}/landing",
            "warehouse_url": f"file://{folder}/warehouse",
            "catalog_url": f"sqlite:///{folder}/catalog.db",
            "ledger_url": f"sqlite:///{folder}/ledger.db",
            "projects": self.names,
            "calendar_start": FIRST_DAY,
        }
        return Settings(**known)


SIZES = {
    one.name: one
    for one in (
        Size("tiny", 2, 40, 40),
        Size("hundredth", 20, 365, 365),
        Size("tenth", 200, 365, 365),
        Size("full", 200, 3650, 365),
    )
}
