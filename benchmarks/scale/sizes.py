"""How large the simulated deployment is, and the settings and moments of its looks.

Contains: sizes, days, the settings of a folder.
Add here: another size.
Does not contain: rows (fill.py), objects (landing.py), looks (looks.py).
"""

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
    """So many projects and days, each with 24 hours of 4 shards."""

    name: str
    projects: int
    days: int
    days_with_deliveries: int
    """The newest days whose objects are on record one by one: all of ten years would fill the disk."""

    @property
    def names(self) -> tuple[str, ...]:
        """The projects."""
        return tuple(str(10_001 + number) for number in range(self.projects))

    @property
    def all_days(self) -> list[date]:
        """Ascending."""
        return [FIRST_DAY + timedelta(days=number) for number in range(self.days)]

    @property
    def last_day(self) -> date:
        """The newest day on record."""
        return FIRST_DAY + timedelta(days=self.days - 1)

    @property
    def now(self) -> datetime:
        """When it is looked at: the day after the last one, past that one's deadline."""
        return datetime.combine(self.last_day + timedelta(days=1), time(20), UTC)

    @property
    def objects(self) -> int:
        """In landing, over all days."""
        return self.projects * self.days * HOURS * SHARDS

    @property
    def years(self) -> float:
        """How long it ran."""
        return self.days / 365

    def settings(self, folder: Path) -> Settings:
        """Of a deployment in a folder; its landing is simulated, so that no object of it is there."""
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
